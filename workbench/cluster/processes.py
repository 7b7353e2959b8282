"""The processes of a cluster on this machine: one controller, n engines.

They start at once and wait for each other, PyTorch loading meanwhile; each is
the leader of a process group of its own, so that what it forks goes with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from jupyter_core.paths import jupyter_runtime_dir

from workbench.errors import StartFailed
from workbench.wire.connection_file import wait_until_whole

_HEART_PERIOD_MS = 200
"""An engine counts as there at its first heartbeat; ipyparallel's default is 3,000."""
_HEART_MISSES = 150
_TERM_S = 0.5
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def usable_cores() -> int:
    """Return the cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def threads_per_rank(n: int) -> int | None:
    """Return the threads that let n ranks share the cores; None where the user has chosen."""
    if any(name in os.environ for name in _THREAD_VARIABLES):
        return None
    return max(1, usable_cores() // n)


class Processes:
    """A controller and n engines on this machine.

    Parameters
    ----------
    n
        Number of engines.
    """

    def __init__(self, n: int) -> None:
        runtime = Path(jupyter_runtime_dir())
        runtime.mkdir(parents=True, exist_ok=True, mode=0o700)
        # mkdtemp makes it readable by this user only: it will hold the keys
        self.folder = Path(tempfile.mkdtemp(prefix="workbench-", dir=runtime))
        self.threads = threads_per_rank(n)
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, n: int) -> None:
        """Start the controller and n engines; `stop` ends those that have started."""
        self._start("controller", self._controller_command())
        for number in range(n):
            self._start(f"engine-{number}", self._engine_command())

    @property
    def client_file(self) -> Path:
        """Where the controller writes how to connect."""
        return self.folder / "security" / "ipcontroller-client.json"

    def wait_for_controller(self, timeout_s: float) -> None:
        """Wait until the controller takes clients.

        Raises
        ------
        StartFailed
            A process ended, or the time is over.
        """
        if not wait_until_whole(self.client_file, timeout_s, self.check):
            raise StartFailed(
                f"the ipyparallel controller was not ready after {timeout_s:g} s; "
                f"its log ends:\n{self._log_tail('controller')}"
            )

    def check(self) -> None:
        """Raise `StartFailed` with its log where a process has ended."""
        for name, process in self._started.items():
            code = process.poll()
            if code is not None:
                raise StartFailed(
                    f"{name} {exit_text(code)} while it started; "
                    f"its log ends:\n{self._log_tail(name)}"
                )

    def exits(self) -> dict[int, int]:
        """Return the exit codes of the engines that have ended, by process id."""
        codes = {engine.pid: engine.poll() for engine in self._engines}
        return {pid: code for pid, code in codes.items() if code is not None}

    def memory_bytes(self) -> dict[int, int]:
        """Return the resident memory of each engine that runs, by process id."""
        sizes = {}
        for engine in self._engines:
            try:
                sizes[engine.pid] = psutil.Process(engine.pid).memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return sizes

    def stop(self) -> None:
        """End every process and what it has forked, and remove the folder."""
        processes = list(self._started.values())
        for process in processes:
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + _TERM_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
        for process in processes:
            _signal_group(process, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _engines(self) -> list[subprocess.Popen[bytes]]:
        return [process for name, process in self._started.items() if name != "controller"]

    def _controller_command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "workbench.cluster.controller"),
            *(str(os.getpid()), str(self.folder)),
            f"--profile-dir={self.folder}",
            "--ip=127.0.0.1",
            "--location=127.0.0.1",
            "--IPController.use_threads=True",
            "--IPController.enable_curve=True",
            f"--HeartMonitor.period={_HEART_PERIOD_MS}",
            f"--HeartMonitor.max_heartmonitor_misses={_HEART_MISSES}",
        ]

    def _engine_command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "workbench.rank"),
            *(str(os.getpid()), str(self.folder / "security" / "ipcontroller-engine.json")),
            f"--profile-dir={self.folder}",
            # the lifeline, our own channel and the process itself tell what the nanny would
            "--IPEngine.enable_nanny=False",
        ]

    def _start(self, name: str, command: list[str]) -> None:
        environment = dict(os.environ)
        if self.threads:
            environment |= dict.fromkeys(_THREAD_VARIABLES, str(self.threads))
        with self._log(name).open("wb") as log:
            self._started[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _log_tail(self, name: str, lines: int = 12) -> str:
        text = self._log(name).read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:]) or "(empty)"


def exit_text(code: int) -> str:
    """Return an exit code in words, such as ``"was killed by SIGKILL"``."""
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
