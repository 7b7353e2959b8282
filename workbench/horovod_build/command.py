"""Run a long command and write its output to a log."""

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
    """Run a command, append its output to `log`, and return its exit status.

    The command runs in its own process group. The group is terminated when this function
    returns or raises (also on KeyboardInterrupt), so that no compiler outlives its build.

    Parameters
    ----------
    command, folder, env
        As for `subprocess.Popen`.
    log
        File to append to, standard output and error combined.
    watch
        Called with each line, without its line end.
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
    """Terminate the process group that `process` leads; kill it after a grace period."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _await_empty(process.pid)


def _await_empty(group: int) -> None:
    """Wait until the last process of a killed group has ended."""
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
