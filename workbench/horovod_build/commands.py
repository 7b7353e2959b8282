"""Run commands with their output in a log, and install packages with pip."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from workbench.horovod_build.failures import failure_from_log
from workbench.horovod_build.recipe import RUNTIME_REQUIREMENTS

_log = logging.getLogger(__name__)

_GRACE_S = 5.0
PIP = (sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check")


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
    `watch` is called with each line of the output, standard output and error combined.
    """
    with log.open("a", encoding="utf-8") as log_file:
        log_file.write(f"$ {' '.join(command)}\n")
        started = time.monotonic()
        with running(command, folder=folder, env=env) as process:
            _follow(process, log_file.write, watch)
            code = process.wait()
        _log.debug(
            "%s ended with exit status %d after %.1f s",
            command[0],
            code,
            time.monotonic() - started,
        )
        return code


@contextlib.contextmanager
def running(
    command: Sequence[str], *, folder: Path | None = None, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a command in its own process group. The group is terminated at the end of the body.

    Standard output and error are one stream, ``process.stdout``.
    """
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
        yield process
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
    deadline = time.monotonic() + _GRACE_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
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


def install_requirements(log: Path) -> None:
    """Install the missing requirements of Horovod, except PyTorch."""
    missing = [
        requirement
        for requirement in RUNTIME_REQUIREMENTS
        if not _installed(re.split(r"[<>=!~]", requirement)[0])
    ]
    if missing:
        _run([*PIP, "install", *missing], log)


def install_wheel(wheel: Path, log: Path) -> None:
    """Install the wheel, replacing any installed Horovod.

    Its dependencies are not installed: pip could otherwise replace the PyTorch against which
    the wheel was built.
    """
    _run([*PIP, "install", "--no-deps", "--force-reinstall", str(wheel)], log)


def _installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _run(command: list[str], log: Path) -> None:
    if run_logged(command, log) != 0:
        raise failure_from_log(log)
