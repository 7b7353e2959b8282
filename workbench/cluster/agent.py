"""The agent of a VM, as the kernel sees it: a process here or over ssh that brings up ranks."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workbench
from workbench.cluster import ssh
from workbench.cluster.agent_channel import AgentChannel, Question
from workbench.cluster.child import Child, Gone, Held, Keep, Piped, exit_text
from workbench.cluster.host import Host
from workbench.errors import HorovodMissing, StartFailed
from workbench.resources import Unknown
from workbench.resources.host.identity import machine_identity
from workbench.wire.lines import PROTOCOL

_PROGRAM = ("-m", "workbench.rank.agent")
_PING_S = 2.0
_SILENCE_S = 60.0
"""An agent over ssh that hears nothing for this long ends its ranks: its kernel is unreachable."""
_SAID_LINES = 60
_LOCAL = "the agent of this machine"
_ANSWER_S = 15.0
_END_S = 3.0


@dataclass(frozen=True)
class End:
    """How a rank's process ended.

    Attributes
    ----------
    code
        As ``subprocess`` counts: negative for a signal.
    oom
        What is known about memory having run out, or an empty string.
    log
        The last lines that it wrote.
    """

    code: int
    oom: str
    log: str


class Agent:
    """Brings up the ranks of one VM.

    Its process is started at once, and told what to load, so that all VMs of a
    cluster come up together.

    Parameters
    ----------
    host
        The VM; None for this machine, without ssh.
    slots
        Ranks that it will run, which share its cores.
    ssh_config
        An ssh client configuration to use instead of the user's own.
    keep
        How it outlives this kernel; None: it does not.
    found
        It runs already, kept from an earlier kernel.
    on_change
        Called, in a thread, when it has come a step further.
    interrupted
        While it is set, no report or answer is waited for.

    Attributes
    ----------
    name
        The VM's name for people.
    hello, facts, loaded
        What the agent has told of itself, of its VM, and of what it could load.
    """

    def __init__(
        self,
        host: Host | None,
        slots: int,
        ssh_config: Path | None = None,
        *,
        keep: Keep | None = None,
        found: bool = False,
        on_change: Callable[[], None] = lambda: None,
        interrupted: threading.Event | None = None,
    ) -> None:
        self.host = host
        self._slots = slots
        self._keep = keep
        self.hello: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self.loaded: dict[str, Any] = {}
        self._python = (host.python if host else None) or sys.executable
        self._pids: dict[int, int] = {}
        self._starts: dict[int, str] = {}
        """Which start of a slot is the newest, of those that this kernel has ordered."""
        self._refused: dict[int, str] = {}
        self._ends: dict[int, End] = {}
        self._gone = ""
        self._closing = False
        self._said: deque[str] = deque(maxlen=_SAID_LINES)
        self._child = self._find(keep) if keep and found else self._start(ssh_config)
        self._channel = AgentChannel(
            self._child,
            said=self._said.append,
            take=self._take,
            on_change=on_change,
            on_end=self._end,
            interrupted=interrupted,
        )
        self._channel.start()
        if not found:
            self.order(
                "load",
                slots=slots,
                environment=dict(host.environment) if host else {},
                directory=host.directory if host else None,
                silence_s=_SILENCE_S if host else None,
            )
        if host is not None:
            threading.Thread(target=self._keep_alive, daemon=True).start()

    def _find(self, keep: Keep) -> Child:
        try:
            return Held.find(keep.path)
        except StartFailed:
            if self.host is None:
                raise
            self._gone = f"{self.name} was lost while no kernel was there"
            return Gone()

    def _start(self, ssh_config: Path | None) -> Child:
        program = [self._python, *_PROGRAM]
        if self.host is not None:
            command = ssh.command(self.host, program, ssh_config)
        else:
            command = [*program, str(os.getpid()) if self._keep is None else "{pid}"]
        if self._keep is None:
            return Piped(command, self._said.append)
        return Held.start(self._keep.path, self._keep.grace_s, command)

    @property
    def name(self) -> str:
        """The host as the user named it, or this machine's name."""
        return self.host.name if self.host else str(self.hello.get("host", "this machine"))

    @property
    def local(self) -> bool:
        """Whether the VM is the machine that this kernel runs on, by whatever name."""
        return self.host is None or self.facts.get("machine") == machine_identity()

    @property
    def progress(self) -> str:
        """How far the VM is on its way up."""
        if self._gone:
            return "gone"
        if self._pids:
            return f"{len(self._pids)} of {self._slots} ranks started"
        if self.loaded:
            return "PyTorch and Horovod loaded"
        return "loading PyTorch and Horovod" if self.hello else "connecting"

    @property
    def identity(self) -> dict[str, Any]:
        """Which process it is there, as the question ``retire`` wants it."""
        return {"pid": self.hello["pid"], "began": self.hello["began"]}

    @property
    def lost(self) -> str:
        """Why the agent can no longer be reached; empty while it can."""
        return self._gone

    # the start

    def wait_until_greeted(self, deadline: float) -> None:
        """Wait for the agent's greeting and facts.

        Raises
        ------
        StartFailed
            It did not answer, or has another version: the VM, the cause and the cure.
        """
        if not self._channel.wait(lambda: bool(self.facts), deadline):
            code = self._child.poll()
            if self.host is None:
                raise StartFailed(f"{_LOCAL} {_ended(code)}:\n{self._tail()}")
            raise ssh.failure(self.host, code, self._tail(), self._python)
        theirs = self.hello.get("protocol"), self.hello.get("version")
        if theirs != (PROTOCOL, workbench.__version__):
            raise StartFailed(
                f"gradient-workbench {theirs[1]} is installed for {self._python} there, "
                f"{workbench.__version__} runs here",
                vm=self.name,
                cure="install the same version there",
            )

    def wait_until_loaded(self, deadline: float) -> None:
        """Wait until PyTorch and Horovod are imported there.

        Raises
        ------
        StartFailed, HorovodMissing
            They cannot be: the VM, the cause and the cure.
        """
        if not self._channel.wait(lambda: bool(self.loaded), deadline):
            raise StartFailed(
                f"{self._gone or 'PyTorch and Horovod were not loaded in time'}\n"
                f"{self._tail()}".rstrip(),
                vm=self.name,
            )
        if "error" not in self.loaded:
            return
        text = str(self.loaded["error"])
        if self.loaded.get("step") == "directory":
            raise StartFailed(
                f"the working directory cannot be entered: {text}",
                vm=self.name,
                cure="make it there, or name another (directory=... for the host)",
            )
        if "horovod" in text:
            raise HorovodMissing(
                f"the ranks cannot load Horovod ({text.splitlines()[-1]})",
                vm=self.name,
                cure="build it there for its PyTorch with `workbench build-horovod`",
            )
        raise StartFailed(
            f"the ranks cannot load what they need: {text}",
            vm=self.name,
            cure="install gradient-workbench there anew",
        )

    def wait_until_started(self, slot: int, deadline: float) -> int:
        """Wait until the rank of a slot has a process, and return its id."""
        if not self._channel.wait(lambda: slot in self._pids or slot in self._refused, deadline):
            raise StartFailed(
                f"rank process {slot} did not start: {self._gone or 'its time is over'}",
                vm=self.name,
            )
        if slot in self._refused:
            raise StartFailed(
                f"rank process {slot} cannot be started ({self._refused.pop(slot)})",
                vm=self.name,
                cure="end what else runs there, or ask for fewer ranks",
            )
        return self._pids[slot]

    # while it runs

    def order(self, kind: str, **content: Any) -> None:
        """Send an order; where the agent is gone, `lost` tells."""
        self._channel.order(kind, **content)

    def start(self, slot: int, **content: Any) -> None:
        """Start the rank of a slot."""
        self._pids.pop(slot, None)
        self._refused.pop(slot, None)
        self._starts[slot] = secrets.token_hex(4)
        self.order("start", slot=slot, start=self._starts[slot], **content)

    def ask(self, kind: str, timeout_s: float = _ANSWER_S, **of: Any) -> Any:
        """Ask about the VM's network or memory, and return the answer.

        Raises
        ------
        StartFailed
            No answer came.
        """
        answer = self._channel.ask(kind, of, timeout_s)
        if answer is None:
            why = self._gone or f"it did not answer {kind!r} within {timeout_s:g} s"
            raise StartFailed(why, vm=self.name)
        if "error" in answer:
            raise StartFailed(f"{kind!r} could not be answered: {answer['error']}", vm=self.name)
        return answer["answer"]

    def post(self, kind: str) -> Question:
        """Ask for ``"snapshot"`` or ``"sample"``, and return at once; see `answer`."""
        return self._channel.post(kind, {})

    def answer(self, question: Question, deadline: float) -> Any | Unknown:
        """Wait for the answer to what was posted, or return why there is none yet."""
        self._channel.wait(lambda: question.answer is not None, deadline)
        told = question.answer
        if told is None:
            waited_s = time.monotonic() - question.asked
            return Unknown(self._gone or f"{self.name} has not answered for {waited_s:.0f} s")
        return told["answer"] if "answer" in told else Unknown(str(told["error"]))

    def started(self, pid: int) -> bool:
        """Whether a process is one of its ranks, and of no agent before it."""
        return pid in self._pids.values()

    def end_of(self, pid: int) -> End | None:
        """Return how a rank's process ended, or None while it runs."""
        return self._ends.get(pid)

    def wait_until_gone(self) -> None:
        """Wait until the agent has ended, for whatever reason."""
        self._channel.join()

    def close(self) -> None:
        """End the agent, which ends its ranks; returns when it is gone, or cannot be reached."""
        self._closing = True
        self._child.end(_END_S)
        self._channel.join(1.0)
        if self.host is None:
            for pid in set(self._pids.values()) - set(self._ends):  # a stopped one cannot follow
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)

    def leave(self) -> None:
        """Let it run where it is kept; else end it."""
        self._closing = True
        self._child.leave()

    # what it reports, in a thread

    def _take(self, kind: str, content: dict[str, Any]) -> None:
        if kind in {"hello", "facts", "loaded"}:
            setattr(self, kind, content)
        elif kind in {"started", "refused"}:
            slot, start = content["slot"], content.get("start")
            if start != self._starts.get(slot, start):
                return  # of a start that was given up
            if kind == "started":
                self._pids[slot] = content["pid"]
            else:
                self._refused[slot] = content["why"]
        elif kind == "exited":
            self._ends[content["pid"]] = End(content["code"], content["oom"], content["log"])

    def _end(self) -> None:
        stopped = f"the agent of {self.name} was stopped"
        if not self._gone:
            self._gone = stopped if self._closing else self._why_gone(self._child.poll())

    def _why_gone(self, code: int | None) -> str:
        if self.host is None:
            return f"{_LOCAL} {_ended(code)}"
        said = [line for line in self._said if line.strip()]
        last = f" ({said[-1].strip()})" if said else ""
        if code == 255:
            return f"{self.name} does not answer any more{last}"
        if code is not None and code < 0:  # a signal here ends ssh; one there is ssh's status 255
            return f"the ssh client of {self.name} on this machine {exit_text(code)}{last}"
        return f"the agent of {self.name} {_ended(code)}{last}"

    def _keep_alive(self) -> None:
        while not self._closing and not self._gone:
            self.order("ping")
            time.sleep(_PING_S)

    def _tail(self) -> str:
        return "\n".join(self._said)


def _ended(code: int | None) -> str:
    return "did not greet in time" if code is None else exit_text(code)
