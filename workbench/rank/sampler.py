"""Samples the main thread's Python line while an iteration is in no phase.

A separate thread samples on request, so that the control thread can answer other requests.
"""

from __future__ import annotations

import contextlib
import linecache
import math
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from torch.utils.data import dataloader

from workbench.rank.recording.recorder import Recorder
from workbench.rank.traceback_frames import CELL_FILE, TracebackFrame
from workbench.wire import Message
from workbench.wire.sample_messages import NO_CELL, LineSamples, LineSamplesRequest

_INTERVAL_S = 0.005
_SHARE = 1 / 2000
"""The interval grows with the cell: it is at least this share of the cell's duration so far."""
_WIDTH = 80
"""Maximum characters of a line's text."""
_MAX_LINES = 100
"""Maximum number of lines in a message."""
_LOADER = dataloader.__file__
_OWN = str(Path(__file__).parents[1]) + os.sep
_COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


class _SourceLine(NamedTuple):
    file: str
    function: str
    line: int


class LineSampler:
    """Answers a `LineSamplesRequest` with the `LineSamples` of the running cell.

    Without a running cell, it confirms the request, and sends the samples of the next cell at the
    end of that cell.
    """

    def __init__(self, recorder: Recorder, send: Callable[[Message], None]) -> None:
        self._recorder = recorder
        self._send = send
        self._next_cell = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        """Guards `_thread`: the control thread starts it, and the main thread ends it."""

    def ask(self, request: LineSamplesRequest, cell: int | None) -> None:
        """Sample the running cell, or the next one; in the control thread."""
        if cell is None:
            self._next_cell = True
            self._send(LineSamples(NO_CELL, (), ()))
        else:
            self._start(cell, request.seconds)

    def begin_cell(self, cell: int) -> None:
        """Start to sample a cell if a request waits for it."""
        if self._next_cell:
            self._next_cell = False
            self._start(cell, math.inf)

    def end_cell(self) -> None:
        """Send the samples of the cell before it ends."""
        with self._starting:
            thread = self._thread
            self._thread = None
            self._stop.set()
        if thread is not None and thread.is_alive():  # it may have had no memory to start
            thread.join()

    def _start(self, cell: int, seconds: float) -> None:
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                return
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._run,
                args=(cell, seconds, self._stop),
                name="workbench-sampler",
                daemon=True,
            )
            self._thread.start()

    def _run(self, cell: int, seconds: float, stop: threading.Event) -> None:
        loop = self._recorder.loop
        spent: Counter[_SourceLine] = Counter()
        latest: Counter[_SourceLine] = Counter()  # since the latest step
        steps = loop.steps
        began = perf_counter()
        last = perf_counter()
        while last - began < seconds:
            stopped = stop.wait(max(_INTERVAL_S, (last - began) * _SHARE))
            if loop.steps != steps:
                if steps:  # the first iteration warms up
                    spent.update(latest)
                steps = loop.steps
                latest.clear()
            if stopped:
                break  # the time after the last step is in no iteration
            now = perf_counter()
            line = _line() if loop.clock.in_no_phase else None
            if line is not None:
                latest[line] += now - last  # type: ignore[assignment]
            last = now
        else:
            spent.update(latest if steps else ())
        most = spent.most_common(_MAX_LINES)
        self._send(
            LineSamples(cell, tuple(_text(line) for line, _ in most), tuple(s for _, s in most))
        )


def _line() -> _SourceLine | None:
    """Return the innermost line of the user's code in the main thread; None in a DataLoader."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    user_frame: TracebackFrame | None = None
    while frame is not None:
        code = frame.f_code
        candidate = TracebackFrame(frame, frame.f_lineno, 0)
        if code.co_name == "__next__" and code.co_filename == _LOADER:
            return None
        if user_frame is None and _is_of_user(candidate):
            user_frame = candidate
        frame = frame.f_back
    if user_frame is None:
        return None
    return _SourceLine(user_frame.file, user_frame.frame.f_code.co_name, user_frame.line)


def _is_of_user(candidate: TracebackFrame) -> bool:
    if candidate.frame.f_code.co_name in _COMPREHENSIONS:
        return False  # the caller's frame has the line that contains the comprehension
    return candidate.in_cell or not (candidate.in_library or candidate.file.startswith(_OWN))


def _text(line: _SourceLine) -> str:
    """Return a description of a line with its source text."""
    where = line.file
    if CELL_FILE in where:
        where = "the cell"
    else:
        with contextlib.suppress(OSError, ValueError):  # the working directory was removed
            where = os.path.relpath(where)
    location = f"line {line.line} of {where}"
    if line.function != "<module>":
        location += f" in {line.function}()"
    source = linecache.getline(line.file, line.line).strip()
    return f"{location}: {source[:_WIDTH]}" if source else location
