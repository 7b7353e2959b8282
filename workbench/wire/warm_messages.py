"""Messages between a kernel and its warm process, one per packet of a socket pair.

`workbench.cluster.warm` is the kernel's side, `workbench.agent.warm` the process's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from workbench.wire.agent_messages import Load
from workbench.wire.message import from_json

PACKET_BYTES = 1 << 16
"""The longest packet that is read."""


@dataclass(frozen=True)
class Settings:
    """The first message to the process that is to become warm, sent before it starts.

    Attributes
    ----------
    kernel
        Process id of the kernel, with which the process ends.
    idle_s
        The process ends after so many seconds without a fork and without a forked process.
    modules
        Modules to load when nothing else is to be done, which later forks need.
    """

    kernel: int
    idle_s: float
    modules: list[str]


@dataclass(frozen=True)
class Fork:
    """Fork a process that runs a module's `main`.

    The packet carries three descriptors: the listening socket, the log, and one end of a socket
    pair. The new process writes its id to the latter, and goes on when it has read a byte.

    Attributes
    ----------
    module, arguments
        As in ``python -m MODULE ARGUMENTS``.
    environment
        Variables that differ from those of the kernel when the warm process was started; None
        for a variable that was deleted.
    load
        What the new process will be told to load; None if it is no agent.
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
    """The process is warm: the agent that it was continues in the process `pid`."""

    pid: int
    began: float


@dataclass(frozen=True)
class Ended:
    """A forked process has ended; `code` is its exit status as ``subprocess`` counts."""

    pid: int
    code: int


_MESSAGES: dict[str, Any] = {one.__name__: one for one in (Settings, Fork, Warm, Ended)}


def encode(message: Settings | Fork | Warm | Ended) -> bytes:
    """Return a message as one packet."""
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
