"""Running a long command: its output to a log and to whoever watches."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_GRACE_S = 5.0


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    watch: Callable[[str], None] | None = None,
) -> int:
    """Run a command, append what it prints to `log`, and return its exit status.

    It runs in a process group of its own, which is gone when this returns or
    raises, the keyboard's interrupt included: no compiler outlives its build.

    Parameters
    ----------
    command, folder, env
        As for `subprocess.Popen`.
    log
        Appended to; standard error goes in line with standard output.
    watch
        Called with each line, without its end.
    """
    with log.open("a", encoding="utf-8") as written:
        written.write(f"$ {' '.join(command)}\n")
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            _follow(process, written.write, watch)
            return process.wait()
        finally:
            end_group(process)


def end_group(process: subprocess.Popen[str]) -> None:
    """End every process of a group that `process` leads, gently and then not."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _await_empty(process.pid)


def _await_empty(group: int) -> None:
    """Wait until the last of a killed group is gone, which the kernel does in its own time."""
    until = time.monotonic() + _GRACE_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(group, 0)
            time.sleep(0.01)


def _follow(
    process: subprocess.Popen[str],
    write: Callable[[str], object],
    watch: Callable[[str], None] | None,
) -> None:
    if process.stdout is None:
        return
    with process.stdout:
        for line in process.stdout:
            write(line)
            if watch is not None:
                watch(line.rstrip("\n"))
