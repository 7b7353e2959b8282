"""The messages between the kernel and its ranks, one dataclass each.

The messages of a push or pull are in `workbench.wire.transfer_messages`. `RankGreeting` and
`RingCheck` are not sent as messages: ranks return them from calls through ipyparallel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from workbench.errors import RankError
from workbench.wire.message import Message
from workbench.wire.prompt_messages import InputRequest, PromptKind
from workbench.wire.transport import Transport

MEASUREMENT = "# a measurement of Gradient Workbench\n"
"""Begin of the source of a cell that runs outside the namespace of the user's cells."""

# Clocks.


@dataclass(frozen=True)
class ClockPing(Message):
    """Asks a rank for the time on its clock.

    Attributes
    ----------
    ring
        Number of the ring, counted by the kernel; an answer from an earlier ring is ignored.
    sent_ns
        When the ping was sent, in nanoseconds of the kernel's monotonic clock.
    """

    ring: int
    sent_ns: int


@dataclass(frozen=True)
class ClockPong(Message):
    """Answers a `ClockPing` and repeats its fields.

    Attributes
    ----------
    answered_ns
        When the rank answered, in nanoseconds of its own monotonic clock.
    """

    ring: int
    sent_ns: int
    answered_ns: int


# The activity of a rank.


@dataclass(frozen=True)
class StateRequest(Message):
    """Asks a rank for its `RankState`.

    Attributes
    ----------
    asked_s
        When the request was sent, in seconds of the kernel's monotonic clock. The answer repeats
        it.
    stack
        Whether the answer includes the Python stack of the main thread.
    outstanding
        Whether the answer includes the names of collectives that are not completed.
    for_stall_report
        Whether the answer is for the stall report; repeated in the answer.
    """

    asked_s: float = 0.0
    stack: bool = False
    outstanding: bool = False
    for_stall_report: bool = False


InterruptStage = Literal["", "running", "pending", "raised", "ignored", "ending"]
"""How far the interrupt of a cell has come in a rank.

- ``""``: no cell runs;
- ``"running"``: the cell was not interrupted;
- ``"pending"``: Python has not raised KeyboardInterrupt yet;
- ``"raised"``: KeyboardInterrupt was raised, and the cell's code continues;
- ``"ignored"``: the cell's code has replaced the handler of SIGINT;
- ``"ending"``: the cell's code has ended, and its error or value is being prepared.
"""


UNIDENTIFIED = "a collective of the cell's own"
"""Name of an unknown collective. It is not even known whether the rank waits for a collective."""


@dataclass(frozen=True)
class RankState(Message):
    """Describes what the main thread of a rank does.

    Attributes
    ----------
    asked_s, for_stall_report
        As in the `StateRequest`.
    cell
        Number of the running cell; None if no cell runs.
    collective
        Name of the collective that the rank waits for; None if it waits for no collective.
    blocked_s
        Seconds that the rank has waited; 0 if it does not wait.
    collective_number
        Number by which Horovod matches a collective without a name; None for others.
    process_set
        Horovod's number of the collective's process set; 0 means all ranks.
    members
        Ranks of that process set; None for all ranks.
    calls
        Number of collectives that the rank has started in that process set.
    outstanding
        Names of the collectives that are not completed, if the request asks for them.
    stack
        Python stack of the main thread from the cell's code on, if it was requested.
    interrupt_stage
        How far an interrupt of the cell has come.
    raised_s
        Seconds since KeyboardInterrupt was raised in the cell; 0 if it was not raised.
    prompt
        The source of a prompt for input from the user; None if there is no prompt.
    """

    asked_s: float
    for_stall_report: bool
    cell: int | None
    collective: str | None
    blocked_s: float
    collective_number: int | None
    process_set: int
    members: tuple[int, ...] | None
    calls: int
    outstanding: tuple[str, ...]
    stack: str
    interrupt_stage: InterruptStage
    raised_s: float
    prompt: PromptKind | None = None


@dataclass(frozen=True)
class InterruptCell(Message):
    """Asks a rank to raise KeyboardInterrupt in a cell.

    Attributes
    ----------
    cell
        Number of the cell, or `workbench.rank.interrupts.ANY_CELL`.
    """

    cell: int


@dataclass(frozen=True)
class ReleaseRanks(Message):
    """Asks a rank to end the ring, so that all ranks leave their collectives.

    Attributes
    ----------
    cell
        Number of the cell, or `workbench.rank.interrupts.ANY_CELL`; ignored if another cell runs.
    peer_lost
        Whether a rank has ended: Horovod's own shutdown would wait for that rank.
    in_init
        Whether ranks wait in ``hvd.init()`` for the kernel's rendezvous server.
    """

    cell: int
    peer_lost: bool
    in_init: bool


# Forming the ring.


@dataclass(frozen=True)
class AbortInit(Message):
    """Asks a rank to stop forming or leaving a ring, since another rank does not join.

    Attributes
    ----------
    ring
        Name of the ring; empty for the current ring, regardless of who has formed it.
    """

    ring: str


@dataclass(frozen=True)
class RendezvousRequest(Message):
    """Asks the kernel for a rendezvous server: a cell has called ``hvd.init()``."""


@dataclass(frozen=True)
class RendezvousPort(Message):
    """Answers a `RendezvousRequest` with the TCP port of the server."""

    port: int


# Cells.


OutputKind = Literal["stdout", "stderr", "display"]


@dataclass(frozen=True)
class Output(Message):
    """The output of a cell since the previous `Output` of the rank, in pieces.

    Attributes
    ----------
    cell
        Number of the cell.
    kinds
        The kind of each piece. The text of a display is a JSON object. It has ``data`` (the MIME
        bundle) and ``metadata``; for a display with an id, also ``id`` (the rank's number for the
        display) and ``update``. Or it has only ``clear`` (whether to wait for new output), and the
        rank's earlier output is removed.
    iterations
        For each piece, the number of iterations that the cell had completed.
    characters
        The length of each piece's text in characters.
    total_characters
        Number of characters that the cell has sent so far, if the rank asks the kernel to
        answer with `OutputTaken`; None if it does not.
    text
        The texts of all pieces, in UTF-8.
    """

    cell: int
    kinds: tuple[OutputKind, ...]
    iterations: tuple[int, ...]
    characters: tuple[int, ...]
    total_characters: int | None
    text: bytes

    def __post_init__(self) -> None:
        if not len(self.kinds) == len(self.iterations) == len(self.characters):
            raise ValueError("kinds, iterations and characters differ in length")

    def pieces(self) -> Iterator[tuple[OutputKind, int, str]]:
        """Yield kind, iteration and text of each piece, in order."""
        text = self.text.decode("utf-8", "replace")
        begin = 0
        columns = zip(self.kinds, self.iterations, self.characters, strict=True)
        for kind, iteration, characters in columns:
            yield kind, iteration, text[begin : begin + characters]
            begin += characters


@dataclass(frozen=True)
class OutputTaken(Message):
    """Reports to a rank how much of a cell's output the kernel has processed; see `Output`."""

    cell: int
    total_characters: int


@dataclass(frozen=True)
class CellEnded(Message):
    """Reports how a cell has ended in a rank.

    Attributes
    ----------
    cell
        Number of the cell.
    error
        The exception that ended the cell; None without an exception.
    not_sent
        Why the value of the last expression was not sent; empty if it was sent.
    records
        Number of records of iterations that the rank has sent for the cell.
    outstanding
        Number of collectives that the cell has started and that are not completed.
    calls
        Number of collectives that the rank has started, by process set.
    initialized
        Whether Horovod is initialized.
    value
        The value of the last expression, pickled; None if no value is sent.
    transports
        How collectives are carried, as the libraries report it when the cell ends.
    separate_iterations
        Number of recorded iterations of the cell, if it is known that the rank has exchanged
        no gradient in any of them; otherwise 0.
    recording_failures
        Why recording has stopped, by the kind of recording, such as ``"buckets of DDP"``.
    """

    cell: int
    error: RankError | None
    not_sent: str
    records: int
    outstanding: int
    calls: dict[int, int]
    initialized: bool
    value: bytes | None
    transports: tuple[Transport, ...] = ()
    separate_iterations: int = 0
    recording_failures: dict[str, str] = field(default_factory=dict)


CellMessage = Output | CellEnded | RankState | InputRequest
"""A message that a `CellRun` receives from its ranks."""


# Timings.


@dataclass(frozen=True)
class Records(Message):
    """Records of iterations, each packed by `workbench.wire.record.IterationRecord.pack`."""

    records: tuple[bytes, ...]


# Answers to calls through ipyparallel.


@dataclass(frozen=True)
class RankGreeting:
    """How a new rank process introduces itself.

    Attributes
    ----------
    host
        Host name.
    pid
        Process id on that host.
    threads
        Threads that PyTorch uses for one operation.
    place
        Number of the VM and of the slot on it, as ``"0:1"``; empty for an engine that was not
        started by an agent.
    """

    host: str
    pid: int
    threads: int
    place: str


@dataclass(frozen=True)
class RingCheck:
    """The result of the first collective over a new ring.

    Attributes
    ----------
    total
        Sum over the ranks, to which each rank contributes 1.
    dynamic
        Whether process sets can be added to the ring.
    transports
        How collectives are carried, as the libraries report it after that collective.
    """

    total: float
    dynamic: bool
    transports: tuple[Transport, ...] = ()
