"""512 simulated ranks at 20 iterations/s into one kernel.

Real outboxes in a few processes send what real ranks send: bundles of records
with 161 collectives, ten times a second. What is measured is the process that
receives: its processor time, all threads counted, and its memory.
"""

import itertools
import multiprocessing
import os
import resource
import time
from array import array

RANKS = 512
PROCESSES = 4
COLLECTIVES = 161
PER_S = 20
BUNDLES_PER_S = 10
SECONDS = 15
LIMIT_CORES = 0.5


def measure():
    """Print what arrived, and what it took; one reading every third of the time."""
    from workbench.timings import Timings
    from workbench.timings.store import COLLECTIVES_LIMIT, ROW, ROW_LIMIT

    timings = Timings()
    timings.listen()
    addresses = [timings.address_for(rank) for rank in range(RANKS)]
    spawn = multiprocessing.get_context("spawn")
    ready, go = spawn.Barrier(PROCESSES + 1), spawn.Value("d", 0.0)
    sent = spawn.Array("l", PROCESSES)
    feeders = [
        spawn.Process(target=_feed, args=(place, addresses[place::PROCESSES], ready, go, sent))
        for place in range(PROCESSES)
    ]
    for feeder in feeders:
        feeder.start()
    ready.wait(120)
    go.value = time.time() + 1
    time.sleep(1)
    used, began, held = time.process_time(), time.monotonic(), len(timings)
    third = SECONDS / 3
    for turn in range(1, 4):
        time.sleep(max(0.0, began + turn * third - time.monotonic()))
        now, rows = time.process_time(), len(timings)
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        cores, came = (now - used) / third, max(1, rows - held)
        print(
            f"{turn * third:4.0f} s: {came / third:,.0f} records/s, {cores:.2f} cores "
            f"({cores * third / came * 1e6:.0f} us a record), {rss:,.0f} MiB at most"
        )
        used, held = now, rows
    for feeder in feeders:
        feeder.join(60)
    deadline = time.monotonic() + 10
    while len(timings) < sum(sent) and time.monotonic() < deadline:
        time.sleep(0.05)
    lost = sum(sent) - len(timings)
    rate = sum(sent) / SECONDS / RANKS
    print(
        f"{sum(sent):,} records sent ({rate:.1f} a rank and second), {lost} did not arrive, "
        f"{timings.dropped} dropped; at most {LIMIT_CORES} cores are asked"
    )
    rows = ROW_LIMIT * ROW.itemsize / 2**20
    print(
        f"held at most: {ROW_LIMIT:,} rows ({rows:.0f} MiB), and the single collectives of "
        f"{COLLECTIVES_LIMIT:,} records ({COLLECTIVES_LIMIT * COLLECTIVES * 12 / 2**20:.0f} MiB)"
    )
    timings.close()


def _feed(place, addresses, ready, go, sent):
    """Send in the name of some ranks."""
    from workbench.wire import Message, Outbox

    os.nice(5)
    outboxes = [Outbox(address) for address in addresses]
    names = [f"layer{at}.weight" for at in range(COLLECTIVES)]
    for outbox in outboxes:
        outbox.send(Message("layout", _layout(names)))
        outbox.flush()
    ready.wait(120)
    time.sleep(max(0.0, go.value - time.time()))
    each = PER_S // BUNDLES_PER_S
    count = itertools.count()
    for turn in range(SECONDS * BUNDLES_PER_S):
        bundle = Message("records", {}, tuple(_record(next(count)) for _ in range(each)))
        for outbox in outboxes:
            outbox.send(bundle)
        time.sleep(max(0.0, go.value + (turn + 1) / BUNDLES_PER_S - time.time()))
    for outbox in outboxes:
        outbox.close()
    sent[place] = SECONDS * PER_S * len(outboxes) - sum(outbox.dropped for outbox in outboxes)


def _layout(names):
    count = len(names)
    content = {"number": 0, "names": names, "sizes_bytes": [600_000] * count}
    content |= {"tensors": [1] * count, "kinds": ["allreduce"] * count}
    return content | {"process_sets": [0] * count, "ranks": [RANKS] * count, "by": ["ddp"] * count}


def _record(index):
    from workbench.wire import IterationRecord

    ms = 1_000_000
    phases = {name: 4 * ms for name in IterationRecord.__dataclass_fields__ if name in _PHASES}
    times = array("I", range(0, COLLECTIVES * 1000, 1000))
    return IterationRecord(
        cell=1, index=index, start_ns=index * 50 * ms, duration_ns=len(phases) * 4 * ms, **phases,
        communication_ns=16 * ms, overlapped_ns=12 * ms, size_bytes=600_000 * COLLECTIVES,
        tensors=COLLECTIVES, world_size=RANKS, submitted=times, unfinished=times, finished=times,
    ).pack()  # fmt: skip


_PHASES = {
    f"{name}_ns"
    for name in ("data", "copy", "forward", "backward", "exposed", "optimizer", "other")
}
