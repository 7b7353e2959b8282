"""PyTorch's profiler, as a rank uses it, and its traces."""

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
"""Prefix of the event of an optimizer's step, in which a profile ends."""
_KINETO_ERROR = b"External init callback must run in same thread as registerClient"


class TorchProfiler:
    """PyTorch's profiler in the calling thread; `stop` must be called in the same one.

    Its own class, ``torch.profiler.profile``, also makes Python objects of all events in `stop`,
    which takes seconds of training.
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
        """Start to record."""
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
        """Stop recording; return the events, as PyTorch has them.

        Raise `RuntimeError` if other code has ended it: PyTorch would then return damaged events.
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
        """Record slices whose begin is known on the monotonic clock."""
        for _ in range(_MARKS):
            before = perf_counter_ns()
            with self._module.record_function(MARK):
                self.marks += before, perf_counter_ns()


@contextlib.contextmanager
def _without_kineto_error() -> Iterator[None]:
    """Hide an error that PyTorch prints in each forked process, whose profiles are complete.

    Everything else that is written to standard error meanwhile is written afterwards.
    """
    with contextlib.ExitStack() as files:
        kept = os.memfd_create("workbench-stderr")
        passed = os.dup(2)
        for descriptor in (kept, passed):
            files.callback(os.close, descriptor)
        os.dup2(kept, 2)
        try:
            yield
        finally:
            os.dup2(passed, 2)
            lines = os.pread(kept, os.fstat(kept).st_size, 0).splitlines(keepends=True)
            if others := b"".join(line for line in lines if _KINETO_ERROR not in line):
                os.write(2, others)


def compressed(result: Any) -> tuple[bytes, bool]:
    """Return a trace in JSON, compressed, and whether a block of the user was open at its end."""
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
    """Return whether the lines of a trace have an event without an end, except a step's."""
    name = ""
    for line in lines:
        if '"name": ' in line:
            name = line.split('"name": "', 1)[-1]
        if '"finished": false' in line and not name.startswith(_STEP):
            return True
    return False
