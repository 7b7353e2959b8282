"""The warm process of this kernel, from which later starts on this machine are forked.

The first agent that this kernel starts leaves a warm process (`workbench.agent.warm`). A start
with a usable warm process needs neither a new interpreter nor the imports of PyTorch and the
backend. Otherwise a start proceeds as the first one did, and leaves another warm process. This
is so if the conditions of the start have changed, if the warm process does not answer, or if it
has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from workbench.cluster.durations import parse_duration
from workbench.cluster.threads import in_background, io_loop
from workbench.wire import detached
from workbench.wire.agent_messages import Load
from workbench.wire.detached import UNKNOWN_STATUS, DetachedProcess, Spawn
from workbench.wire.warm_messages import PACKET_BYTES, Ended, Fork, Settings, Warm, decode, encode

_log = logging.getLogger(__name__)

IDLE_VARIABLE = "GRADIENT_WORKBENCH_WARM"
"""The environment variable with the idle time, or ``off``."""
_IDLE = "10m"
_OFF = "off"
_ANSWER_S = 3.0
"""Time limit for the warm process to fork, on a busy machine."""
_REPORT_S = 0.5
"""Time limit for the warm process to report how a process has ended."""
_POLL_S = 0.01
_UNREAD = re.compile(r"GRADIENT_WORKBENCH_\w*|JUPYTER_RUNTIME_DIR|PYTEST_CURRENT_TEST")
"""Environment variables that no import reads. Forks get their new values."""
_MODULES = ["workbench.cluster.controller", "ipyparallel.controller.app"]
"""Modules that the warm process loads for its forks, besides those of agents and ranks."""
_ARGUMENTS_CHARACTERS = 512
"""Space for the arguments of forked processes, reserved with blanks, because ``ps`` shows them."""
_SAME_STATUS = re.compile(
    r"^(?:Umask|[UG]id|Groups|Cap\w+|NoNewPrivs|Seccomp|(?:Cpus|Mems)_allowed_list):.*$",
    re.MULTILINE,
)
"""Lines of /proc/PID/status about attributes that child processes inherit."""
_IGNORED_SIGNALS = re.compile(r"^SigIgn:\s*([\da-f]+)$", re.MULTILINE)

_lock = threading.Lock()
_current: WarmProcessHandle | None = None


def spawner(load: Load | None) -> Spawn:
    """Return a function that starts a process on this machine.

    Parameters
    ----------
    load
        The order to load for an agent, which can leave a warm process; None for other processes.
    """
    return partial(_spawn, load)


def memory_bytes() -> int | None:
    """Return the memory of the warm process; None if there is no warm process.

    Memory that it shares with ranks is divided among them (PSS), so that the sum over all
    processes is their total use.

    Examples
    --------
    >>> memory_bytes() is None  # no cluster was started
    True
    """
    warm = _usable()
    if warm is None or warm.agent is None:
        return None
    try:
        text = Path(f"/proc/{warm.process.pid}/smaps_rollup").read_text()
    except OSError:
        return None
    pss = re.search(r"^Pss:\s*(\d+) kB", text, re.MULTILINE)
    return int(pss[1]) << 10 if pss else None


def pid() -> int | None:
    """Return the process id of the warm process; None if there is no warm process."""
    warm = _usable()
    return None if warm is None or warm.agent is None else warm.process.pid


def end() -> None:
    """End the warm process, if there is one; processes that it has forked continue to run."""
    with _lock:
        warm = _usable()
        if warm is not None and warm.agent is not None:
            warm.end()


def _usable() -> WarmProcessHandle | None:
    """Return the warm process of this kernel; None in a fork of the kernel."""
    warm = _current
    return warm if warm is not None and warm.owner == os.getpid() and not warm.ended else None


def _spawn(
    load: Load | None, module: str, arguments: list[str], server: int, output: int
) -> DetachedProcess:
    global _current  # noqa: PLW0603 - a kernel has one warm process
    idle_s = _idle_s()
    with _lock:
        conditions = _conditions() if idle_s is not None else None
        warm = _usable()
        if warm is not None and warm.agent is not None:
            if conditions is not None and idle_s is not None and warm.is_current(conditions):
                fork = Fork(module, arguments, idle_s, warm.changes(), load)
                if (process := warm.fork(fork, server, output)) is not None:
                    _log.debug("forked process %d from the warm process", process.pid)
                    return process
            _log.info("ending a warm process that cannot be used")
            warm.end()
            warm = None
        if load is None or conditions is None or warm is not None:
            return detached.spawn(module, arguments, server, output)
        _current = WarmProcessHandle(module, arguments, server, output, conditions, idle_s or 0.0)
        _log.info("started process %d, which becomes warm", _current.process.pid)
        return ForkedProcess(_current, None)


class WarmProcessHandle:
    """The kernel's handle on a process that is an agent first, and becomes warm after its imports.

    Attributes
    ----------
    owner
        The process id of the kernel.
    agent
        The process that continues as the agent; None until the process is warm.
    ended
        Whether the process has ended, or can no longer be reached.
    codes
        The exit statuses of forked processes, by process id.

    Raises
    ------
    OSError
        The process cannot be started.
    """

    def __init__(
        self,
        module: str,
        arguments: list[str],
        server: int,
        output: int,
        conditions: dict[str, Any],
        idle_s: float,
    ) -> None:
        self.owner = os.getpid()
        self.agent: Forked | None = None
        self.ended = False
        self.codes: dict[int, int] = {}
        self._conditions = conditions
        self._environment = dict(os.environ)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as failed:
            failed.callback(ours.close)
            ours.send(encode(Settings(self.owner, idle_s, _MODULES)))
            descriptor = theirs.fileno()
            warm = [*arguments, "--warm", str(descriptor).rjust(_ARGUMENTS_CHARACTERS)]
            self.process = detached.spawn(module, warm, server, output, pass_fds=[descriptor])
            failed.pop_all()
        ours.setblocking(False)
        self._channel = ours
        io_loop().call_soon_threadsafe(io_loop().add_reader, ours, self._receive)

    def is_current(self, conditions: dict[str, Any]) -> bool:
        """Return whether the warm process was started under these conditions."""
        return conditions == self._conditions

    def changes(self) -> dict[str, str | None]:
        """Return the environment variables that have changed, with their current values."""
        names = self._environment.keys() | os.environ.keys()
        return {
            name: os.environ.get(name)
            for name in names
            if os.environ.get(name) != self._environment.get(name)
        }

    def fork(self, fork: Fork, server: int, output: int) -> DetachedProcess | None:
        """Fork a process from the warm process, and return it; None if that fails."""
        ours, theirs = socket.socketpair()
        with ours:
            try:
                with theirs:
                    descriptors = [server, output, theirs.fileno()]
                    socket.send_fds(self._channel, [encode(fork)], descriptors)
                ours.settimeout(_ANSWER_S)
                forked = Forked(int(ours.recv(32)))
                # without this byte the fork ends, so that there are never two processes
                ours.sendall(b"x")
            except (OSError, ValueError) as error:
                _log.info("the warm process could not fork: %s", error)
                return None
        return ForkedProcess(self, forked)

    def end(self) -> None:
        """End the warm process, even if it is suspended or hangs."""
        self.ended = True
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_ANSWER_S)

    def _receive(self) -> None:
        """Receive a message, in the I/O thread."""
        try:
            packet = self._channel.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self.ended = True
            io_loop().remove_reader(self._channel)
            self._channel.close()
            in_background(self.process.wait)
            return
        message = decode(packet)
        if isinstance(message, Ended):
            self.codes[message.pid] = message.code
        elif isinstance(message, Warm):
            self.agent = Forked(message.pid, message.began)


class Forked:
    """The identity of a forked process; its id may be used again after its end."""

    def __init__(self, pid: int, began: float | None = None) -> None:
        self.pid = pid
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if began is None or process.create_time() == began:
                self._process = process

    def runs(self) -> bool:
        """Return whether the process runs; a zombie does not run."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = self._process
            if process is not None and process.is_running():
                return bool(process.status() != psutil.STATUS_ZOMBIE)
        return False

    def kill(self) -> None:
        """Send SIGKILL if the process runs."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()


class ForkedProcess:
    """A forked process of the warm process, used like a `subprocess.Popen`.

    Parameters
    ----------
    warm
        The warm process, which reports how this process ends.
    forked
        The identity of the process; None for the agent in the process that becomes warm.
    """

    def __init__(self, warm: WarmProcessHandle, forked: Forked | None) -> None:
        self._warm = warm
        self._forked = forked
        self._ended: float | None = None
        """The time at which the end of the process was first noticed, without a report."""

    @property
    def _identity(self) -> Forked | None:
        return self._forked or self._warm.agent

    @property
    def pid(self) -> int:
        """See `DetachedProcess`."""
        forked = self._identity
        return self._warm.process.pid if forked is None else forked.pid

    def poll(self) -> int | None:
        """See `DetachedProcess`."""
        forked = self._identity
        if forked is None:
            return self._warm.process.poll()
        code = self._warm.codes.get(forked.pid)
        if code is not None or forked.runs():
            return code
        self._ended = self._ended or time.monotonic()
        return None if time.monotonic() - self._ended < _REPORT_S else UNKNOWN_STATUS

    def wait(self, timeout: float | None = None) -> int:
        """See `DetachedProcess`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                assert timeout is not None
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_S)
        return code

    def kill(self) -> None:
        """See `DetachedProcess`."""
        forked = self._identity
        if forked is None:
            self._warm.process.kill()
        else:
            forked.kill()


def _idle_s() -> float | None:
    """Return the idle time limit of a warm process; None for no warm process."""
    text = os.environ.get(IDLE_VARIABLE) or _IDLE
    return None if text == _OFF else parse_duration(text, IDLE_VARIABLE)


def _conditions() -> dict[str, Any] | None:
    """Return the attributes that a new process inherits, and that its imports depend on.

    Return None if they cannot be read. Then no warm process is used or left.
    """
    try:
        status = Path("/proc/thread-self/status").read_text()
        folder = Path.cwd()
        about = folder.stat()
        ignored = _IGNORED_SIGNALS.search(status)
        return {
            "environment": _relevant(os.environ),
            "python": sys.executable,
            "folder": (str(folder), about.st_dev, about.st_ino),
            "status": _SAME_STATUS.findall(status),
            # SIGINT is left out: the kernel ignores it between cells, and ranks set a handler
            "ignored": int(ignored[1], 16) & ~(1 << (signal.SIGINT - 1)) if ignored else 0,
            "limits": Path("/proc/self/limits").read_text(),
            "groups": Path("/proc/self/cgroup").read_text(),
            "priority": os.getpriority(os.PRIO_PROCESS, 0),
            "policy": os.sched_getscheduler(0),
        }
    except OSError:
        return None


def _relevant(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if not _UNREAD.fullmatch(name)}
