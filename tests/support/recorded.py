"""A real `Timings` that has received a run over its own channel, made by formula."""

from __future__ import annotations

from array import array

from timers import FAR_S

from workbench.timings import Timings
from workbench.wire import Flag, IterationRecord, Layout, Outbox
from workbench.wire.rank_messages import Records

MS = 1_000_000
NAMES = ("conv.weight", "conv.bias", "head.weight")
SIZES = (4_000_000, 4_000, 400_000)
PHASES_MS = {
    "data": 0.75,
    "copy": 0.25,
    "forward": 5,
    "backward": 8,
    "exposed": 4,
    "optimizer": 2,
    "other": 0.25,
}
STEP_MS = 30
"""From one iteration's start to the next one's."""
ENDS_MS = (12.5, 13, 18)
"""After an iteration's start on the common clock: when each collective ends on all ranks."""
ONE_VM = {0: "vm1", 1: "vm1"}
"""The place of each rank, where their clocks are one."""


def true_start(iteration):
    """When an iteration begins on the common clock, in nanoseconds."""
    return 10**12 + iteration * STEP_MS * MS


class RankClock:
    """A rank's own clock: ahead of the common one, and drifting from it."""

    def __init__(self, ahead_ns=0, ppm=0.0):
        self.ahead_ns, self.ppm = ahead_ns, ppm

    def read(self, true_ns):
        return round(true_ns + self.ahead_ns + (true_ns - 10**12) * self.ppm * 1e-6)


def iteration_record(index, rank, clock, *, world=2, late_ms=0.0, cell=1, layout=0):
    """One record; `late_ms` delays this rank's submissions, and its data loading causes it."""
    phases = {**PHASES_MS}
    phases["data"] += late_ms
    phases["exposed"] -= late_ms
    start = clock.read(true_start(index))
    submitted = [7 + late_ms, 7.5 + late_ms, 8 + late_ms]

    def ticks(times_ms):
        times = [clock.read(true_start(index) + round(t * MS)) - start for t in times_ms]
        return array("I", [t // 100 for t in times])

    spent = {f"{name}_ns": round(ms * MS) for name, ms in phases.items()}
    return IterationRecord(
        cell, index, start, sum(spent.values()), **spent,
        communication_ns=round((18 - submitted[0]) * MS),
        overlapped_ns=round((18 - submitted[0] - phases["exposed"]) * MS),
        size_bytes=sum(SIZES), tensors=3, world_size=world, layout=layout,
        flags=Flag.FIRST_OF_CELL if index == 0 else Flag.NONE,
        submitted=ticks(submitted),
        responded=ticks([end - 2 for end in ENDS_MS]),
        began=ticks([end - 1.8 for end in ENDS_MS]),
        ended=ticks(ENDS_MS),
        finished=ticks([end + 0.1 for end in ENDS_MS]),
    )  # fmt: skip


def layout_of(ranks, library="GLOO_ALLREDUCE"):
    """Return the collectives of every iteration; without a library, transfers are unknown."""
    every = len(NAMES)
    return Layout(
        0, NAMES, SIZES, (1,) * every, ("allreduce",) * every, (0,) * every, (ranks,) * every,
        ("optimizer",) * every, (library,) * every,
    )  # fmt: skip


def recorded(
    iterations=12, clocks=None, *, late_ms=0.0, vms=None, world=None, collectives=True, more=None,
    library="GLOO_ALLREDUCE",
):  # fmt: skip
    """A `Timings` with a run of as many ranks as there are clocks; the last is late.

    `more` has further records by rank. Of a ring of `world` ranks: with more than
    there are clocks, some have not reported.
    """
    clocks = clocks or [RankClock(), RankClock()]
    timings = Timings()
    timings.listen()
    timings.begin_cell(1)
    outboxes = [Outbox(timings.address_for(rank)) for rank in range(len(clocks))]
    layout = layout_of(world or len(clocks), library)
    for rank, outbox in enumerate(outboxes):
        if collectives:
            outbox.send(layout)
        late = late_ms if rank == len(clocks) - 1 else 0.0
        records = tuple(
            iteration_record(i, rank, clocks[rank], world=world or len(clocks), late_ms=late).pack()
            for i in range(iterations)
        )
        records += tuple(record.pack() for record in (more or {}).get(rank, ()))
        outbox.send(Records(records))
    counts = {rank: iterations + len((more or {}).get(rank, ())) for rank in range(len(clocks))}
    assert timings.end_cell(1, counts, timeout_s=FAR_S)
    for outbox in outboxes:
        outbox.close()
    timings.close()
    timings.vms = vms or {}
    return timings
