"""A trace per rank for HolisticTraceAnalysis, in the format of PyTorch's profiler.

Its parser requires (0.5.0, `hta/common/trace.py` and `trace_file.py`): a line with
``"rank": N``; a slice ``ProfilerStep#N`` per iteration; kernels with the arguments `stream` and
`correlation`, each launched within an iteration by a CPU event with the same `correlation`;
names that begin with ``ncclKernel`` for communication. Times are integer microseconds, because
its rounding of other times makes short slices negative.
"""

from __future__ import annotations

import contextlib
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

_COMPUTE = ("forward", "backward", "optimizer")
"""Phases that represent kernels; the others keep no device busy."""
_COMPUTE_STREAM, _COMMUNICATION_STREAM = 7, 20
_HOST, _DEVICE = 1, 0
_FIRST_CORRELATION = 1 << 20
"""Large, because its tables use the narrowest type of these numbers, also for row numbers."""
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
    """Write the traces; see `TimingsQueries.to_hta`."""
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
            rank, world = int(row["rank"]), int(row["world_size"])
            head = {
                "distributedInfo": {"rank": rank, "world_size": world},
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
            at = begins[iteration.place].tolist()
            for begin, row in zip(at, iteration.rows, strict=True):
                rank = int(row["rank"])
                traces[rank].iteration(begin, row, iteration.collectives.get(rank, []))
    return folder


class _RankTrace:
    """Writes one rank's events."""

    def __init__(self, events: EventWriter, origin: int) -> None:
        self._events = events
        self._origin = origin
        self._ended = origin
        self._launched = _FIRST_CORRELATION

    def iteration(self, begin: int, row: Any, collectives: list[Collective]) -> None:
        begin = max(begin, self._ended)
        self._ended = begin + int(row["iteration_ns"])
        self._host(f"ProfilerStep#{int(row['iteration'])}", "user_annotation", begin, self._ended)
        for one in collectives:
            name = f"ncclKernel_{_KINDS.get(one.kind, one.kind)}_{one.name}"
            start, end = begin + one.submitted_ns, begin + one.finished_ns
            args = {"bytes": one.size_bytes, "tensors": one.tensors, **one.parts_us()}
            self._launch(name, _COMMUNICATION_STREAM, (start, max(start, end)), start, args)
        at = begin
        for phase in PHASES:
            until = at + int(row[f"{phase}_ns"])
            if phase in _COMPUTE:
                self._launch(phase, _COMPUTE_STREAM, (at, until), until, {})
            else:
                self._host(phase, "cpu_op", at, until)
            at = until

    def _launch(
        self, name: str, stream: int, span: tuple[int, int], until: int, args: dict[str, Any]
    ) -> None:
        """Write a kernel over `span`, launched by a host event that ends at `until`."""
        self._launched += 1
        linked = {"correlation": self._launched}
        self._host(name, "cpu_op", span[0], until, linked)
        ts, dur = self._us(span[0]), self._us(span[1]) - self._us(span[0])
        self._events.add(
            ph="X", name=name, cat="kernel", pid=_DEVICE, tid=stream, ts=ts, dur=dur,
            args={"device": _DEVICE, "stream": stream, **linked, **args},
        )  # fmt: skip

    def _host(
        self, name: str, cat: str, begin: int, end: int, args: dict[str, Any] | None = None
    ) -> None:
        ts, dur = self._us(begin), self._us(end) - self._us(begin)
        self._events.add(
            ph="X", name=name, cat=cat, pid=_HOST, tid=1, ts=ts, dur=dur, args=args or {}
        )

    def _us(self, t_ns: int) -> int:
        return round((t_ns - self._origin) / 1e3)
