"""Messages between a kernel and the agent of a VM: one dataclass each, sent as a line of JSON.

The kernel sends `Attach` first; the agent answers with its complete state: `Hello`, `Facts`,
`Loaded` and one `Started`, `Refused` or `Exited` for each rank's process so far.

Messages travel over a socket, and over the pipes of a launcher such as ssh. A login shell may
print lines there, too: only lines that contain `MARK` are messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workbench.wire.address import Address
from workbench.wire.message import from_json

PROTOCOL = 3
"""Version of the messages. It is increased with every change that older versions cannot read."""
MARK = b"\x1eworkbench "

# from the kernel


@dataclass(frozen=True)
class Attach:
    """Opens each connection: the kernel's first message.

    Attributes
    ----------
    session
        Identifies the kernel's use of this agent; the same after a reconnect.
    silence_s
        The connection counts as closed after this many seconds without a message; None: never.
    """

    session: str
    silence_s: float | None = None


@dataclass(frozen=True)
class Load:
    """Asks the agent to import PyTorch and a backend, with settings for all ranks of the VM.

    Attributes
    ----------
    slots
        Number of ranks on the VM.
    backend
        Name of the backend, as in `workbench.rank.backends.BACKENDS`.
    environment
        Environment variables of all ranks.
    directory
        Working directory of the ranks; None keeps the agent's.
    """

    slots: int
    backend: str
    environment: dict[str, str] = field(default_factory=dict)
    directory: str | None = None


@dataclass(frozen=True)
class StartRank:
    """Asks the agent to fork the rank of a slot.

    Attributes
    ----------
    start
        Identifies this attempt; `Started` or `Refused` repeats it.
    connection
        ipyparallel's connection information, keys included.
    stream
        Where the kernel receives the merged records of the VM; None if each rank sends its records
        itself.
    """

    slot: int
    start: str
    connection: dict[str, Any]
    environment: dict[str, str]
    cores: list[int]
    stream: Address | None = None


@dataclass(frozen=True)
class StopRanks:
    """Asks the agent to end the ranks of these slots."""

    slots: list[int]


@dataclass(frozen=True)
class SignalRanks:
    """Asks the agent to send the signal with this number to every rank."""

    number: int


@dataclass(frozen=True)
class Ask:
    """A question; the `Answer` has the same id."""

    id: str
    question: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ping:
    """Shows that the kernel is running; answered with `Pong`."""


@dataclass(frozen=True)
class End:
    """Asks the agent to end the ranks, and then itself."""


# from the agent


@dataclass(frozen=True)
class Hello:
    """Identifies the process that answers.

    Attributes
    ----------
    received
        Number of messages of this session that have arrived, without `Attach` and `Ping`.
    protocol, version
        `PROTOCOL`, and the version of this package.
    began
        When the process started, in seconds since the epoch.
    connection
        The variable ``SSH_CONNECTION``; empty without ssh.
    """

    received: int
    protocol: int
    version: str
    python: str
    host: str
    pid: int
    began: float
    connection: str


@dataclass(frozen=True)
class Facts:
    """Describes the VM.

    Attributes
    ----------
    machine
        Identity of the VM; None if it is unknown.
    snapshot
        As `Snapshot.from_plain` reads it.
    numa_of
        NUMA node of each GPU, by PCI address.
    cores_of
        Cores of each NUMA node.
    cores
        Cores that the agent may use.
    networks
        Network of each address of the VM.
    secrets
        Secret values of its environment variables, which evidence bundles must not contain.
    """

    machine: str | None
    snapshot: dict[str, Any]
    numa_of: dict[str, Any]
    cores_of: dict[str, Any]
    cores: list[int]
    networks: dict[str, str]
    secrets: list[str] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Loaded:
    """Reports that PyTorch and the backend are imported, or could not be.

    Attributes
    ----------
    versions
        Versions of ``"torch"``, of the ``"cuda"`` that PyTorch was built with (empty without
        CUDA), and of the libraries that the backend uses.
    threads
        OpenMP threads of each rank; None if the user has set them.
    error
        Why the import failed; empty otherwise.
    step
        The step that failed: ``"directory"`` or ``"import"``.
    pid, began
        Id and start time of the process in which the agent continues, as in `Hello`; 0 if the
        agent has not moved to another process.
    """

    versions: dict[str, str] = field(default_factory=dict)
    threads: int | None = None
    error: str = ""
    step: str = ""
    pid: int = 0
    began: float = 0.0


@dataclass(frozen=True)
class Started:
    """Reports that the rank of a slot has a process."""

    slot: int
    start: str
    pid: int


@dataclass(frozen=True)
class Refused:
    """Reports that the rank of a slot could not be started."""

    slot: int
    start: str
    why: str


@dataclass(frozen=True)
class Exited:
    """Reports that a rank's process has ended.

    Attributes
    ----------
    code
        Exit status as in ``subprocess``: negative for a signal.
    oom
        What is known about memory that ran out, or an empty string.
    log
        The last lines of the process's log.
    """

    pid: int
    code: int
    oom: str
    log: str


@dataclass(frozen=True)
class Answer:
    """Answers a question, or gives the reason why it cannot be answered."""

    id: str
    answer: Any = None
    error: str | None = None


@dataclass(frozen=True)
class Pong:
    """Answers a `Ping`; `received` as in `Hello`."""

    received: int


@dataclass(frozen=True)
class Replaced:
    """Reports that another kernel has attached; this connection is closed next."""


@dataclass(frozen=True)
class AgentEnded:
    """Reports that the agent has ended; sent by the relay.

    Attributes
    ----------
    code
        The agent's exit status; None if it is unknown.
    log
        The last lines of the agent's log.
    why
        Why the relay has ended it; empty otherwise.
    """

    code: int | None
    log: str
    why: str = ""


_MESSAGES: dict[str, Any] = {
    message_class.__name__: message_class
    for message_class in (
        *(Attach, Load, StartRank, StopRanks, SignalRanks, Ask, Ping, End),
        *(Hello, Facts, Loaded, Started, Refused, Exited, Answer, Pong, Replaced, AgentEnded),
    )
}


def encode(message: Any) -> bytes:
    r"""Return a message as one line.

    Examples
    --------
    >>> encode(Pong(received=3))
    b'\x1eworkbench ["Pong", {"received": 3}]\n'
    """
    # asdict() is not used, as it copies a snapshot value by value.
    return MARK + json.dumps([type(message).__name__, vars(message)], default=vars).encode() + b"\n"


class MessageReader:
    r"""Splits a stream of bytes into messages.

    Parameters
    ----------
    other
        Called with the text of each line that is not a message, such as the output of a login
        shell, and with an error for each message that cannot be read.

    Attributes
    ----------
    pending_bytes
        The length of the line that is not complete.

    Examples
    --------
    >>> lines = []
    >>> reader = MessageReader(lines.append)
    >>> reader.feed(b"Welcome to vm1\n" + encode(Pong(3))[:20])
    []
    >>> lines
    ['Welcome to vm1']
    >>> reader.feed(encode(Pong(3))[20:])
    [Pong(received=3)]
    """

    def __init__(self, other: Callable[[str], None] = lambda _: None) -> None:
        self._other = other
        self._incomplete: list[bytes] = []
        """The pieces of the line that is not complete. They are joined only once."""
        self.pending_bytes = 0

    def feed(self, data: bytes) -> list[Any]:
        """Return the messages that are now complete, in order."""
        first, *others = data.split(b"\n")
        self._incomplete.append(first)
        self.pending_bytes += len(first)
        if not others:
            return []
        lines = [b"".join(self._incomplete), *others[:-1]]
        self._incomplete = [others[-1]]
        self.pending_bytes = len(others[-1])
        return [message for line in lines if (message := self._read(line)) is not None]

    def _read(self, line: bytes) -> Any:
        before, mark, content = line.partition(MARK)
        if not mark:
            self._other(before.decode("utf-8", "replace").rstrip())
            return None
        try:
            name, fields = json.loads(content)
            if name not in _MESSAGES:
                raise ValueError("it is unknown")
            return from_json(_MESSAGES[name], fields, strict=False)
        except (ValueError, TypeError, RecursionError) as error:
            text = content[:40].decode("utf-8", "replace")
            self._other(f"Message {text!r}: not readable, {error}.")
            return None
