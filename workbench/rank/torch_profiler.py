"""Starts and stops PyTorch's profiler in a rank, and reads its traces."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch

from workbench.wire.profile_messages import MARK

_MARKS = 8
_STEP = "Optimizer.step#"
"""Prefix of the name of an optimizer's step; a profile ends during such an event."""
_KINETO_ERROR = b"External init callback must run in same thread as registerClient"


class TorchProfiler:
    """PyTorch's profiler in the calling thread; the same thread must call `stop`.

    PyTorch's own class, ``torch.profiler.profile``, also converts all events to Python objects in
    `stop`, and this would delay the training by seconds.
    """

    def __init__(self) -> None:
        from torch.autograd import profiler

        self._module = profiler
        self.owner = profiler.profile
        gpu = "cuda" if torch.cuda.is_available() else None
        self._settings = profiler.profile(use_kineto=True, record_shapes=True, use_device=gpu)
        self.thread = threading.get_ident()
        self.marks: list[int] = []
        self.began_ns = self.ended_ns = 0

    @staticmethod
    def is_in_use() -> bool:
        """Return whether any profiler of PyTorch runs in this process."""
        from torch.autograd import profiler

        enabled: Callable[[], bool] = torch._C._autograd._profiler_enabled
        return bool(profiler._is_profiler_enabled or enabled())

    def start(self) -> None:
        """Start recording."""
        config = self._settings.config()
        activities = self._settings.kineto_activities
        with _without_kineto_error():
            self._module._prepare_profiler(config, activities)
        self._module._run_on_profiler_start()
        try:
            self._module._enable_profiler(config, activities)
            self.began_ns = perf_counter_ns()
            self._mark()
        except BaseException:
            self._disable()
            raise

    def stop(self) -> Any:
        """Stop recording; return PyTorch's object with the events.

        Raises
        ------
        RuntimeError
            Other code has ended the profiler; PyTorch would return damaged events.
        """
        if not torch._C._autograd._profiler_enabled():
            self._module._run_on_profiler_stop()
            raise RuntimeError("other code has ended it")
        try:
            self._mark()
            self.ended_ns = perf_counter_ns()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        except BaseException:
            self._disable()
            raise
        return self._disable()

    def _disable(self) -> Any:
        try:
            if torch._C._autograd._profiler_enabled():
                return self._module._disable_profiler()
        finally:
            self._module._run_on_profiler_stop()

    def _mark(self) -> None:
        """Record slices together with their beginnings on the monotonic clock."""
        for _ in range(_MARKS):
            before = perf_counter_ns()
            with self._module.record_function(MARK):
                self.marks += before, perf_counter_ns()


@contextlib.contextmanager
def _without_kineto_error() -> Iterator[None]:
    """Hide an error that PyTorch prints in each forked process, although profiles are complete.

    Other output to standard error is written after the body.
    """
    with contextlib.ExitStack() as files:
        captured = os.memfd_create("workbench-stderr")
        standard_error = os.dup(2)
        for descriptor in (captured, standard_error):
            files.callback(os.close, descriptor)
        os.dup2(captured, 2)
        try:
            yield
        finally:
            os.dup2(standard_error, 2)
            lines = os.pread(captured, os.fstat(captured).st_size, 0).splitlines(keepends=True)
            if others := b"".join(line for line in lines if _KINETO_ERROR not in line):
                os.write(2, others)


def compressed(result: Any) -> tuple[bytes, bool]:
    """Return a trace as compressed JSON, and whether a block of the user was open at its end."""
    folder = Path(tempfile.mkdtemp(prefix="workbench-profile-"))  # readable by this user only
    try:
        plain = folder / "trace.json"
        small = folder / "trace.json.gz"
        result.save(str(plain))
        with plain.open("rb") as source, gzip.open(small, "wb", compresslevel=3) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        with plain.open(encoding="utf-8", errors="replace") as lines:
            is_open = _has_open_block(lines)
        return small.read_bytes(), is_open
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)


def _has_open_block(lines: Iterable[str]) -> bool:
    """Return whether a trace has an event without an end, apart from steps of optimizers.

    Examples
    --------
    >>> _has_open_block(['"name": "my block"', '"finished": false'])
    True
    >>> _has_open_block(['"name": "Optimizer.step#SGD"', '"finished": false'])
    False
    """
    name = ""
    for line in lines:
        if '"name": ' in line:
            name = line.split('"name": "', 1)[-1]
        if '"finished": false' in line and not name.startswith(_STEP):
            return True
    return False
