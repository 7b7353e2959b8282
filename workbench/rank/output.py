"""What a cell prints and shows, sent to the kernel while it runs."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.displaypub import DisplayPublisher

from workbench.wire import Message, Outbox


class OutputChannel:
    """Sends one cell's text and displays, in their order.

    Writes that follow each other closely leave as one message: the outbox's
    thread takes whatever has come together since it last did.

    Parameters
    ----------
    outbox
        To the kernel.
    cell
        The cell's number.
    """

    def __init__(self, outbox: Outbox, cell: int) -> None:
        self._outbox = outbox
        self._cell = cell
        self._lock = threading.Lock()
        self._stream = ""
        self._pending: list[str] = []

    def write(self, stream: str, text: str) -> None:
        """Send text of ``"stdout"`` or ``"stderr"``."""
        with self._lock:
            if self._pending and self._stream != stream:
                self._outbox.send(self._message())
            self._stream = stream
            self._pending.append(text)
            if len(self._pending) == 1:
                self._outbox.send_later(self._take)

    def show(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Send a display: a MIME bundle and its metadata."""
        with self._lock:
            if self._pending:
                self._outbox.send(self._message())
            content = {"cell": self._cell, "metadata": _plain(metadata)}
            bundle = json.dumps(_plain(data)).encode()
            self._outbox.send(Message("display", content, (bundle,)))

    def _take(self) -> list[Message]:
        """Called by the outbox's thread: a later write asks for a further call."""
        with self._lock:
            return [self._message()] if self._pending else []

    def _message(self) -> Message:
        text = "".join(self._pending)
        self._pending.clear()
        content = {"cell": self._cell, "stream": self._stream}
        return Message("output", content, (text.encode("utf-8", "replace"),))


def _plain(values: dict[str, Any]) -> Any:
    """Return values that JSON can carry; whatever else becomes its text."""
    return json.loads(json.dumps(values, default=_encode))


def _encode(value: object) -> str:
    if isinstance(value, bytes):
        import base64

        return base64.b64encode(value).decode()
    return str(value)


class CellStream(io.TextIOBase):
    """Stands in for ``sys.stdout`` or ``sys.stderr`` while a cell runs."""

    encoding = "utf-8"

    def __init__(self, name: str, channel: OutputChannel) -> None:
        self.name = f"<{name}>"
        self._kind = name
        self._channel = channel

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Send the text; never blocks."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            self._channel.write(self._kind, text)
        return len(text)


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


@contextmanager
def captured(shell: Any, channel: OutputChannel) -> Iterator[None]:
    """Send what the shell prints and shows through `channel`."""
    import sys

    saved = sys.stdout, sys.stderr, shell.display_pub
    sys.stdout, sys.stderr = CellStream("stdout", channel), CellStream("stderr", channel)
    shell.display_pub = CellDisplays(channel)
    try:
        yield
    finally:
        sys.stdout, sys.stderr, shell.display_pub = saved
