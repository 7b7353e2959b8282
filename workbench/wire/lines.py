"""Lines of JSON between the kernel and the agent of a VM, over a pipe or ssh.

A login shell there may print what it likes: only lines that begin with `MARK` count.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from workbench.errors import WireError

PROTOCOL = 2
"""Raised with every change that the other end cannot read."""
MARK = b"\x1eworkbench "


def encode_line(kind: str, content: dict[str, Any]) -> bytes:
    """Return one line: a kind such as ``"start"`` and plain JSON values."""
    return MARK + json.dumps([kind, content]).encode() + b"\n"


END = encode_line("end", {})
"""What a kernel writes before it closes a process's input on purpose; a crash does not."""


def decode_line(line: bytes) -> tuple[str, dict[str, Any]] | None:
    """Read what `encode_line` made; None where the line is none of ours.

    Raises
    ------
    WireError
        The line is one of ours and cannot be read.
    """
    place = line.find(MARK)
    if place < 0:
        return None
    try:
        kind, content = json.loads(line[place + len(MARK) :])
        return str(kind), dict(content)
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"a line that is not readable arrived: {error}") from error


class LineReader:
    """Cuts a stream of bytes into messages.

    Parameters
    ----------
    other
        Called with each line that is none of ours.
    """

    def __init__(self, other: Callable[[str], None] = lambda _: None) -> None:
        self._other = other
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[str, dict[str, Any]]]:
        """Return the messages that are complete now, in order."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages = []
        for line in lines:
            message = decode_line(line)
            if message is None:
                self._other(line.decode("utf-8", "replace").rstrip())
            else:
                messages.append(message)
        return messages
