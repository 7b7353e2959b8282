"""One message between the kernel and a rank, and its codec."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import WireError

VERSION = 1
"""Raised with every change that the other end cannot read."""


@dataclass(frozen=True)
class Message:
    """A control message, or a batch of records.

    Attributes
    ----------
    kind
        What it is, such as ``"output"`` or ``"records"``.
    content
        Plain JSON values.
    payload
        Binary parts, copied as they are.
    """

    kind: str
    content: dict[str, Any] = field(default_factory=dict)
    payload: tuple[bytes, ...] = ()

    def encode(self) -> list[bytes]:
        """Return the ZeroMQ frames: version, kind, JSON content, payload..."""
        return [
            bytes([VERSION]),
            self.kind.encode(),
            json.dumps(self.content).encode(),
            *self.payload,
        ]

    @classmethod
    def decode(cls, frames: list[bytes]) -> Message:
        """Read the frames that `encode` made.

        Raises
        ------
        WireError
            The message is cut short, is no message of ours, or has another version.
        """
        if len(frames) < 3 or len(frames[0]) != 1:
            raise WireError(f"a message of {len(frames)} frames arrived, one has at least 3")
        if frames[0][0] != VERSION:
            raise WireError(
                f"a message of version {frames[0][0]} arrived, this end reads version {VERSION}: "
                "install the same gradient-workbench on every VM"
            )
        try:
            return cls(frames[1].decode(), json.loads(frames[2]), tuple(frames[3:]))
        except ValueError as error:
            raise WireError(f"a message that is not readable arrived: {error}") from error
