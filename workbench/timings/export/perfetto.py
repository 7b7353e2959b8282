"""All ranks of a run as one trace for Perfetto."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.timings.derive import columns
from workbench.timings.export.alignment import Alignment, ClocksLike, align
from workbench.timings.export.events import EventWriter, open_trace
from workbench.timings.export.walk import Collective, Iteration, chosen, walk
from workbench.timings.store import PHASES, Rows

if TYPE_CHECKING:
    from workbench.timings.export.door import Exports

PHASES_THREAD = 1
FIRST_LANE = 10
"""Thread of the first collectives; those under way at once lie on further ones."""

NOTE = (
    "phases: only their sums within an iteration are known, they are stacked in their usual "
    "order; collectives: at their true times, from submitted to first seen finished, queueing "
    "included"
)
_SHOWN = ("bytes", "tensors", "communication_us", "wait_us", "algbw_gbps", "busbw_gbps", "overlap")


def write(
    run: Exports,
    path: str | os.PathLike[str],
    iterations: tuple[int, int] | None,
    clocks: ClocksLike | None,
) -> Path:
    """Write the trace; see `Exports.to_trace`."""
    path = Path(path)
    rows = chosen(run, iterations)
    aligned = align(run, rows, clocks)
    head = {"displayTimeUnit": "ms", "otherData": about(rows, aligned)}
    with open_trace(path, head) as events:
        _Trace(events, run.vms, aligned, rows).write(run)
    return path


def about(rows: Rows, aligned: Alignment) -> dict[str, Any]:
    """Return what a reader must know of a trace's times; all plain values."""
    unsure = {
        str(rank): round(ns / 1e3, 3) if math.isfinite(ns) else "unknown"
        for rank, ns in aligned.uncertainty_ns.items()
    }
    return {
        "producer": "gradient-workbench",
        "note": NOTE,
        "clock_alignment": aligned.method,
        "clock_uncertainty_us": unsure,
        "first_iteration": int(rows["iteration"].min()),
        "last_iteration": int(rows["iteration"].max()),
    }


class _Trace:
    """Writes a trace's events, an iteration at a time."""

    def __init__(
        self, events: EventWriter, vms: dict[int, str], aligned: Alignment, rows: Rows
    ) -> None:
        self._events = events
        self._aligned = aligned
        self._all = rows
        ranks, first = np.unique(rows["rank"], return_index=True)
        begins = [aligned(int(rows["rank"][at]), int(rows["start_ns"][at])) for at in first]
        # a collective may have been submitted before the first window that is written
        self._origin = min(begins)
        self._ended = dict.fromkeys(ranks.tolist(), self._origin)
        self._lanes: dict[int, list[int]] = {rank: [] for rank in ranks.tolist()}
        self._arrows = 0
        for rank in ranks.tolist():
            vm = vms.get(rank)
            events.name("process", rank, f"rank {rank} on {vm}" if vm else f"rank {rank}", 0, rank)
            events.name("thread", rank, "phases", PHASES_THREAD, PHASES_THREAD)

    def write(self, run: Exports) -> None:
        for iteration in walk(run, self._all):
            self._iteration(iteration)

    def _iteration(self, iteration: Iteration) -> None:
        table = columns(iteration.rows)
        places: dict[int, tuple[int, int, Collective]] = {}
        for at, row in enumerate(iteration.rows):
            rank = int(row["rank"])
            # windows of a rank follow each other; an alignment may put them some ns across
            begin = max(self._aligned(rank, int(row["start_ns"])), self._ended[rank])
            self._ended[rank] = begin + int(row["iteration_ns"])
            figures = {name: _plain(table[name][at]) for name in _SHOWN}
            self._phases(rank, row, begin, figures)
            self._counters(rank, begin, figures)
            for one in iteration.collectives.get(rank, []):
                tid = self._collective(rank, begin, one, int(row["world_size"]))
                if rank not in places or one.finished_ns >= places[rank][2].finished_ns:
                    places[rank] = (tid, begin, one)
        self._arrows_from_the_last(places)

    def _phases(self, rank: int, row: Any, begin: int, figures: dict[str, Any]) -> None:
        name = f"iteration {int(row['iteration'])}"
        known = {key: value for key, value in figures.items() if value is not None}
        args = {**known, "cell": int(row["cell"]), "world_size": int(row["world_size"])}
        self._slice(name, "iteration", rank, PHASES_THREAD, begin, int(row["iteration_ns"]), args)
        for phase in PHASES:
            took = int(row[f"{phase}_ns"])
            if took > 0:
                args = {"place": "stacked: only the sum is known"}
                self._slice(phase, "phase", rank, PHASES_THREAD, begin, took, args)
                begin += took

    def _counters(self, rank: int, begin: int, figures: dict[str, Any]) -> None:
        for name in ("algbw", "busbw"):
            value = figures[f"{name}_gbps"]
            if value is not None:
                self._events.add(
                    ph="C", name=f"{name} (Gbit/s)", pid=rank, tid=0, ts=self._us(begin),
                    args={"Gbit/s": value},
                )  # fmt: skip

    def _collective(self, rank: int, begin: int, one: Collective, world: int) -> int:
        submitted, finished = begin + one.submitted_ns, begin + one.finished_ns
        tid = FIRST_LANE + self._lane(rank, submitted, max(submitted, finished))
        speeds = {"algbw_gbps": one.algbw_gbps, "busbw_gbps": one.busbw_gbps(world)}
        args = {
            "kind": one.kind,
            "bytes": one.size_bytes,
            "tensors": one.tensors,
            **{name: round(gbps, 6) for name, gbps in speeds.items() if gbps is not None},
            "last_unfinished_us": self._us(begin + one.unfinished_ns),
            "first_finished_us": self._us(finished),
        }
        took = max(0, finished - submitted)
        self._slice(one.label, "collective", rank, tid, submitted, took, args)
        return tid

    def _lane(self, rank: int, submitted: int, finished: int) -> int:
        """Return the first lane that is free: slices of one thread must not cross."""
        lanes = self._lanes[rank]
        for lane, free_at in enumerate(lanes):
            if free_at <= submitted:
                lanes[lane] = finished
                return lane
        lanes.append(finished)
        tid = FIRST_LANE + len(lanes) - 1
        name = "collectives" if len(lanes) == 1 else f"collectives ({len(lanes)})"
        self._events.name("thread", rank, name, tid, tid)
        return len(lanes) - 1

    def _arrows_from_the_last(self, places: dict[int, tuple[int, int, Collective]]) -> None:
        """Lead from the rank that submitted the last collective last to those that waited."""
        if len({one.name for _, _, one in places.values()}) != 1 or len(places) < 2:
            return
        submitted = {rank: begin + one.submitted_ns for rank, (_, begin, one) in places.items()}
        last = max(submitted, key=lambda rank: submitted[rank])
        unsure = self._aligned.uncertainty_ns
        for rank, (tid, begin, one) in places.items():
            early = submitted[last] - submitted[rank]
            arrives = submitted[last]
            # none where clocks are too unsure to say who was late
            if early <= unsure[rank] + unsure[last] or arrives > begin + one.finished_ns:
                continue
            self._arrows += 1
            common = {"name": "waited for", "cat": "wait", "id": self._arrows}
            ts = self._us(arrives)
            self._events.add(ph="s", pid=last, tid=places[last][0], ts=ts, **common)
            self._events.add(ph="f", bp="e", pid=rank, tid=tid, ts=ts, **common)

    def _slice(
        self, name: str, cat: str, rank: int, tid: int, begin: int, took: int, args: dict[str, Any]
    ) -> None:
        self._events.add(
            ph="X", name=name, cat=cat, pid=rank, tid=tid, ts=self._us(begin), dur=took / 1e3,
            args=args,
        )  # fmt: skip

    def _us(self, t_ns: int) -> float:
        return (t_ns - self._origin) / 1e3


def _plain(value: Any) -> float | int | None:
    plain = value.item()
    return None if plain != plain else plain
