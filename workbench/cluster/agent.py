"""The kernel's handle on the agent of one VM, a process that starts and ends ranks there."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from workbench import logs
from workbench._version import __version__
from workbench.cluster.agent_channel import GRACE_S, RECONNECT_S, AgentChannel, Question
from workbench.cluster.backends import backend_class
from workbench.cluster.launchers import DEFAULT as LOCAL
from workbench.cluster.launchers import Launcher, create
from workbench.cluster.threads import in_background
from workbench.errors import StartFailed
from workbench.hosts import Host
from workbench.rank.backends import DEFAULT
from workbench.resources import Unknown
from workbench.resources.host.machine import machine_identity
from workbench.wire.agent_messages import (
    PROTOCOL,
    Exited,
    Facts,
    Hello,
    Load,
    Loaded,
    Refused,
    SignalRanks,
    Started,
    StartRank,
    StopRanks,
)
from workbench.wire.detached import exit_text, kill_group

_log = logging.getLogger(__name__)

# the path must be short and the same in all sessions; the agent checks its own folder
_FOLDERS = Path("/tmp")  # noqa: S108
_ANSWER_S = 15.0
_END_S = 3.0
_FIXES = (
    (
        r"No usable temporary directory|\[Errno (28|30|122)\]",
        "make the folder for temporary files there (/tmp, or TMPDIR) writable, with free space",
    ),
    (
        r"failed to map segment|[Cc]annot allocate memory|MemoryError",
        "free memory there, or raise its limit (ulimit -v)",
    ),
)


def new_folder() -> Path:
    """Return an unused folder path for an agent; the start of the agent creates it on its VM.

    Examples
    --------
    >>> path = new_folder()
    >>> path.name.startswith("workbench-agent-"), path.exists()
    (True, False)
    """
    return _FOLDERS / f"workbench-agent-{secrets.token_hex(8)}"


def grace_s(keep_s: float | None) -> float:
    """Return after how many seconds without a kernel an agent ends.

    `keep_s` has the meaning that it has in `Agent`.

    Examples
    --------
    >>> grace_s(None), grace_s(1800.0)
    (15.0, 1800.0)
    """
    return GRACE_S if keep_s is None else keep_s


class Agent:
    """Starts and ends the ranks of one VM.

    The agent's process starts immediately and loads what ranks need, so that all VMs of a cluster
    start concurrently. The process survives a lost connection. After the end of the kernel, it
    survives for a grace period.

    Parameters
    ----------
    host
        The VM; None for this machine.
    slots
        The number of ranks that the VM will run; they share its cores.
    keep_s
        How many seconds the agent outlives this kernel; None if it is not kept.
    folder
        The folder of an agent that a previous kernel has kept, to attach to; by default a new
        agent is started.
    assigned_folder
        The folder of the new agent, if the launcher knows it already; see `new_folder`.
    on_change, interrupted
        As for `AgentChannel`.

    Attributes
    ----------
    folder
        The folder of the agent's socket, on its VM.
    hello, facts, loaded
        The latest reports about the agent, its VM, and what it has loaded; empty before the first.
    ends
        How processes of ranks ended, by process id.
    """

    def __init__(
        self,
        host: Host | None,
        slots: int,
        launcher: Launcher | None = None,
        *,
        keep_s: float | None = None,
        folder: Path | None = None,
        assigned_folder: Path | None = None,
        on_change: Callable[[], None] = lambda: None,
        interrupted: threading.Event | None = None,
        backend: str = DEFAULT,
    ) -> None:
        self.host = host
        self.folder = folder or assigned_folder or new_folder()
        self.hello = Hello(0, 0, "", "", "", 0, 0.0, "")
        self.facts = Facts(None, {}, {}, {}, [], {})
        self.loaded = Loaded()
        self._reported: set[type] = set()
        self._slots = slots
        self._launcher = launcher or create(LOCAL)
        self._backend = backend_class(backend)
        self._needed = f"PyTorch and {self._backend.library}"
        self._pids: dict[int, int] = {}
        self._leaders: dict[int, psutil.Process] = {}
        """The processes of the ranks on this machine, by process id."""
        self._starts: dict[int, str] = {}
        """The latest start of each slot that this kernel has requested."""
        self._refused: dict[int, str] = {}
        """Why the start of a rank was refused, by slot."""
        self.ends: dict[int, Exited] = {}
        self._revoked = ""
        """Why the VM was taken from this cluster. Queried after a signal has ended a rank."""
        self._channel = AgentChannel(
            self._launcher, host, self.folder, self._handle_report, on_change, interrupted
        )
        if folder is not None:
            _log.info("attaching to the kept agent of %s", host.shown if host else "this machine")
            self._channel.attach(max(keep_s or 0.0, RECONNECT_S))
            return
        _log.info(
            "starting the agent of %s for %d ranks", host.shown if host else "this machine", slots
        )
        self._channel.start(grace_s(keep_s), keep=keep_s is not None)
        environment = dict(host.environment) if host else {}
        if logs.VARIABLE in os.environ:
            environment.setdefault(logs.VARIABLE, os.environ[logs.VARIABLE])
        self._channel.send(Load(slots, backend, environment, host.directory if host else None))

    @property
    def name(self) -> str:
        """The host's name as the user wrote it, or this machine's name."""
        return self.host.shown if self.host else self.hello.host or "this machine"

    @property
    def local(self) -> bool:
        """Whether the VM is the machine of this kernel, whatever name the host has."""
        return self.host is None or self.facts.machine == machine_identity()

    @property
    def progress(self) -> str:
        """The progress of the VM's start, as a short text."""
        if self.lost:
            return "gone"
        if self.reconnecting:
            return "reconnecting"
        if self._pids:
            return f"{len(self._pids)} of {self._slots} ranks started"
        if Loaded in self._reported:
            return f"{self._needed} loaded"
        return f"loading {self._needed}" if Hello in self._reported else "connecting"

    @property
    def lost(self) -> str:
        """Why the agent can no longer be reached; empty while it can."""
        return self._channel.lost_reason

    @property
    def reconnecting(self) -> bool:
        """Whether the connection to the VM was lost and is being restored."""
        return self._channel.reconnecting

    # the start

    def wait_until_greeted(self, deadline: float) -> None:
        """Wait until the agent has reported itself and its VM.

        Raise `StartFailed` with the VM, the cause and the fix if it did not answer, or has another
        version.
        """
        channel = self._channel
        if not channel.wait(lambda: Facts in self._reported, deadline):
            raise self._launcher.failure(self.host, channel.code, channel.log_tail())
        hello = self.hello
        if (hello.protocol, hello.version) != (PROTOCOL, __version__):
            python = (self.host.python if self.host else None) or sys.executable
            raise StartFailed(
                f"gradient-workbench {hello.version} is installed for {python} there, "
                f"{__version__} runs here",
                vm=self.name,
                fix="install the same version there",
            )

    def wait_until_attached(self, deadline: float) -> bool:
        """Wait for an agent that a previous kernel kept; return False if it is lost."""
        if self._channel.wait(lambda: Facts in self._reported, deadline):
            return True
        name = self.name if self.host else "the agent of this machine"
        self._channel.detach()
        self._channel.lost_reason = f"{name} was lost while no kernel was there"
        _log.info("the kept agent of %s is lost", name)
        return False

    def wait_until_loaded(self, deadline: float) -> None:
        """Wait until the agent has imported all that ranks need.

        Raise `StartFailed` with the VM, the cause and the fix if the imports fail.
        """
        if not self._channel.wait(lambda: Loaded in self._reported, deadline):
            raise StartFailed(
                f"{self.lost or f'{self._needed} were not loaded in time'}\n"
                f"{self._channel.log_tail()}".rstrip(),
                vm=self.name,
            )
        text = self.loaded.error
        if not text:
            return
        if self.loaded.step == "directory":
            raise StartFailed(
                f"the working directory cannot be entered: {text}",
                vm=self.name,
                fix="make it there, or name another (directory=... for the host)",
            )
        if failure := self._backend.import_failure(text, self.name):
            raise failure
        raise StartFailed(
            f"the ranks cannot load what they need: {text}",
            vm=self.name,
            fix=_fix(text, "install gradient-workbench there again"),
        )

    def wait_until_started(self, slot: int, deadline: float) -> int:
        """Wait until the rank of a slot has a process, and return its id."""
        if not self._channel.wait(lambda: slot in self._pids or slot in self._refused, deadline):
            raise StartFailed(
                f"rank process {slot} did not start: {self.lost or 'timed out'}",
                vm=self.name,
            )
        if slot in self._refused:
            reason = self._refused.pop(slot)
            raise StartFailed(
                f"rank process {slot} cannot be started ({reason})",
                vm=self.name,
                fix=_fix(reason, "stop other processes there, or ask for fewer ranks"),
            )
        return self._pids[slot]

    # while it runs

    def start(self, slot: int, **content: Any) -> None:
        """Start the rank of a slot; `content` has the other fields of `StartRank`."""
        # this comes first, so that a late report on an earlier start is ignored
        self._starts[slot] = secrets.token_hex(4)
        self._pids.pop(slot, None)
        self._refused.pop(slot, None)
        self._channel.send(StartRank(slot, self._starts[slot], **content))

    def send(self, message: StopRanks | SignalRanks) -> None:
        """Send the agent a request to stop or signal ranks."""
        self._channel.send(message)

    def ask(self, kind: str, timeout_s: float = _ANSWER_S, **arguments: Any) -> Any:
        """Ask the agent a question, and return the answer; raise `StartFailed` without one."""
        answer = self.answer(self.post(kind, **arguments), time.monotonic() + timeout_s)
        if isinstance(answer, Unknown):
            raise StartFailed(f"{kind!r} could not be answered: {answer.reason}", vm=self.name)
        return answer

    def post(self, kind: str, **arguments: Any) -> Question:
        """Send the agent a question without waiting; `answer` returns the answer to it."""
        return self._channel.post(kind, arguments)

    def answer(self, question: Question, deadline: float) -> Any | Unknown:
        """Wait for the answer to a question of `post`; return `Unknown` if none has arrived."""
        self._channel.wait(lambda: question.answer is not None, deadline)
        answer = question.answer
        if answer is None:
            waited_s = time.monotonic() - question.asked
            state = "is reconnecting, and " if self.reconnecting else ""
            return Unknown(self.lost or f"{self.name} {state}has not answered for {waited_s:.0f} s")
        return answer.answer if answer.error is None else Unknown(str(answer.error))

    def rank_lost_reason(self, pid: int) -> str:
        """Return why the process of a rank can no longer answer; empty while it can."""
        end = self.ends.get(pid)
        if end is None:
            # a process that is not in the list was started by an earlier agent
            is_listed = pid in self._pids.values()
            return self.lost or ("" if is_listed else f"{self.name} was lost with it")
        text = f"its process {pid} on {self.name} {exit_text(end.code)}"
        if self._revoked:
            return f"{self._revoked}; {text}"
        reason = end.oom
        if end.code == -signal.SIGABRT:
            # a library has written the reason; the engine's own lines are about requests
            lines = [line for line in end.log.splitlines() if "[Engine." not in line]
            reason = reason or (lines[-1].strip() if lines else "")
        return f"{text} ({reason})" if reason else text

    def close(self) -> None:
        """End the agent and its ranks; return when the agent has ended or cannot be reached."""
        _log.debug("ending the agent of %s", self.name)
        self._channel.close(_END_S)
        if self.host is None and self._channel.code != 0:
            # the agent was killed, perhaps without its ranks
            for pid, leader in self._leaders.items():
                if pid not in self.ends:
                    kill_group(leader)
            shutil.rmtree(self.folder, ignore_errors=True)

    def detach(self) -> None:
        """Close the connection; the agent continues to run for the next kernel."""
        _log.debug("detaching from the agent of %s", self.name)
        self._channel.detach()

    def _handle_report(self, message: Any) -> None:
        """Store a report of the agent; called in the I/O thread."""
        self._reported.add(type(message))
        match message:
            case Hello():
                self.hello = message
            case Facts():
                self.facts = message
            case Loaded():
                self._handle_loaded(message)
            case Started() | Refused():
                if message.start != self._starts.get(message.slot, message.start):
                    return  # the report is about an earlier start
                if isinstance(message, Started):
                    self._pids[message.slot] = message.pid
                    self.ends.pop(message.pid, None)  # an earlier process may have had this id
                    if self.host is None:
                        with contextlib.suppress(psutil.NoSuchProcess):
                            self._leaders[message.pid] = psutil.Process(message.pid)
                else:
                    self._refused[message.slot] = message.why
            case Exited() if message.code < 0 and self._launcher.allocates:
                in_background(lambda: self._handle_killed(message))
            case Exited():
                _log.info("process %d on %s %s", message.pid, self.name, exit_text(message.code))
                self.ends[message.pid] = message

    def _handle_loaded(self, message: Loaded) -> None:
        self.loaded = message
        if message.pid:
            self.hello = replace(self.hello, pid=message.pid, began=message.began)

    def _handle_killed(self, message: Exited) -> None:
        """Store that a signal has ended a rank, with the reason if its VM was taken away."""
        try:
            self._revoked = self._revoked or self._launcher.unavailable_reason(self.host)
        finally:
            self.ends[message.pid] = message
        _log.info("process %d on %s %s", message.pid, self.name, exit_text(message.code))


def _fix(error: str, default: str) -> str:
    """Return the fix for an error of an agent that lacks space or memory, or `default`.

    Examples
    --------
    >>> _fix("MemoryError", "install it again")
    'free memory there, or raise its limit (ulimit -v)'
    >>> _fix("SyntaxError", "install it again")
    'install it again'
    """
    return next((fix for pattern, fix in _FIXES if re.search(pattern, error)), default)
