"""Detached processes: they continue after the process that started them, and serve a Unix socket.

The agent of a VM and ipyparallel's controller are such processes. `start` passes the
listening socket as standard input, as inetd does, so that connections succeed at once.
`workbench.wire.kernel_socket` uses that socket in the detached process, and detects that no kernel
needs the process any longer.
The kernel starts an agent on its own VM, and `workbench.agent.relay` starts it on other VMs.
"""

from __future__ import annotations

import contextlib
import logging
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

_log = logging.getLogger(__name__)

PATH_BYTES = 107
"""Maximum length of a Unix socket's path that can be used as its address (see unix(7))."""
UNKNOWN_STATUS = -(1 << 16)
"""Exit status of a process whose parent ended first, so that its status cannot be known."""
_SOCKET = "agent.sock"
_LOG = "agent.log"
_LOG_BYTES = 4096


class DetachedProcess(Protocol):
    """A process that this module has started: the methods of `subprocess.Popen` that are used."""

    @property
    def pid(self) -> int:
        """The process id."""

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process ends, and return its exit status."""

    def kill(self) -> None:
        """Send SIGKILL to the process."""


class Spawn(Protocol):
    """Starts ``python -m MODULE ARGUMENTS`` in its own session, with these descriptors."""

    def __call__(
        self, module: str, arguments: list[str], server: int, output: int
    ) -> DetachedProcess:
        """Start the process; raise `OSError` if it cannot be started.

        Parameters
        ----------
        server
            Descriptor of the listening socket, which becomes the standard input.
        output
            Descriptor for standard output and error.
        """


def spawn(
    module: str, arguments: list[str], server: int, output: int, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a new interpreter; see `Spawn`. `options` are passed to `subprocess.Popen`."""
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
) -> tuple[DetachedProcess, socket.socket]:
    """Run a module in a process in its own session. Return the process and a connection to it.

    Parameters
    ----------
    path
        Path of the process's socket, in a folder that only this user can read.
    module, arguments
        As in ``python -m MODULE ARGUMENTS``.
    log
        File for standard output and error of the process.
    spawn
        Starts the process.

    Raises
    ------
    OSError
        The socket cannot be created, or the program cannot be started.
    """
    with socket.socket(socket.AF_UNIX) as server, log.open("wb") as output:
        check_private(path.parent)
        with _short_address(path) as address:
            server.bind(address)
        server.listen(8)
        client = None
        try:
            # Connect before the process runs, because it may soon end without a connected kernel.
            client = connect(path)
            process = spawn(module, arguments, server.fileno(), output.fileno())
        except OSError:
            if client is not None:
                client.close()
            path.unlink()
            raise
        _log.debug("Started %s as process %d at %s", module, process.pid, path)
        return process, client


def connect(path: Path, timeout_s: float | None = None) -> socket.socket:
    """Connect to a detached process, within `timeout_s` seconds unless that is None.

    Raises
    ------
    OSError
        The process has ended, or its folder does not belong to this user alone.
    """
    check_private(path.parent)
    client = socket.socket(socket.AF_UNIX)
    try:
        with _short_address(path) as address:
            client.settimeout(timeout_s)
            client.connect(address)
            client.settimeout(None)
    except OSError:
        client.close()
        raise
    return client


@contextlib.contextmanager
def _short_address(path: Path) -> Iterator[str]:
    """Yield an address for a socket. It has at most `PATH_BYTES` bytes, even if `path` has more."""
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
    status = folder.lstat()
    is_private = status.st_uid == os.getuid() and not status.st_mode & 0o077
    if not stat.S_ISDIR(status.st_mode) or not is_private:
        raise PermissionError(f"{folder}: not a folder of this user alone. Remove it.")


def kill_group(leader: psutil.Process) -> None:
    """Kill the processes of a group. The group's leader may have ended.

    If another process now has the leader's id, nothing is killed: the system reuses an id only
    when no process is left in the group.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        if psutil.Process(leader.pid) != leader:
            return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, signal.SIGKILL)
        _log.debug("Killed the process group %d", leader.pid)


def exit_text(code: int) -> str:
    """Return an exit status in words.

    Examples
    --------
    >>> exit_text(1), exit_text(-9)
    ('ended with exit status 1', 'was killed by SIGKILL')
    """
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
) -> tuple[DetachedProcess, socket.socket]:
    """Create an agent's folder and start the agent. Return the process and a connection.

    Parameters
    ----------
    grace_s
        The agent ends after this many seconds without a kernel.
    parent
        Process id of the kernel, if the agent must end with it.
    first_s
        As in `workbench.wire.kernel_socket.KernelSocket`.
    spawn
        As in `start`.

    Raises
    ------
    OSError
        The agent cannot be started.
    """
    folder.mkdir(mode=0o700)
    arguments = [str(grace_s), str(parent or 0), *([] if first_s is None else [str(first_s)])]
    try:
        return start(folder / _SOCKET, "workbench.agent.program", arguments, folder / _LOG, spawn)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def connect_agent(folder: Path) -> socket.socket:
    """Connect to the agent that uses a folder.

    Raises
    ------
    OSError
        The agent has ended.
    """
    return connect(folder / _SOCKET)


def open_log(folder: Path) -> IO[bytes]:
    """Open the log of the agent that uses a folder. It stays open if the folder is removed."""
    return (folder / _LOG).open("rb")


def agent_log_tail(folder: Path) -> str:
    """Return the end of the log of the agent that uses a folder."""
    return log_tail(folder / _LOG)


def log_tail(log: Path, max_bytes: int = _LOG_BYTES) -> str:
    """Return the last `max_bytes` of a log; empty if it cannot be read."""
    try:
        return log.read_bytes()[-max_bytes:].decode("utf-8", "replace").strip()
    except OSError:
        return ""


def remove_folder(folder: Path) -> None:
    """Remove the folder of an agent that has ended, if it belongs to this user."""
    with contextlib.suppress(OSError):
        check_private(folder)
        shutil.rmtree(folder, ignore_errors=True)
