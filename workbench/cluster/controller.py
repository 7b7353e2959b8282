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
import logging
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
from workbench.cluster.threads import defer_interrupts
from workbench.errors import StartFailed
from workbench.resources.process_registry import jupyter_folder
from workbench.safefiles import make_private_folder
from workbench.wire import detached
from workbench.wire.agent_messages import Attach, End, encode
from workbench.wire.connection_file import wait_until_complete
from workbench.wire.detached import Spawn, connect, exit_text, kill_group, log_tail, start
from workbench.wire.kernel_socket import KernelSocket

_log = logging.getLogger(__name__)

_MODULE = "workbench.cluster.controller"
STATE_FILE = "cluster.json"
"""The file in the folder of a kept cluster from which another kernel attaches. It has keys."""
_HEART_PERIOD_MS = 200
"""ipyparallel's default is 3,000. With a short period, a new engine soon gets heartbeats."""
_HEART_MISSES = 10**9
"""Effectively no limit. A process or a VM that was suspended continues later, but ipyparallel would
not use its engine again. Agents report when a rank has ended."""
_TERM_S = 1.0
_LOG_LINES = 12
_LOG_BYTES = 4096
_OS_ERROR = re.compile(r"^\w*Error: \[Errno (\d+)\]")
"""Matches the last line of the controller's log after an error of the operating system."""
_FOLDER_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}


class ControllerProcess:
    """The process of a controller: `start` or `attach` connects to it, and `stop` ends it.

    `folder` is the folder of a running controller. None stands for a new controller; `start` then
    creates its folder.
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

        The controller outlives this kernel by `keep_s` seconds; if that is None, it ends with the
        kernel. `spawn` starts its process.
        """
        self._folder = new_folder()
        parent = os.getpid() if keep_s is None else 0
        arguments = self._arguments(address, str(keep_s or 0.0), str(parent))
        try:
            with defer_interrupts():  # `stop` only ends a process that is stored here
                self._process, self._connection = start(
                    self._socket, _MODULE, arguments, self._log, spawn
                )
                self._leader = psutil.Process(self._process.pid)
                self._connection.sendall(encode(Attach("")))
        except OSError as error:
            raise refused_start(error) from error
        _log.info("started the controller, process %d, on %s", self._process.pid, address)
        hold(self.folder)

    def attach(self) -> None:
        """Attach to the controller of a previous kernel; raise `StartFailed` if it has ended."""
        try:
            self._connection = connect(self._socket)
            self._connection.sendall(encode(Attach("")))
        except OSError as error:
            raise StartFailed(f"the ipyparallel controller is gone: {error}") from error
        _log.info("attached to a controller that was kept")
        hold(self.folder)
        self._ready = True

    @property
    def folder(self) -> Path:
        """The folder of the cluster; it exists after `start`."""
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
        """The connection file for clients."""
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
            if not self._ready and (number := self._write_error()) in _FOLDER_ERRORS:
                raise StartFailed(
                    f"{self.folder.parent}: the ipyparallel controller cannot write there "
                    f"({os.strerror(number)}). Make room there, or set "
                    "JUPYTER_RUNTIME_DIR to another folder before the kernel starts."
                )
            when = "" if self._ready else " while it started"
            raise StartFailed(f"{self.ended}{when}; its log ends:\n{self._log_tail()}")

    def _write_error(self) -> int:
        """Return the number of the error that prevents writing in the folder, or 0."""
        logged = _OS_ERROR.search(self._log_tail().rpartition("\n")[2])
        if logged:
            return int(logged[1])
        try:  # on a full disk, the log may be empty too
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
        _log.debug("ending the controller")
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.sendall(encode(End()))
            if self._process is None:
                self._closed(_TERM_S)
        if self._process is not None:
            try:
                self._process.wait(_TERM_S)
            except subprocess.TimeoutExpired:
                _log.info("the controller has not ended within %g s, killing it", _TERM_S)
                self._process.kill()
                self._process.wait()
        if self._leader is not None:
            kill_group(self._leader)  # this includes the controller's children
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.detach()

    def detach(self) -> None:
        """Close the connection; the controller continues to run for the next kernel."""
        if self._connection is not None:
            self._connection.close()
            release(self.folder)

    def _closed(self, wait_s: float) -> bool:
        """Wait until the controller has closed the connection; return whether it has."""
        if self._connection is None:
            return False
        try:
            self._connection.settimeout(wait_s)
            # the controller only sends a notice that another kernel has replaced this one
            while self._connection.recv(1 << 10):
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
    """Create a folder that only this user can read, because it will have keys; return its path.

    Raise `StartFailed` if it cannot be created.
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
"""Engines check for their parent at this interval, and write in the folder until they end."""


def main() -> None:
    """Run until stopped; remove the cluster's folder with its keys if the kernel has ended."""
    kernel = KernelSocket(float(sys.argv.pop(1)), int(sys.argv.pop(1)) or None)
    folder = sys.argv.pop(1)
    os.environ["IPYTHONDIR"] = folder  # ipyparallel's files are then removed with the folder
    threading.Thread(
        target=_follow_kernel, args=(kernel, folder), name="workbench-kernel", daemon=True
    ).start()
    gc.disable()  # imported objects stay, so that a collection would free nothing
    from ipyparallel import util
    from ipyparallel.controller import app, heartmonitor
    from tornado.ioloop import IOLoop

    from workbench.cluster.heart_monitor import HeartMonitor

    gc.enable()
    heartmonitor.HeartMonitor = HeartMonitor
    app.time = SimpleNamespace(sleep=lambda _: None)  # the app sleeps 0.25 s during its start
    IOLoop.time = _loop_time  # type: ignore[method-assign]
    util.select_random_ports = _reserve_ports
    app.Process = _HeartMonitorThread
    app.main()


def _loop_time(self: Any) -> float:  # noqa: ARG001 - in the place of a method
    """Return the time of Tornado's timers.

    Tornado uses the wall clock. If that is set back, timers stop for as long. This would include
    the timers of the heart monitor, and no rank can join without them. The time limits of
    ipyparallel's load-balanced tasks are given in wall-clock time and no longer apply; no cell uses
    such tasks.
    """
    return time.monotonic()


_reserved: list[socket.socket] = []


def _reserve_ports(count: int) -> list[int]:
    """Return free ports that remain reserved until this process ends.

    ipyparallel's own function releases the ports, and binds them up to half a second later. In
    the meantime, the system can assign one of them to any process on this machine.
    """
    sockets = []
    for _ in range(count):
        sockets.append(socket.socket())
        # with this option, zmq can bind the port too
        sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sockets[-1].bind(("", 0))
    _reserved.extend(sockets)
    return [reserved.getsockname()[1] for reserved in sockets]


class _HeartMonitorThread(threading.Thread):
    """Replaces the process of ipyparallel's heart monitor.

    No rank can join without the heart monitor, and no other process would notice if it was killed.
    """

    def terminate(self) -> None:
        """Do nothing: a daemon thread ends with its process."""


def _follow_kernel(kernel: KernelSocket, folder: str) -> None:
    """End this process on the kernel's order; if the kernel has ended, also clean up."""
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
