"""Messages between a kernel and its warm process, one per packet of a socket pair.

`workbench.cluster.warm` is the kernel's side, and `workbench.agent.warm` the process's side.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from workbench.wire.agent_messages import Load
from workbench.wire.message import from_json

PACKET_BYTES = 1 << 16
"""Maximum size of a packet."""


@dataclass(frozen=True)
class Settings:
    """The first message to a warm process, sent before the process starts.

    Attributes
    ----------
    kernel
        Process id of the kernel. The process ends together with it.
    idle_s
        The process ends after this many seconds without a fork and without a forked process.
    modules
        Modules that later forks need, to be loaded while the process is idle.
    """

    kernel: int
    idle_s: float
    modules: list[str]


@dataclass(frozen=True)
class Fork:
    """Asks the warm process to fork a process that runs a module's `main`.

    The packet carries three descriptors: the listening socket, the log, and one end of a socket
    pair. The new process writes its id to the socket pair, and continues when it has read a byte.

    Attributes
    ----------
    module, arguments
        As in ``python -m MODULE ARGUMENTS``.
    environment
        Variables that differ from the kernel's when the warm process was started; None
        for a variable that was deleted.
    load
        What the new process will have to load; None if it is not an agent.
    idle_s
        As in `Settings`.
    """

    module: str
    arguments: list[str]
    idle_s: float
    environment: dict[str, str | None] = field(default_factory=dict)
    load: Load | None = None


@dataclass(frozen=True)
class Warm:
    """Reports that the process is warm.

    Attributes
    ----------
    pid, began
        Id and start time of the process in which the agent, which the process was before,
        continues; see `workbench.wire.agent_messages.Loaded`.
    """

    pid: int
    began: float


@dataclass(frozen=True)
class Ended:
    """Reports that a forked process has ended; `code` is its exit status as in ``subprocess``."""

    pid: int
    code: int


_MESSAGES: dict[str, Any] = {
    message_class.__name__: message_class for message_class in (Settings, Fork, Warm, Ended)
}


def encode(message: Settings | Fork | Warm | Ended) -> bytes:
    """Return a message as one packet.

    Examples
    --------
    >>> decode(encode(Ended(pid=4711, code=0)))
    Ended(pid=4711, code=0)
    """
    return json.dumps([type(message).__name__, vars(message)], default=vars).encode()


def decode(packet: bytes) -> Any:
    """Return the message of a packet.

    Raises
    ------
    ValueError, TypeError
        It is not one of these messages.
    """
    name, fields = json.loads(packet)
    return from_json(_MESSAGES[name], fields)
