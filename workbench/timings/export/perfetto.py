"""All ranks of a run as one trace for Perfetto."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from workbench.timings.derive import columns
from workbench.timings.export.alignment import Alignment, align
from workbench.timings.export.events import EventWriter, export_path, open_trace
from workbench.timings.export.iterations import (
    Collective,
    Iteration,
    collectives,
    iter_iterations,
    select_rows,
)
from workbench.timings.export.profiler_trace import ProfilerEvent
from workbench.timings.source import ClocksLike, TimingsSource
from workbench.timings.store import PHASES, CollectiveRecord, Rows
from workbench.wire import Flag

PHASES_THREAD = 1
LANES = {
    10: "transfers",
    1_000: "collectives",
    100_000: "collectives outside iterations",
}
"""The first thread of each kind; what happens at the same time uses further threads."""
TRANSFERS, COLLECTIVES, OUTSIDE = LANES

NOTE = (
    "phases: only their sums within an iteration are known, they are stacked in their usual "
    "order; collectives: at their true times, from submitted to finished, queueing included; "
    "transfers: each buffer, in which several collectives may travel, from Horovod's response"
)
_SHOWN = ("bytes", "tensors", "communication_us", "wait_us", "algbw_gbps", "busbw_gbps", "overlap")


def write(
    run: TimingsSource,
    path: str | os.PathLike[str],
    iterations: tuple[int, int] | None,
    clocks: ClocksLike | None,
) -> Path:
    """Write the trace; see `TimingsQueries.to_trace`."""
    path = export_path(path, "path")
    rows = select_rows(run, iterations)
    aligned = align(run, rows, clocks)
    head = {"displayTimeUnit": "ms", "otherData": about(rows, aligned)}
    with open_trace(path, head) as events:
        Trace(events, aligned, rows, run.records(-1, -1), partial=iterations is not None).write(run)
    return path


def about(rows: Rows, aligned: Alignment) -> dict[str, Any]:
    """Return the facts about a trace's times, as plain values."""
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


class Trace:
    """Writes a trace's events, an iteration at a time.

    Parameters
    ----------
    aligned
        The common clock.
    outside
        Collectives outside of iterations.
    partial
        Whether only some iterations are written; of `outside`, those in their time.
    """

    def __init__(
        self,
        events: EventWriter,
        aligned: Alignment,
        rows: Rows,
        outside: list[CollectiveRecord],
        *,
        partial: bool,
    ) -> None:
        self._events = events
        self.aligned = aligned
        self._rows = rows
        self._partial = partial
        self._begins = aligned.begins(rows)
        self._outside = self._dated(outside)
        self._origin = int(self._begins.min())
        if not partial and self._outside:
            self._origin = min(self._origin, self._outside[0][0])
        self._ended: dict[int, int] = {}
        self._lanes: dict[tuple[int, int], list[int]] = {}
        self._arrows = 0

    def write(self, run: TimingsSource) -> None:
        """Write the iterations and the collectives."""
        vms = run.vm_names()
        for rank in np.unique(self._rows["rank"]).tolist():
            vm = vms.get(rank)
            name = f"rank {rank} on {vm}" if vm else f"rank {rank}"
            self._events.name("process", rank, name, 0, rank)
            self._events.name("thread", rank, "phases", PHASES_THREAD, PHASES_THREAD)
        for iteration in iter_iterations(run, self._rows):
            self._iteration(iteration, self._begins[iteration.place].tolist())
        self._write_outside()

    def _iteration(self, iteration: Iteration, begins: list[int]) -> None:
        table = columns(iteration.rows)
        same: dict[tuple[str, int], dict[int, tuple[int, int, Collective]]] = {}
        for at, row in enumerate(iteration.rows):
            rank = int(row["rank"])
            # an alignment may let consecutive iterations of a rank overlap by some ns
            begin = max(begins[at], self._ended.get(rank, begins[at]))
            self._ended[rank] = begin + int(row["iteration_ns"])
            figures = {name: _plain(table[name][at]) for name in _SHOWN}
            self._phases(rank, row, begin, figures)
            self._counters(rank, begin, figures)
            seen: Counter[str] = Counter()
            for one in iteration.collectives.get(rank, []):
                tid = self._collective(rank, begin, one, COLLECTIVES)
                places = same.setdefault((one.label, seen[one.label]), {})
                places[rank] = (tid, begin, one)
                seen[one.label] += 1
            self._transfers(rank, begin, iteration.collectives.get(rank, []))
        for places in same.values():
            self._arrows_from_the_latest(places)

    def _dated(self, records: list[CollectiveRecord]) -> list[tuple[int, CollectiveRecord]]:
        """Return the records of the ranks in the trace with their begins, in order."""
        known = set(np.unique(self._rows["rank"]).tolist())
        records = [one for one in records if one.rank in known]
        places = [(one.record.cell, one.rank, one.record.start_ns) for one in records]
        table = np.array(places, dtype=np.int64).reshape(-1, 3)
        begins = self.aligned.to_common(*table.T)[0].tolist()
        return sorted(zip(begins, records, strict=True), key=lambda pair: pair[0])

    def _write_outside(self) -> None:
        for begin, record in self._outside:
            shown = [
                one
                for one in collectives(record)
                if not self._partial
                or self._origin <= begin + one.submitted_ns <= self._ended[record.rank]
            ]
            for one in shown:
                self._collective(record.rank, begin, one, OUTSIDE)
            self._transfers(record.rank, begin, shown)

    def _phases(self, rank: int, row: Any, begin: int, figures: dict[str, Any]) -> None:
        name = f"iteration {int(row['iteration'])}"
        known = {key: value for key, value in figures.items() if value is not None}
        args = {**known, "cell": int(row["cell"]), "world_size": int(row["world_size"])}
        marked = {"profiled": True} if row["flags"] & Flag.PROFILED else {}
        self.add_slice(
            name, "iteration", rank, PHASES_THREAD, begin, int(row["iteration_ns"]), args | marked
        )
        for phase in PHASES:
            took = int(row[f"{phase}_ns"])
            if took > 0:
                args = {"place": "stacked: only the sum is known"}
                self.add_slice(phase, "phase", rank, PHASES_THREAD, begin, took, args | marked)
                begin += took

    def _counters(self, rank: int, begin: int, figures: dict[str, Any]) -> None:
        for name in ("algbw", "busbw"):
            value = figures[f"{name}_gbps"]
            if value is not None:
                self._events.add(
                    ph="C", name=f"{name} (Gbit/s)", pid=rank, tid=0, ts=self._us(begin),
                    args={"Gbit/s": value},
                )  # fmt: skip

    def _collective(self, rank: int, begin: int, one: Collective, first_lane: int) -> int:
        submitted, finished = begin + one.submitted_ns, begin + one.finished_ns
        tid = self._lane(rank, first_lane, submitted, max(submitted, finished))
        speeds = {"algbw_gbps": one.algbw_gbps, "busbw_gbps": one.busbw_gbps}
        args = {
            "kind": one.kind,
            "bytes": one.size_bytes,
            "tensors": one.tensors,
            "ranks": one.ranks,
            **{name: round(gbps, 6) for name, gbps in speeds.items() if gbps is not None},
            **({"library": one.library} if one.library else {}),
            **one.parts_us(),
        }
        took = max(0, finished - submitted)
        self.add_slice(one.label, "collective", rank, tid, submitted, took, args)
        return tid

    def _transfers(self, rank: int, begin: int, every: list[Collective]) -> None:
        """Draw each buffer with its copies and its transfer, on the thread of the transfers."""
        buffers: dict[tuple[int, int, int], list[Collective]] = {}
        for one in every:
            if (
                one.responded_ns is not None
                and one.began_ns is not None
                and one.ended_ns is not None
            ):
                key = (one.responded_ns, one.began_ns, one.ended_ns)
                buffers.setdefault(key, []).append(one)
        for key, members in sorted(buffers.items()):
            finished = max(one.finished_ns for one in members)
            times = [begin + at for at in (*key, max(finished, key[-1]))]
            tid = self._lane(rank, TRANSFERS, times[0], times[-1])
            args = {
                "bytes": sum(one.size_bytes for one in members),
                "tensors": sum(one.tensors for one in members),
                "collectives": [one.label for one in members],
            }
            name = members[0].library
            self.add_slice(name, "buffer", rank, tid, times[0], times[-1] - times[0], args)
            for part, (start, end) in zip(
                ("copy in", "transfer", "copy out"), itertools.pairwise(times), strict=True
            ):
                if end > start:
                    self.add_slice(part, "transfer", rank, tid, start, end - start, {})

    def _lane(self, rank: int, first: int, submitted: int, finished: int) -> int:
        """Return the first free thread, because slices of one thread must not overlap."""
        lanes = self._lanes.setdefault((rank, first), [])
        for lane, free_at in enumerate(lanes):
            if free_at <= submitted:
                lanes[lane] = finished
                return first + lane
        lanes.append(finished)
        tid = first + len(lanes) - 1
        name = LANES[first] if len(lanes) == 1 else f"{LANES[first]} ({len(lanes)})"
        self._events.name("thread", rank, name, tid, tid)
        return tid

    def _arrows_from_the_latest(self, places: dict[int, tuple[int, int, Collective]]) -> None:
        """Draw arrows from the rank that submitted a collective last to the others."""
        if len(places) < 2 or {len(places)} != {one.ranks for _, _, one in places.values()}:
            return  # the latest may be missing; and who was in which of several process sets?
        submitted = {rank: begin + one.submitted_ns for rank, (_, begin, one) in places.items()}
        last = max(submitted, key=lambda rank: submitted[rank])
        unsure = self.aligned.uncertainty_ns
        for rank, (tid, begin, one) in places.items():
            early = submitted[last] - submitted[rank]
            arrives = submitted[last]
            # no arrow if the difference is less than the clocks' uncertainty
            if early <= unsure[rank] + unsure[last] or arrives > begin + one.finished_ns:
                continue
            self._arrows += 1
            common = {"name": "waited for", "cat": "wait", "id": self._arrows}
            ts = self._us(arrives)
            self._events.add(ph="s", pid=last, tid=places[last][0], ts=ts, **common)
            self._events.add(ph="f", bp="e", pid=rank, tid=tid, ts=ts, **common)

    def add_slice(
        self, name: str, cat: str, rank: int, tid: int, begin: int, took: int, args: dict[str, Any]
    ) -> None:
        """Write a slice of a rank's thread; times in nanoseconds of the common clock."""
        self._events.add(
            ph="X", name=name, cat=cat, pid=rank, tid=tid, ts=self._us(begin), dur=took / 1e3,
            args=args,
        )  # fmt: skip

    def name_thread(self, rank: int, name: str, tid: int) -> None:
        """Name a thread, and place it by its number."""
        self._events.name("thread", rank, name, tid, tid)

    def add_flow(self, event: ProfilerEvent, rank: int, tid: int, at: int) -> None:
        """Write an end of an arrow that PyTorch's profiler has recorded."""
        self._events.add(
            ph=event.phase, name=event.name, cat=event.category,
            id=f"{rank}.{event.category}.{event.number}", pid=rank, tid=tid, ts=self._us(at),
            bp="e" if event.phase == "f" else None,
        )  # fmt: skip

    def _us(self, t_ns: int) -> float:
        return (t_ns - self._origin) / 1e3


def _plain(value: Any) -> float | int | None:
    plain = value.item()
    return None if plain != plain else plain
