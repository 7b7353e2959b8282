"""One trace per rank for HolisticTraceAnalysis, in the format of PyTorch's profiler.

The parser of version 0.5.0 (`hta/common/trace.py` and `trace_file.py`) requires:

- a line with ``"rank": N``
- a slice ``ProfilerStep#N`` for each iteration
- kernels with the arguments `stream` and `correlation`, each launched within an iteration by a CPU
  event with the same `correlation`
- names that begin with ``ncclKernel`` for communication

Times are integer microseconds, because the parser's rounding of other times makes short slices
negative.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from workbench.timings.export.alignment import align
from workbench.timings.export.events import EventWriter, export_path, open_trace, writing
from workbench.timings.export.iterations import Collective, iter_iterations, select_rows
from workbench.timings.export.perfetto import about
from workbench.timings.source import ClocksLike, TimingsSource
from workbench.timings.store import PHASES

_log = logging.getLogger(__name__)

_COMPUTE = ("forward", "backward", "optimizer")
"""Phases that represent kernels. The other phases do not keep a device busy."""
_COMPUTE_STREAM = 7
_COMMUNICATION_STREAM = 20
_HOST = 1
_DEVICE = 0
_FIRST_CORRELATION = 1 << 20
"""A large number, because the parser's tables use the narrowest integer type for these numbers, and
the same type for row numbers."""
_KINDS = {
    "allreduce": "AllReduce",
    "allgather": "AllGather",
    "broadcast": "Broadcast",
    "reducescatter": "ReduceScatter",
    "alltoall": "AllToAll",
}


def write(
    run: TimingsSource,
    folder: str | os.PathLike[str],
    iterations: tuple[int, int] | None,
    clocks: ClocksLike | None,
) -> Path:
    """Write the traces and return their folder; see `TimingsQueries.to_hta`."""
    folder = export_path(folder, "folder")
    rows = select_rows(run, iterations)
    aligned = align(run, rows, clocks)
    first = rows[np.unique(rows["rank"], return_index=True)[1]]
    begins = aligned.begins(rows)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as files:
        traces = {}
        for row in first:
            rank = int(row["rank"])
            head = {
                "distributedInfo": {"rank": rank, "world_size": int(row["world_size"])},
                "schemaVersion": 1,
                "otherData": {
                    **about(rows, aligned),
                    "kernels": "phases and collectives, as the ranks timed them; none of a GPU",
                },
            }
            path = folder / f"rank{rank}.json.gz"
            events = files.enter_context(open_trace(path, head))
            traces[rank] = _RankTrace(events, int(begins.min()))
        for iteration in iter_iterations(run, rows):
            begins_ns = begins[iteration.row_range].tolist()
            for begin, row in zip(begins_ns, iteration.rows, strict=True):
                rank = int(row["rank"])
                traces[rank].write_iteration(begin, row, iteration.collectives.get(rank, []))
    _log.info("traces of %d ranks and %d rows written for HTA", len(traces), len(rows))
    return folder


class _RankTrace:
    """Writer of one rank's events; times in nanoseconds of the common clock.

    Parameters
    ----------
    events
        Writer of the rank's file.
    origin
        The time that is 0 in the trace.
    """

    def __init__(self, events: EventWriter, origin: int) -> None:
        self._events = events
        self._origin = origin
        self._ended = origin
        self._last_correlation = _FIRST_CORRELATION

    def write_iteration(self, begin: int, row: Any, collectives: list[Collective]) -> None:
        begin = max(begin, self._ended)
        self._ended = begin + int(row["iteration_ns"])
        step = f"ProfilerStep#{int(row['iteration'])}"
        self._add_host_event(step, "user_annotation", begin, self._ended)
        for collective in collectives:
            name = f"ncclKernel_{_KINDS.get(collective.kind, collective.kind)}_{collective.name}"
            start = begin + collective.submitted_ns
            end = begin + collective.finished_ns
            args = {
                "bytes": collective.size_bytes,
                "tensors": collective.tensors,
                **collective.parts_us(),
            }
            self._add_kernel(name, _COMMUNICATION_STREAM, (start, max(start, end)), start, args)
        start = begin
        for phase in PHASES:
            until = start + int(row[f"{phase}_ns"])
            if phase in _COMPUTE:
                self._add_kernel(phase, _COMPUTE_STREAM, (start, until), until, {})
            else:
                self._add_host_event(phase, "cpu_op", start, until)
            start = until

    def _add_kernel(
        self, name: str, stream: int, span: tuple[int, int], until: int, args: dict[str, Any]
    ) -> None:
        """Write a kernel over `span`, launched by a host event that ends at `until`."""
        self._last_correlation += 1
        linked = {"correlation": self._last_correlation}
        self._add_host_event(name, "cpu_op", span[0], until, linked)
        ts = self._us(span[0])
        dur = self._us(span[1]) - ts
        self._events.add(
            ph="X", name=name, cat="kernel", pid=_DEVICE, tid=stream, ts=ts, dur=dur,
            args={"device": _DEVICE, "stream": stream, **linked, **args},
        )  # fmt: skip

    def _add_host_event(
        self, name: str, cat: str, begin: int, end: int, args: dict[str, Any] | None = None
    ) -> None:
        ts = self._us(begin)
        dur = self._us(end) - ts
        self._events.add(
            ph="X", name=name, cat=cat, pid=_HOST, tid=1, ts=ts, dur=dur, args=args or {}
        )

    def _us(self, t_ns: int) -> int:
        return round((t_ns - self._origin) / 1e3)
