"""The controller of a cluster: a process of this machine that runs ipyparallel's controller.

``python -m workbench.cluster.controller GRACE_S PARENT_PID FOLDER [ipcontroller's arguments]``

It serves a Unix socket (`wire.detached`) in FOLDER, which is the cluster's. PARENT_PID is 0 if
the cluster is kept.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from jupyter_core.paths import jupyter_runtime_dir

from workbench.cluster.holder import hold, release
from workbench.cluster.launchers import refused_start
from workbench.cluster.threads import interrupts_later
from workbench.errors import StartFailed
from workbench.resources.process_registry import jupyter_folder
from workbench.safefiles import make_private_folder
from workbench.wire import detached
from workbench.wire.agent_messages import Attach, End, encode
from workbench.wire.connection_file import wait_until_complete
from workbench.wire.detached import Spawn, connect, exit_text, kill_group, log_tail, start
from workbench.wire.kernel_socket import KernelSocket

_MODULE = "workbench.cluster.controller"
STATE_FILE = "cluster.json"
"""In the folder of a kept cluster: what another kernel needs to attach, keys included."""
_HEART_PERIOD_MS = 200
"""ipyparallel's default is 3,000; an engine that connects gets heartbeats at once."""
_HEART_MISSES = 10**9
"""Never: a process or a VM that was suspended goes on, but ipyparallel would not use its engine
again. Agents report when a rank has ended."""
_TERM_S = 1.0
_LOG_LINES = 12
_LOG_BYTES = 4096
_REFUSED = re.compile(r"^\w*Error: \[Errno (\d+)\]")
"""The last line of the controller's log after an error of the system."""
_FOLDER_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}


class ControllerProcess:
    """Started by `start` or attached to by `attach`, ended by `stop`.

    `folder` is that of a running controller; None for a new one, which `start` creates.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._process: detached.DetachedProcess | None = None
        self._leader: psutil.Process | None = None
        self._connection: socket.socket | None = None
        self._ready = False

    def start(
        self, address: str, keep_s: float | None = None, spawn: Spawn = detached.spawn
    ) -> None:
        """Start the controller, which listens on `address` only.

        It outlives this kernel by `keep_s` seconds; if that is None, it ends with the kernel.
        `spawn` makes its process.
        """
        self._folder = new_folder()
        parent = os.getpid() if keep_s is None else 0
        arguments = self._arguments(address, str(keep_s or 0.0), str(parent))
        try:
            with interrupts_later():  # `stop` would not end a process that is not known
                self._process, self._connection = start(
                    self._socket, _MODULE, arguments, self._log, spawn
                )
                self._leader = psutil.Process(self._process.pid)
                self._connection.sendall(encode(Attach("")))
        except OSError as error:
            raise refused_start(error) from error
        hold(self.folder)

    def attach(self) -> None:
        """Attach to the controller of a previous kernel; raise `StartFailed` if it has ended."""
        try:
            self._connection = connect(self._socket)
            self._connection.sendall(encode(Attach("")))
        except OSError as error:
            raise StartFailed(f"the ipyparallel controller is gone: {error}") from error
        hold(self.folder)
        self._ready = True

    @property
    def folder(self) -> Path:
        """The folder of the cluster, once there is one."""
        assert self._folder is not None
        return self._folder

    @property
    def _socket(self) -> Path:
        return self.folder / "controller.sock"

    @property
    def _log(self) -> Path:
        return self.folder / "controller.log"

    @property
    def client_file(self) -> Path:
        """The file with which a client connects."""
        return self.folder / "security" / "ipcontroller-client.json"

    def wait(self, timeout_s: float) -> dict[str, Any]:
        """Wait until the controller accepts clients; return how an engine connects.

        Raise `StartFailed` if it has ended, or the time limit has passed.
        """
        if not wait_until_complete(self.client_file, timeout_s, self.check):
            raise StartFailed(
                f"the ipyparallel controller was not ready after {timeout_s:g} s; "
                f"its log ends:\n{self._log_tail()}"
            )
        engine_file = self.folder / "security" / "ipcontroller-engine.json"
        if not wait_until_complete(engine_file, timeout_s, self.check):
            raise StartFailed(f"the ipyparallel controller wrote no {engine_file}")
        connection: dict[str, Any] = json.loads(engine_file.read_text())
        self._ready = True
        return connection

    def check(self) -> None:
        """Raise `StartFailed` with the log if the controller has ended."""
        if self.ended:
            if not self._ready and (number := self._refusal()) in _FOLDER_ERRORS:
                raise StartFailed(
                    f"{self.folder.parent}: the ipyparallel controller cannot write there "
                    f"({os.strerror(number)}). Make room there, or set "
                    "JUPYTER_RUNTIME_DIR to another folder before the kernel starts."
                )
            when = "" if self._ready else " while it started"
            raise StartFailed(f"{self.ended}{when}; its log ends:\n{self._log_tail()}")

    def _refusal(self) -> int:
        """Return the number of the error when writing in the folder, or 0."""
        logged = _REFUSED.search(self._log_tail().rpartition("\n")[2])
        if logged:
            return int(logged[1])
        try:  # a full disk has no space for the log either
            (self.folder / "probe").write_bytes(bytes(_LOG_BYTES))
        except OSError as error:
            return error.errno or 0
        return 0

    @property
    def ended(self) -> str:
        """How the controller ended; empty while it runs."""
        if self._process is not None:
            code = self._process.poll()
            return "" if code is None else f"the ipyparallel controller {exit_text(code)}"
        return "the ipyparallel controller is gone" if self._closed(0.0) else ""

    def stop(self) -> None:
        """End the controller, and remove its folder."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.sendall(encode(End()))
            if self._process is None:
                self._closed(_TERM_S)
        if self._process is not None:
            try:
                self._process.wait(_TERM_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._leader is not None:
            kill_group(self._leader)  # its children too
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.detach()

    def detach(self) -> None:
        """Close the connection; the controller goes on for the next kernel."""
        if self._connection is not None:
            self._connection.close()
            release(self.folder)

    def _closed(self, wait_s: float) -> bool:
        """Wait until the controller has closed the connection; return whether it has."""
        if self._connection is None:
            return False
        try:
            self._connection.settimeout(wait_s)
            while self._connection.recv(1 << 10):  # only a notice that this kernel was replaced
                continue
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            return True
        return True

    def _arguments(self, address: str, grace_s: str, parent: str) -> list[str]:
        return [
            *(grace_s, parent, str(self.folder)),
            f"--profile-dir={self.folder}",
            f"--ip={address}",
            f"--location={address}",
            "--IPController.use_threads=True",
            "--IPController.enable_curve=True",
            f"--HeartMonitor.period={_HEART_PERIOD_MS}",
            f"--HeartMonitor.max_heartmonitor_misses={_HEART_MISSES}",
        ]

    def _log_tail(self) -> str:
        return "\n".join(log_tail(self._log).splitlines()[-_LOG_LINES:]) or "(empty)"


def runtime_folder() -> Path:
    """Return the folder of this user's clusters."""
    return jupyter_folder(jupyter_runtime_dir())


def new_folder() -> Path:
    """Return a new folder that only this user can read: it will hold keys.

    Raise `StartFailed` if it cannot be made.
    """
    runtime = runtime_folder()
    try:
        make_private_folder(runtime)
        return Path(tempfile.mkdtemp(prefix="workbench-", dir=runtime))
    except OSError as error:
        raise StartFailed(
            f"{runtime}: cannot make a folder there ({error.strerror}). Make it writable, or set "
            "JUPYTER_RUNTIME_DIR to another folder before the kernel starts."
        ) from error


_PERIOD_S = 0.25
_ENGINES_END_S = 0.75
"""Engines check for their parent this often, and write in the folder until they end."""


def main() -> None:
    """Run until stopped; remove the cluster's folder with its keys if the kernel has ended."""
    kernel = KernelSocket(float(sys.argv.pop(1)), int(sys.argv.pop(1)) or None)
    folder = sys.argv.pop(1)
    os.environ["IPYTHONDIR"] = folder  # what ipyparallel writes there is removed with the folder
    threading.Thread(
        target=_follow, args=(kernel, folder), name="workbench-kernel", daemon=True
    ).start()
    gc.disable()  # all that is imported is kept
    from ipyparallel import util
    from ipyparallel.controller import app, heartmonitor
    from tornado.ioloop import IOLoop

    from workbench.cluster.heart_monitor import HeartMonitor

    gc.enable()
    heartmonitor.HeartMonitor = HeartMonitor
    app.time = SimpleNamespace(sleep=lambda _: None)  # 0.25 s, in which nothing else starts
    IOLoop.time = _loop_time  # type: ignore[method-assign]
    util.select_random_ports = _reserve_ports
    app.Process = _HeartMonitorThread
    app.main()


def _loop_time(self: Any) -> float:  # noqa: ARG001 - in the place of a method
    """Return the time of Tornado's timers.

    Tornado uses the wall clock: after that was set back, timers would stop for as long, those of
    the heart monitor too, without which no rank can join. The time limits of ipyparallel's
    load-balanced tasks, which no cell uses, are given in wall-clock time and no longer apply.
    """
    return time.monotonic()


_reserved: list[socket.socket] = []


def _reserve_ports(count: int) -> list[int]:
    """Return free ports that remain reserved until this process ends.

    ipyparallel's own function releases the ports, and binds them up to half a second later: in
    the meantime any process on this machine can be given one of them.
    """
    new = []
    for _ in range(count):
        new.append(socket.socket())
        new[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that zmq can bind it too
        new[-1].bind(("", 0))
    _reserved.extend(new)
    return [reserved.getsockname()[1] for reserved in new]


class _HeartMonitorThread(threading.Thread):
    """Replaces the process of ipyparallel's heart monitor.

    No rank can join without the heart monitor, and nothing would notice if its process was killed.
    """

    def terminate(self) -> None:
        """Do nothing: a daemon thread ends with its process."""


def _follow(kernel: KernelSocket, folder: str) -> None:
    """End when the kernel says so, or clean up and end if the kernel has ended."""
    ended = End() in kernel.receive(_PERIOD_S)
    while not ended and not kernel.abandoned:
        ended = End() in kernel.receive(_PERIOD_S)
    if ended:
        os.kill(os.getpid(), signal.SIGTERM)
        return
    try:
        time.sleep(_ENGINES_END_S)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()
