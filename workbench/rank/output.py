"""What a cell prints and shows, sent to the kernel while it runs."""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.displaypub import DisplayPublisher

from workbench.rank.descriptors import Descriptors
from workbench.wire import Message, Outbox


class OutputChannel:
    """Sends what a rank's cells print and show, in its order.

    Writes that follow each other closely leave as one message: the outbox's
    thread takes whatever has come together since it last did. What a thread
    of the user's writes between two cells opens the next one's output.

    Parameters
    ----------
    outbox
        To the kernel.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._cell: int | None = None
        self._lock = threading.Lock()
        self._pending: list[tuple[str, str]] = []

    def move(self, outbox: Outbox) -> None:
        """Send through another outbox from now on."""
        with self._lock:
            self._outbox = outbox

    def begin(self, cell: int) -> None:
        """What is written from now on belongs to `cell`."""
        with self._lock:
            self._cell = cell
            if self._pending:
                self._outbox.send_later(self._take)

    def end(self) -> None:
        """Send what is left of the cell."""
        with self._lock:
            last = self._messages()
            self._outbox.send_later(lambda: last)
            self._cell = None

    def write(self, stream: str, text: str) -> None:
        """Send text of ``"stdout"`` or ``"stderr"``."""
        with self._lock:
            self._pending.append((stream, text))
            if len(self._pending) == 1 and self._cell is not None:
                self._outbox.send_later(self._take)

    def show(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Send a display: a MIME bundle and its metadata."""
        bundle = json.dumps({"data": _plain(data), "metadata": _plain(metadata)}).encode()
        with self._lock:
            before = self._messages()
            message = Message("display", {"cell": self._cell}, (bundle,))
            self._outbox.send_later(lambda: [*before, message])

    def _take(self) -> list[Message]:
        """Called by the outbox's thread: a later write asks for a further call."""
        with self._lock:
            return self._messages() if self._cell is not None else []

    def _messages(self) -> list[Message]:
        """Return what is pending, a message for each run of one stream."""
        runs = itertools.groupby(self._pending, key=lambda piece: piece[0])
        messages = [
            Message(
                "output",
                {"cell": self._cell, "stream": stream},
                ("".join(text for _, text in pieces).encode("utf-8", "replace"),),
            )
            for stream, pieces in runs
        ]
        self._pending.clear()
        return messages


def _plain(values: dict[str, Any]) -> Any:
    """Return values that JSON can carry; whatever else becomes its text."""
    return json.loads(json.dumps(values, default=_encode))


def _encode(value: object) -> str:
    if isinstance(value, bytes):
        import base64

        return base64.b64encode(value).decode()
    return str(value)


class CellStream(io.TextIOBase):
    """Stands in for ``sys.stdout`` or ``sys.stderr``; one for all cells of a rank.

    A logging handler or a progress bar may keep it from one cell to the next.

    Parameters
    ----------
    kind
        ``"stdout"`` or ``"stderr"``.
    descriptor
        Where a forked child writes instead: it has none of our threads.
    """

    encoding = "utf-8"

    def __init__(self, kind: str, channel: OutputChannel, descriptor: int) -> None:
        self.name = f"<{kind}>"
        self._kind = kind
        self._channel = channel
        self._descriptor = descriptor
        self._pid = os.getpid()

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor whose output is shown as well."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Send the text; never blocks."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if os.getpid() != self._pid:
            os.write(self._descriptor, text.encode("utf-8", "replace"))
        elif text:
            self._channel.write(self._kind, text)
        return len(text)

    def close(self) -> None:
        """Stay open: the next cell prints as well."""


class CellDisplays(DisplayPublisher):
    """Stands in for the shell's display publisher while a cell runs."""

    def __init__(self, channel: OutputChannel) -> None:
        super().__init__()
        self._channel = channel

    def publish(
        self, data: dict[str, Any], metadata: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Send a display; updates of earlier displays arrive as new ones."""
        self._channel.show(data, metadata or {})

    def clear_output(self, wait: bool = False) -> None:
        """Do nothing: what other ranks have shown stands in the same place."""


class Capture:
    """Takes a shell's output, and its process's, for the time of a cell.

    Parameters
    ----------
    shell
        The engine's IPython shell.
    channel
        Where the output goes.
    """

    def __init__(self, shell: Any, channel: OutputChannel) -> None:
        self.channel = channel
        self._shell = shell
        self._streams = {
            "stdout": CellStream("stdout", channel, 1),
            "stderr": CellStream("stderr", channel, 2),
        }
        self._descriptors = Descriptors(channel.write)

    @contextmanager
    def __call__(self, cell: int) -> Iterator[None]:
        """Send what is printed and shown meanwhile as the output of `cell`."""
        shell = self._shell
        saved = sys.stdout, sys.stderr, shell.display_pub
        self.channel.begin(cell)
        sys.stdout, sys.stderr = self._streams["stdout"], self._streams["stderr"]
        shell.display_pub = CellDisplays(self.channel)
        self._descriptors.redirect()
        try:
            yield
        finally:
            self._descriptors.restore()
            sys.stdout, sys.stderr, shell.display_pub = saved
            self.channel.end()
