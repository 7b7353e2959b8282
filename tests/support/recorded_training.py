"""A training without ranks, whose run is written, and what a run must answer."""

import warnings
from array import array

from timers import FAR_S, eventually

from workbench.timings import Timings
from workbench.wire import IterationRecord, Layout, Outbox
from workbench.wire.rank_messages import Records

MS = 1_000_000
RANKS = [{"rank": 0, "vm": "vm1"}, {"rank": 1, "vm": "vm2"}]


def layout(*names, number=0):
    """A layout of allreduces of the optimizer."""
    size = len(names)
    return Layout(
        number, names, (400,) * size, (1,) * size, ("allreduce",) * size, (0,) * size,
        (2,) * size, ("optimizer",) * size, ("GLOO_ALLREDUCE",) * size,
    )  # fmt: skip


LAYOUT = layout("a", "b")


def record(index, *, cell=1, exposed=4, collectives=2, **more):
    """An iteration of two ranks whose phases add up; its collectives end 2 us after they begin."""
    phases = {
        "data_ns": MS, "copy_ns": 0, "forward_ns": 5 * MS, "backward_ns": 8 * MS,
        "exposed_ns": exposed * MS, "optimizer_ns": 2 * MS, "other_ns": 0,
    }  # fmt: skip
    phases |= {name: more.pop(name) for name in phases if name in more}
    duration = sum(phases.values())
    submitted = range(10, 10 + collectives)
    return IterationRecord(
        cell, index, index * duration, duration, **phases,
        communication_ns=(exposed + 6) * MS, overlapped_ns=6 * MS,
        size_bytes=1200, tensors=3, **{
                "world_size": 2,
            "submitted": array("I", submitted),
            "responded": array("I", submitted),
            "began": array("I", submitted),
            "ended": array("I", (at + 20 for at in submitted)),
            "finished": array("I", (at + 20 for at in submitted)),
        } | more,
    )  # fmt: skip


class Training:
    """Two ranks that send records to a kernel's timings, over their real channels."""

    def __init__(self, name="local-1", *, state=None, **options):
        self.timings = Timings()
        self.timings.listen(state=state)
        self.timings.keep(name, RANKS, **options)
        self.outboxes = [Outbox(self.timings.address_for(rank)) for rank in range(2)]
        self.cell = 0

    def train(self, iterations, *, layout=LAYOUT, **options):
        """One cell; its end is when all records have come and are written."""
        self.cell += 1
        self.timings.begin_cell(self.cell)
        for outbox in self.outboxes:
            if layout is not None:
                outbox.send(layout)
            for index in range(iterations):
                packed = record(index, cell=self.cell, **options).pack()
                outbox.send(Records((packed,)))
        assert self.timings.end_cell(self.cell, {0: iterations, 1: iterations}, timeout_s=FAR_S)
        storage = self.timings._storage
        assert eventually(lambda: storage._done >= storage._requested)
        return self.timings

    def close(self):
        for outbox in self.outboxes:
            outbox.close()
        self.timings.close()
        writer = self.timings._storage._thread
        if writer is not None:  # the end of the timings waits for it only briefly
            writer.join(FAR_S)


def warned(action):
    """The warnings that an action gives; Python's own about garbage may be of other tests."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        action()
    return [one for one in given if not issubclass(one.category, ResourceWarning)]


def same(run, timings):
    """Whether a run answers as the timings it was written from.

    While a run is written, its clock offsets are corrected every 15 s and at its end.
    """
    assert eventually(lambda: len(run) == len(timings))
    by_clocks = [] if timings.closed else ["wait_us"]
    assert run.to_frame().drop(columns=by_clocks).equals(timings.to_frame().drop(columns=by_clocks))
    assert run.collectives().equals(timings.collectives())
    assert run.stragglers().equals(timings.stragglers())
    assert repr(run.summary()) == repr(timings.summary())
    assert len(run) == len(timings)
