"""Export of all ranks of a run as one trace for Perfetto."""

from __future__ import annotations

import itertools
import logging
import math
import os
import time
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

_log = logging.getLogger(__name__)

PHASES_THREAD = 1
LANES = {
    10: "transfers",
    1_000: "collectives",
    100_000: "collectives outside iterations",
}
"""The first thread of each kind. Slices that overlap in time use further threads."""
TRANSFERS, COLLECTIVES, OUTSIDE = LANES

NOTE = (
    "phases: only their sums within an iteration are known, they are stacked in their usual "
    "order; collectives: at their true times, from submitted to finished, queueing included; "
    "transfers: each buffer, in which several collectives may travel, from Horovod's response"
)
_SHOWN_COLUMNS = (
    "bytes",
    "tensors",
    "communication_us",
    "wait_us",
    "algbw_gbps",
    "busbw_gbps",
    "overlap",
)


def write(
    run: TimingsSource,
    path: str | os.PathLike[str],
    iterations: tuple[int, int] | None,
    clocks: ClocksLike | None,
) -> Path:
    """Write the trace and return its path; see `TimingsQueries.to_trace`."""
    began_s = time.monotonic()
    path = export_path(path, "path")
    rows = select_rows(run, iterations)
    aligned = align(run, rows, clocks)
    head = {"displayTimeUnit": "ms", "otherData": about(rows, aligned)}
    with open_trace(path, head) as events:
        Trace(events, aligned, rows, run.records(-1, -1), partial=iterations is not None).write(run)
    _log.info("trace of %d rows written in %.1f s", len(rows), time.monotonic() - began_s)
    return path


def about(rows: Rows, aligned: Alignment) -> dict[str, Any]:
    """Return the facts about a trace's times, as plain values."""
    uncertainty_us = {
        str(rank): round(ns / 1e3, 3) if math.isfinite(ns) else "unknown"
        for rank, ns in aligned.uncertainty_ns.items()
    }
    return {
        "producer": "gradient-workbench",
        "note": NOTE,
        "clock_alignment": aligned.method,
        "clock_uncertainty_us": uncertainty_us,
        "first_iteration": int(rows["iteration"].min()),
        "last_iteration": int(rows["iteration"].max()),
    }


class Trace:
    """Writer of a trace's events, one iteration at a time.

    Parameters
    ----------
    events
        Writer of the file.
    aligned
        The common clock.
    rows
        Rows of the iterations, in the order of `select_rows`.
    outside
        Records of collectives outside of iterations.
    partial
        Whether `rows` are only some iterations of the run. Of the collectives in `outside`, only
        those during these iterations are then written.
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
        self._outside = self._in_order(outside)
        self._origin = int(self._begins.min())
        if not partial and self._outside:
            self._origin = min(self._origin, self._outside[0][0])
        self._ended: dict[int, int] = {}
        self._lanes: dict[tuple[int, int], list[int]] = {}
        self._arrows = 0

    def write(self, run: TimingsSource) -> None:
        """Write the iterations and the collectives."""
        vm_names = run.vm_names()
        for rank in np.unique(self._rows["rank"]).tolist():
            vm = vm_names.get(rank)
            name = f"rank {rank} on {vm}" if vm else f"rank {rank}"
            self._events.name("process", rank, name, 0, rank)
            self._events.name("thread", rank, "phases", PHASES_THREAD, PHASES_THREAD)
        for iteration in iter_iterations(run, self._rows):
            self._write_iteration(iteration, self._begins[iteration.row_range].tolist())
        self._write_outside()

    def _write_iteration(self, iteration: Iteration, begins: list[int]) -> None:
        table = columns(iteration.rows)
        instances: dict[tuple[str, int], dict[int, tuple[int, int, Collective]]] = {}
        for index, row in enumerate(iteration.rows):
            rank = int(row["rank"])
            # After an alignment, consecutive iterations of a rank may overlap by some nanoseconds.
            begin = max(begins[index], self._ended.get(rank, begins[index]))
            self._ended[rank] = begin + int(row["iteration_ns"])
            figures = {name: _plain(table[name][index]) for name in _SHOWN_COLUMNS}
            self._add_phases(rank, row, begin, figures)
            self._add_counters(rank, begin, figures)
            repeats: Counter[str] = Counter()
            for collective in iteration.collectives.get(rank, []):
                tid = self._add_collective(rank, begin, collective, COLLECTIVES)
                label = collective.label
                by_rank = instances.setdefault((label, repeats[label]), {})
                by_rank[rank] = (tid, begin, collective)
                repeats[label] += 1
            self._add_transfers(rank, begin, iteration.collectives.get(rank, []))
        for by_rank in instances.values():
            self._add_arrows_from_latest(by_rank)

    def _in_order(self, records: list[CollectiveRecord]) -> list[tuple[int, CollectiveRecord]]:
        """Return the records of the trace's ranks with their start times, in order of these."""
        ranks = set(np.unique(self._rows["rank"]).tolist())
        records = [record for record in records if record.rank in ranks]
        times = [(each.record.cell, each.rank, each.record.start_ns) for each in records]
        table = np.array(times, dtype=np.int64).reshape(-1, 3)
        begins = self.aligned.to_common(*table.T)[0].tolist()
        return sorted(zip(begins, records, strict=True), key=lambda pair: pair[0])

    def _write_outside(self) -> None:
        for begin, record in self._outside:
            shown = [
                collective
                for collective in collectives(record)
                if not self._partial
                or self._origin <= begin + collective.submitted_ns <= self._ended[record.rank]
            ]
            for collective in shown:
                self._add_collective(record.rank, begin, collective, OUTSIDE)
            self._add_transfers(record.rank, begin, shown)

    def _add_phases(self, rank: int, row: Any, begin: int, figures: dict[str, Any]) -> None:
        name = f"iteration {int(row['iteration'])}"
        finite = {key: value for key, value in figures.items() if value is not None}
        args = {**finite, "cell": int(row["cell"]), "world_size": int(row["world_size"])}
        marks = {"profiled": True} if row["flags"] & Flag.PROFILED else {}
        self.add_slice(
            name, "iteration", rank, PHASES_THREAD, begin, int(row["iteration_ns"]), args | marks
        )
        for phase in PHASES:
            duration = int(row[f"{phase}_ns"])
            if duration > 0:
                args = {"place": "stacked: only the sum is known"}
                self.add_slice(phase, "phase", rank, PHASES_THREAD, begin, duration, args | marks)
                begin += duration

    def _add_counters(self, rank: int, begin: int, figures: dict[str, Any]) -> None:
        for name in ("algbw", "busbw"):
            value = figures[f"{name}_gbps"]
            if value is not None:
                self._events.add(
                    ph="C", name=f"{name} (Gbit/s)", pid=rank, tid=0, ts=self._us(begin),
                    args={"Gbit/s": value},
                )  # fmt: skip

    def _add_collective(
        self, rank: int, begin: int, collective: Collective, first_lane: int
    ) -> int:
        """Write a collective's slice, and return its thread."""
        submitted = begin + collective.submitted_ns
        finished = begin + collective.finished_ns
        tid = self._take_lane(rank, first_lane, submitted, max(submitted, finished))
        rates = {"algbw_gbps": collective.algbw_gbps, "busbw_gbps": collective.busbw_gbps}
        args = {
            "kind": collective.kind,
            "bytes": collective.size_bytes,
            "tensors": collective.tensors,
            "ranks": collective.ranks,
            **{name: round(gbps, 6) for name, gbps in rates.items() if gbps is not None},
            **({"library": collective.library} if collective.library else {}),
            **collective.parts_us(),
        }
        duration = max(0, finished - submitted)
        self.add_slice(collective.label, "collective", rank, tid, submitted, duration, args)
        return tid

    def _add_transfers(self, rank: int, begin: int, rank_collectives: list[Collective]) -> None:
        """Write each buffer with its copies and its transfer, on the thread of the transfers."""
        buffers: dict[tuple[int, int, int], list[Collective]] = {}
        for collective in rank_collectives:
            times_ns = collective.responded_ns, collective.began_ns, collective.ended_ns
            if times_ns[0] is not None and times_ns[1] is not None and times_ns[2] is not None:
                key = (times_ns[0], times_ns[1], times_ns[2])
                buffers.setdefault(key, []).append(collective)
        for key, members in sorted(buffers.items()):
            finished = max(member.finished_ns for member in members)
            times = [begin + time_ns for time_ns in (*key, max(finished, key[-1]))]
            tid = self._take_lane(rank, TRANSFERS, times[0], times[-1])
            args = {
                "bytes": sum(member.size_bytes for member in members),
                "tensors": sum(member.tensors for member in members),
                "collectives": [member.label for member in members],
            }
            name = members[0].library
            self.add_slice(name, "buffer", rank, tid, times[0], times[-1] - times[0], args)
            for part, (start, end) in zip(
                ("copy in", "transfer", "copy out"), itertools.pairwise(times), strict=True
            ):
                if end > start:
                    self.add_slice(part, "transfer", rank, tid, start, end - start, {})

    def _take_lane(self, rank: int, first: int, submitted: int, finished: int) -> int:
        """Reserve and return the first free thread, because slices of a thread must not overlap."""
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

    def _add_arrows_from_latest(self, by_rank: dict[int, tuple[int, int, Collective]]) -> None:
        """Write arrows from the rank that submitted a collective last to the other ranks.

        `by_rank` has each rank's thread, start of the iteration, and collective.
        """
        ring_sizes = {collective.ranks for _, _, collective in by_rank.values()}
        if len(by_rank) < 2 or {len(by_rank)} != ring_sizes:
            # The latest rank may be missing, or the members of several process sets are unknown.
            return
        submitted = {
            rank: begin + collective.submitted_ns
            for rank, (_, begin, collective) in by_rank.items()
        }
        last = max(submitted, key=lambda rank: submitted[rank])
        uncertainty = self.aligned.uncertainty_ns
        for rank, (tid, begin, collective) in by_rank.items():
            early = submitted[last] - submitted[rank]
            arrives = submitted[last]
            # The clocks do not show who was first if the difference is within their uncertainty.
            if (
                early <= uncertainty[rank] + uncertainty[last]
                or arrives > begin + collective.finished_ns
            ):
                continue
            self._arrows += 1
            common = {"name": "waited for", "cat": "wait", "id": self._arrows}
            ts = self._us(arrives)
            self._events.add(ph="s", pid=last, tid=by_rank[last][0], ts=ts, **common)
            self._events.add(ph="f", bp="e", pid=rank, tid=tid, ts=ts, **common)

    def add_slice(
        self,
        name: str,
        cat: str,
        rank: int,
        tid: int,
        begin: int,
        duration: int,
        args: dict[str, Any],
    ) -> None:
        """Write a slice of a rank's thread; times in nanoseconds of the common clock."""
        self._events.add(
            ph="X", name=name, cat=cat, pid=rank, tid=tid, ts=self._us(begin), dur=duration / 1e3,
            args=args,
        )  # fmt: skip

    def name_thread(self, rank: int, name: str, tid: int) -> None:
        """Name a thread, and sort the threads by their numbers."""
        self._events.name("thread", rank, name, tid, tid)

    def add_flow(self, event: ProfilerEvent, rank: int, tid: int, t_ns: int) -> None:
        """Write one end of an arrow that PyTorch's profiler has recorded."""
        self._events.add(
            ph=event.phase, name=event.name, cat=event.category,
            id=f"{rank}.{event.category}.{event.number}", pid=rank, tid=tid, ts=self._us(t_ns),
            bp="e" if event.phase == "f" else None,
        )  # fmt: skip

    def _us(self, t_ns: int) -> float:
        return (t_ns - self._origin) / 1e3


def _plain(value: Any) -> float | int | None:
    plain = value.item()
    return None if plain != plain else plain
