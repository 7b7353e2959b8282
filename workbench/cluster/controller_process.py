"""The controller of a cluster: ipyparallel's, a process of this machine."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_runtime_dir

from workbench.cluster.child import Child, Held, Piped, exit_text
from workbench.errors import StartFailed
from workbench.wire.connection_file import wait_until_whole
from workbench.wire.lines import LineReader

_HEART_PERIOD_MS = 200
"""An engine counts as there at its first heartbeat; ipyparallel's default is 3,000."""
_HEART_MISSES = 10**9
"""Never: an engine that was given up once would not be taken back, though a process that was
stopped or a VM that was paused goes on. Agents notice when a rank has ended."""
_TERM_S = 1.0
_LOG_LINES = 12


class ControllerProcess:
    """Started by `start` or met again by `find`, ended by `stop`.

    Parameters
    ----------
    folder
        Of a controller that runs already; a new one by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = new_folder() if folder is None else folder
        self._child: Child | None = None
        self._said: deque[str] = deque(maxlen=_LOG_LINES)

    def start(self, address: str, grace_s: float | None = None) -> None:
        """Start it, to listen on `address` only.

        Parameters
        ----------
        grace_s
            How long it outlives this kernel; None: it does not.
        """
        command = self._command(address, str(os.getpid()) if grace_s is None else "{pid}")
        if grace_s is None:
            self._follow(Piped(command, self._said.append))
        else:
            self._follow(Held.start(self._socket, grace_s, command))

    def find(self) -> None:
        """Meet the one that an earlier kernel has started."""
        self._follow(Held.find(self._socket))

    def _follow(self, child: Child) -> None:
        self._child = child
        threading.Thread(target=self._listen, name="workbench-controller", daemon=True).start()

    def _listen(self) -> None:
        assert self._child is not None
        reader = LineReader(self._said.append)
        while data := self._child.read():
            reader.feed(data)

    @property
    def _socket(self) -> Path:
        return self.folder / "controller.sock"

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
        code = self._child.poll() if self._child else None
        return "" if code is None else f"the ipyparallel controller {exit_text(code)}"

    def stop(self) -> None:
        """End it, and remove its folder."""
        if self._child is not None:
            self._child.end(_TERM_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def leave(self) -> None:
        """Let it run where it is kept."""
        if self._child is not None:
            self._child.leave()

    def _command(self, address: str, parent: str) -> list[str]:
        return [
            *(sys.executable, "-m", "workbench.cluster.controller"),
            *(parent, str(self.folder)),
            f"--profile-dir={self.folder}",
            f"--ip={address}",
            f"--location={address}",
            "--IPController.use_threads=True",
            "--IPController.enable_curve=True",
            f"--HeartMonitor.period={_HEART_PERIOD_MS}",
            f"--HeartMonitor.max_heartmonitor_misses={_HEART_MISSES}",
        ]

    def _log_tail(self) -> str:
        return "\n".join(self._said) or "(empty)"


def runtime_folder() -> Path:
    """Return where this user's clusters have their folders."""
    return Path(jupyter_runtime_dir())


def new_folder() -> Path:
    """Return a new folder that only this user can read: it will hold keys.

    Raises
    ------
    StartFailed
        It cannot be made.
    """
    runtime = runtime_folder()
    try:
        runtime.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Path(tempfile.mkdtemp(prefix="workbench-", dir=runtime))
    except OSError as error:
        raise StartFailed(
            f"{runtime}: cannot make a folder there ({error.strerror}). Make it writable, or set "
            "JUPYTER_RUNTIME_DIR to another folder before the kernel starts."
        ) from error
