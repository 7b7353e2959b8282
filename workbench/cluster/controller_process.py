"""The controller of a cluster: ipyparallel's, a process of this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_runtime_dir

from workbench.errors import StartFailed
from workbench.wire.connection_file import wait_until_whole

_HEART_PERIOD_MS = 200
"""An engine counts as there at its first heartbeat; ipyparallel's default is 3,000."""
_HEART_MISSES = 150
_TERM_S = 0.5
_LOG_LINES = 12


class ControllerProcess:
    """Started by `start`, ended by `stop`, and gone soon after this process in any case."""

    def __init__(self) -> None:
        runtime = Path(jupyter_runtime_dir())
        runtime.mkdir(parents=True, exist_ok=True, mode=0o700)
        # mkdtemp makes it readable by this user only: it will hold the keys
        self.folder = Path(tempfile.mkdtemp(prefix="workbench-", dir=runtime))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, address: str) -> None:
        """Start it, to listen on `address` only."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(address),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def client_file(self) -> Path:
        """Where it writes how a client connects."""
        return self.folder / "security" / "ipcontroller-client.json"

    def wait(self, timeout_s: float) -> dict[str, Any]:
        """Wait until it takes clients, and return how an engine connects.

        Raises
        ------
        StartFailed
            It ended, or the time is over.
        """
        if not wait_until_whole(self.client_file, timeout_s, self.check):
            raise StartFailed(
                f"the ipyparallel controller was not ready after {timeout_s:g} s; "
                f"its log ends:\n{self._log_tail()}"
            )
        engine_file = self.folder / "security" / "ipcontroller-engine.json"
        if not wait_until_whole(engine_file, timeout_s, self.check):
            raise StartFailed(f"the ipyparallel controller wrote no {engine_file}")
        connection: dict[str, Any] = json.loads(engine_file.read_text())
        return connection

    def check(self) -> None:
        """Raise `StartFailed` with its log where it has ended."""
        if self.ended:
            raise StartFailed(f"{self.ended} while it started; its log ends:\n{self._log_tail()}")

    @property
    def ended(self) -> str:
        """How it ended, in words; empty while it runs."""
        code = self._process.poll() if self._process else None
        return "" if code is None else f"the ipyparallel controller {exit_text(code)}"

    def stop(self) -> None:
        """End it, and remove its folder."""
        if self._process is not None:
            _signal_group(self._process, signal.SIGTERM)
            try:
                self._process.wait(_TERM_S)
            except subprocess.TimeoutExpired:
                _signal_group(self._process, signal.SIGKILL)
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self, address: str) -> list[str]:
        return [
            *(sys.executable, "-m", "workbench.cluster.controller"),
            *(str(os.getpid()), str(self.folder)),
            f"--profile-dir={self.folder}",
            f"--ip={address}",
            f"--location={address}",
            "--IPController.use_threads=True",
            "--IPController.enable_curve=True",
            f"--HeartMonitor.period={_HEART_PERIOD_MS}",
            f"--HeartMonitor.max_heartmonitor_misses={_HEART_MISSES}",
        ]

    @property
    def _log(self) -> Path:
        return self.folder / "controller.log"

    def _log_tail(self) -> str:
        text = self._log.read_text(errors="replace")
        return "\n".join(text.splitlines()[-_LOG_LINES:]) or "(empty)"


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
