"""Detached processes: they continue after the process that started them, and serve a Unix socket.

The agent of a VM and ipyparallel's controller are such processes. `start` passes the
listening socket as standard input, as inetd does, so that connections succeed at once.
`workbench.wire.kernel_socket` is the process's side: there it ends when no kernel needs it.
The kernel starts an agent on its own machine, and `workbench.agent.relay` starts one on a VM.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import psutil

PATH_BYTES = 107
"""Longest path of a Unix socket that can be used as its address (see unix(7))."""
UNKNOWN_STATUS = -(1 << 16)
"""The exit status of a process whose parent has ended before it, so that nobody knows it."""
_SOCKET, _LOG = "agent.sock", "agent.log"
_LOG_BYTES = 4096


class Process(Protocol):
    """A process that was started here: what is used of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Return its exit status, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit status."""

    def kill(self) -> None:
        """Send it SIGKILL."""


class Spawn(Protocol):
    """Starts ``python -m MODULE ARGUMENTS`` in its own session, with these descriptors."""

    def __call__(self, module: str, arguments: list[str], server: int, output: int) -> Process:
        """Start it with `server` as standard input; raise `OSError` if that is not possible."""


def spawn(
    module: str, arguments: list[str], server: int, output: int, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a new interpreter; see `Spawn`. `options` are further ones of `subprocess.Popen`."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=server,
        stdout=output,
        stderr=output,
        start_new_session=True,
        **options,
    )


def start(
    path: Path, module: str, arguments: list[str], log: Path, spawn: Spawn = spawn
) -> tuple[Process, socket.socket]:
    """Run a module in a process in its own session; return the process and a connection to it.

    Parameters
    ----------
    path
        Path of its socket, in a folder that only this user can read.
    module, arguments
        As in ``python -m MODULE ARGUMENTS``.
    log
        File for its standard output and error.
    spawn
        How the process is made.

    Raises
    ------
    OSError
        The socket cannot be made, or the program cannot be started.
    """
    with socket.socket(socket.AF_UNIX) as server, log.open("wb") as output:
        check_private(path.parent)
        with _short(path) as address:
            server.bind(address)
        server.listen(8)
        client = None
        try:
            # before the process runs, which may end soon if no kernel is connected
            client = connect(path)
            return spawn(module, arguments, server.fileno(), output.fileno()), client
        except OSError:
            if client is not None:
                client.close()
            path.unlink()
            raise


def connect(path: Path, timeout_s: float | None = None) -> socket.socket:
    """Connect to a detached process; `timeout_s` is the longest wait for it, without end if None.

    Raises
    ------
    OSError
        It has ended, or its folder is not this user's own.
    """
    check_private(path.parent)
    client = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as address:
            client.settimeout(timeout_s)
            client.connect(address)
            client.settimeout(None)
    except OSError:
        client.close()
        raise
    return client


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield an address for a socket that is short enough, however long its path is."""
    if len(os.fsencode(path)) <= PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def check_private(folder: Path) -> None:
    """Raise `PermissionError` unless only this user can use a folder."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise PermissionError(f"{folder}: not a folder of this user alone. Remove it.")


def kill_group(leader: psutil.Process) -> None:
    """Kill the processes of a group, of which the leader may have ended.

    If another process has the leader's id now, nothing is killed: the system reuses an id only
    when no process is left in the group.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        if psutil.Process(leader.pid) != leader:
            return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, signal.SIGKILL)


def exit_text(code: int) -> str:
    """Return an exit status in words, such as ``"was killed by SIGKILL"``."""
    if code == UNKNOWN_STATUS:
        return "is gone"
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def start_agent(
    folder: Path,
    grace_s: float,
    parent: int | None = None,
    first_s: float | None = None,
    spawn: Spawn = spawn,
) -> tuple[Process, socket.socket]:
    """Create an agent's folder and start the agent; return the process and a connection.

    Parameters
    ----------
    grace_s
        The agent ends after so many seconds without a kernel.
    parent
        Process id of this process, if the agent must end with it.
    first_s
        As in `workbench.wire.kernel_socket.KernelSocket`.
    spawn
        As in `start`.

    Raises
    ------
    OSError
        It cannot be started.
    """
    folder.mkdir(mode=0o700)
    arguments = [str(grace_s), str(parent or 0), *([] if first_s is None else [str(first_s)])]
    try:
        return start(folder / _SOCKET, "workbench.agent.program", arguments, folder / _LOG, spawn)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def connect_agent(folder: Path) -> socket.socket:
    """Connect to the agent of a folder.

    Raises
    ------
    OSError
        It has ended.
    """
    return connect(folder / _SOCKET)


def open_log(folder: Path) -> IO[bytes]:
    """Open the log of the agent of a folder; it can be read even after the folder is removed."""
    return (folder / _LOG).open("rb")


def agent_log_tail(folder: Path) -> str:
    """Return the end of the log of the agent of a folder."""
    return log_tail(folder / _LOG)


def log_tail(log: Path) -> str:
    """Return the end of a log; empty if it cannot be read."""
    try:
        return log.read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace").strip()
    except OSError:
        return ""


def remove_folder(folder: Path) -> None:
    """Remove the folder of an agent that has ended, if it belongs to this user."""
    with contextlib.suppress(OSError):
        check_private(folder)
        shutil.rmtree(folder, ignore_errors=True)
