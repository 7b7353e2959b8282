"""Iterations whose phases add up, in a store, without ranks."""

from workbench.timings.store import Store
from workbench.wire import IterationRecord

MS = 1_000_000


def record(
    index, *, cell=1, communication=10, exposed=4, data=1, world=2, size=1_000_000, other=0, **more
):
    """An iteration whose phases add up; times in milliseconds."""
    phases = {
        "data_ns": round(data * MS), "copy_ns": 0, "forward_ns": 5 * MS, "backward_ns": 8 * MS,
        "exposed_ns": round(exposed * MS), "optimizer_ns": 2 * MS, "other_ns": other * MS,
    }  # fmt: skip
    duration = sum(phases.values())
    return IterationRecord(
        cell, index, index * duration, duration, **phases,
        communication_ns=round(communication * MS),
        overlapped_ns=round((communication - exposed) * MS),
        size_bytes=size, tensors=6, world_size=world, **more,
    )  # fmt: skip


def store(*rows):
    """A store with (rank, record) rows."""
    filled = Store()
    for rank, row in rows:
        filled.add(rank, row)
    return filled


def both(indices, late=0, **options):
    """Rows of two ranks; rank 1 arrives `late` ms after rank 0."""
    for index in indices:
        communication, exposed = options.get("communication", 10), options.get("exposed", 4)
        waited = {"communication": communication + late, "exposed": exposed + late}
        yield 0, record(index, **options | waited)
        yield 1, record(index, data=1 + late, **options)
