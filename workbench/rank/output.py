"""Captures what a cell prints and shows, and sends it to the kernel while the cell runs."""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from ipykernel.zmqshell import ZMQDisplayPublisher

from workbench.rank.descriptors import Descriptors
from workbench.rank.pager import pages_printed
from workbench.rank.widgets import OutputAreas, is_blank
from workbench.rank.window import SendWindow
from workbench.wire import Message, Outbox
from workbench.wire.rank_messages import Output, OutputKind, OutputTaken

_MAX_CHARACTERS_BETWEEN = 1 << 20
"""Maximum number of characters kept from threads that write between two cells."""
_LEFT_OUT = "(Later output between the cells is left out.)\n"
_WIDGET = "application/vnd.jupyter.widget-view+json"
"""MIME type of a reference to a widget's model; the model exists in the rank only."""


class OutputChannel:
    """Sends the output of a rank's cells in its order.

    The outbox's thread joins the writes since its last message. Output of threads between two
    cells is added to the next cell's output. A cell that writes faster than the kernel reads has
    to wait, as it would for a full pipe.

    Parameters
    ----------
    outbox
        The connection to the kernel.
    iteration
        Returns the number of iterations that the cell has completed; output is ordered by it.
    world_size
        Number of ranks in the cluster.

    Attributes
    ----------
    descriptors
        Output of code that bypasses Python's streams; its earlier text is sent first.
    areas
        Contents of the rank's ``ipywidgets.Output`` widgets.
    """

    def __init__(
        self, outbox: Outbox, iteration: Callable[[], int] = lambda: 0, world_size: int = 1
    ) -> None:
        self._outbox = outbox
        self._iteration = iteration
        self._window = SendWindow(world_size)
        self._cell: int | None = None
        self.descriptors: Descriptors | None = None
        self.areas = OutputAreas(self.show, lambda: self.open)
        self._lock = threading.RLock()
        """Reentrant, because a signal handler of the user may print."""
        self._pending: list[tuple[OutputKind, int, str]] = []
        self._putting = False
        self._between = 0
        self._displays: dict[str, int] = {}
        """The number of each display id of the cell."""

    @property
    def open(self) -> bool:
        """Whether a cell runs."""
        return self._cell is not None

    def move(self, outbox: Outbox, world_size: int) -> None:
        """Use another outbox and another number of ranks from now on."""
        with self._lock:
            self._outbox = outbox
            self._window.resize(world_size)

    def begin(self, cell: int) -> None:
        """Attribute the output from now on to `cell`."""
        with self._lock:
            self._cell = cell
            self._between = 0
            self._displays.clear()
            self._window.begin()
            if self._pending:
                self._window.write(sum(len(text) for *_, text in self._pending))
                self._outbox.send_later(self._take)

    def end(self) -> None:
        """Send the rest of the cell's output."""
        with self._lock:
            if last := self._messages():
                self._outbox.send_later(lambda: last)
            self._cell = None

    def stop_waiting(self) -> None:
        """Release blocked writers once the cell's code has ended."""
        self._window.end()

    def receive(self, message: Message) -> bool:
        """Handle an `OutputTaken` of the kernel; return whether the message is one."""
        if not isinstance(message, OutputTaken):
            return False
        if message.cell == self._cell:
            self._window.confirm(message.total_characters)
        return True

    def write(self, kind: OutputKind, text: str) -> None:
        """Send text, or a display as JSON, after earlier output to the descriptors."""
        with self._lock:
            nested = self._putting  # in a signal handler
            self._putting = True
            try:
                if not nested and self.descriptors is not None and self.descriptors.has_text():
                    self._put_descriptor_text(self.descriptors)
                self._put(kind, text)
            finally:
                self._putting = nested
        if not nested:
            self._wait_for_kernel()

    def forward(self, ahead: bool = False) -> None:
        """Send output to the descriptors; for `ahead` see `Descriptors.read`."""
        with self._lock:
            self._putting = True
            try:
                if self.descriptors is not None:
                    self._put_descriptor_text(self.descriptors, ahead)
            finally:
                self._putting = False
        self._wait_for_kernel()

    def show(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any],
        display_id: str | None = None,
        *,
        update: bool = False,
    ) -> None:
        """Send a display as a MIME bundle and its metadata; for a widget, send only its text.

        Parameters
        ----------
        display_id
            Identifies the display, so that a later display of this cell can replace it.
        update
            Whether to replace the display with this id.
        """
        if not data:  # the object has displayed itself, or could not be displayed
            return
        if _WIDGET in data:
            if self.areas.display(str(data[_WIDGET].get("model_id"))):
                return
            text = data.get("text/plain", "A widget")
            data = {"text/plain": f"{text}\n(Shown as text: widgets are not supported in a rank.)"}
        content = {"data": _plain(data), "metadata": _plain(metadata)}
        if display_id is not None:
            # ids are random; with numbers instead, ranks that do the same send equal messages
            with self._lock:  # threads of the cell may display at the same time
                number = self._displays.setdefault(display_id, len(self._displays) + 1)
            content = {"id": number, "update": update} | content
        # ASCII would escape a lone surrogate, which would then reach the notebook
        self.write("display", json.dumps(content, ensure_ascii=False))

    def clear(self, *, wait: bool) -> None:
        """Remove this rank's earlier output of the cell; with `wait`, when it writes again."""
        self.write("display", json.dumps({"clear": wait}))

    def _wait_for_kernel(self) -> None:
        # the outbox's thread must not wait: it receives the confirmations
        if self._window.full and not self._outbox.is_own_thread:
            self._window.wait()

    def _put_descriptor_text(self, descriptors: Descriptors, ahead: bool = False) -> None:
        for kind, text in descriptors.read(ahead=ahead):
            self._put(kind, text)

    def _put(self, kind: OutputKind, text: str) -> None:
        if self._cell is None:
            if self._between > _MAX_CHARACTERS_BETWEEN:
                return
            self._between += len(text)
            if self._between > _MAX_CHARACTERS_BETWEEN:
                kind = "stderr"
                text = _LEFT_OUT
        first = not self._pending  # before a signal handler may add to it
        self._pending.append((kind, self._iteration(), text))
        self._window.write(len(text))
        if first and self._cell is not None:
            self._outbox.send_later(self._take)

    def _take(self) -> list[Message]:
        """Return the pending output; the outbox's thread calls this once per request."""
        with self._lock:
            return self._messages()

    def _messages(self) -> list[Message]:
        """Return the pending output, joined by stream and iteration."""
        messages: list[Message] = []
        if self._cell is None:
            return messages
        pending = self._pending
        self._pending = []
        segments: list[tuple[OutputKind, int, str]] = []
        size = left = self._window.chunk
        for (kind, iteration), pieces in itertools.groupby(
            pending, key=lambda segment: segment[:2]
        ):
            texts = [text for *_, text in pieces]
            if kind != "display":
                joined = "".join(texts)
                texts = [joined[offset : offset + size] for offset in range(0, len(joined), size)]
            for text in texts:
                segments.append((kind, iteration, text))
                left -= len(text)
                if left <= 0:
                    messages.append(self._message(self._cell, segments))
                    segments = []
                    left = size
        if segments:
            messages.append(self._message(self._cell, segments))
        return messages

    def _message(self, cell: int, segments: list[tuple[OutputKind, int, str]]) -> Output:
        kinds, iterations, texts = zip(*segments, strict=True)
        text = "".join(texts)
        total = self._window.send(len(text))
        lengths = tuple(map(len, texts))
        return Output(cell, kinds, iterations, lengths, total, text.encode("utf-8", "replace"))


def _plain(values: dict[str, Any]) -> Any:
    """Return values as JSON values; other objects are replaced by their text."""
    return json.loads(json.dumps(values, default=_encode))


def _encode(value: object) -> str:
    if isinstance(value, bytes):
        import base64

        return base64.b64encode(value).decode()
    return str(value)


class _ForkCount:
    """Counts the forks between this process and the first one that has imported the module."""

    def __init__(self) -> None:
        self.value = 0
        os.register_at_fork(after_in_child=self._increase)

    def _increase(self) -> None:
        self.value += 1


_forks = _ForkCount()  # faster than a comparison of process ids, which needs a system call


class CellStream(io.TextIOBase):
    """Replaces ``sys.stdout`` or ``sys.stderr``, from the first cell on.

    Between two cells, output of the main thread goes to the engine's stream, and output of
    other threads is kept for the next cell.

    Parameters
    ----------
    kind
        ``"stdout"`` or ``"stderr"``.
    channel
        Sends the output.
    descriptor
        A forked child writes to this descriptor, because it does not have the rank's threads. The
        child writes complete lines, so that lines of several children do not divide each other.
    engine
        The engine's stream, which this stream replaces.
    """

    encoding = "utf-8"

    def __init__(
        self, kind: OutputKind, channel: OutputChannel, descriptor: int, engine: TextIO
    ) -> None:
        self.name = f"<{kind}>"
        self._engine = engine
        self._kind = kind
        self._channel = channel
        self._descriptor = descriptor
        self._fork_count = _forks.value
        self._line = ""
        """The unfinished line of a forked child, which it has not written yet."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the stream; output to the descriptor is shown too."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Send the text; wait if the kernel is too far behind."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if _forks.value != self._fork_count:
            self._write_in_child(text)
        elif not self._channel.open and threading.current_thread() is threading.main_thread():
            self._engine.write(text)
        elif (area := self._channel.areas.current()) is not None:
            self._channel.areas.write(area, text)
        elif text:
            self._channel.write(self._kind, text)
        return len(text)

    def flush(self) -> None:
        """Write an unfinished line of a forked child; the rank itself sends all text at once."""
        line = self._line
        self._line = ""
        if line:
            os.write(self._descriptor, line.encode("utf-8", "replace"))

    def close(self) -> None:
        """Do nothing: the next cell needs the stream."""

    def _write_in_child(self, text: str) -> None:
        self._line += text
        if "\n" in text:
            lines, _, rest = self._line.rpartition("\n")
            self._line = lines + "\n"
            self.flush()
            self._line = rest


class CellDisplays(ZMQDisplayPublisher):
    """Replaces the shell's display publisher while a cell runs.

    It has all attributes of ipykernel's publisher, because libraries use them.

    Parameters
    ----------
    channel
        Sends the displays.
    usual
        The shell's own publisher.
    """

    def __init__(self, channel: OutputChannel, usual: ZMQDisplayPublisher) -> None:
        super().__init__(session=usual.session, pub_socket=usual.pub_socket, topic=usual.topic)
        self._channel = channel

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *_: Any,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **__: Any,
    ) -> None:
        """Send a display, or an update of an earlier one of the same cell."""
        transient = transient or {}
        content = {"data": data, "metadata": metadata or {}, "transient": transient}
        if self._hooks:
            hooked = self._hooked("update_display_data" if update else "display_data", content)
            if hooked is None:
                return
            content = hooked["content"]
        display_id = (content.get("transient") or {}).get("display_id")
        areas = self._channel.areas
        area = areas.current()
        shown = content["data"]
        if area is not None and areas.add(area, shown, display_id, update=update):
            return
        if not is_blank(shown):  # an empty line of rich
            self._channel.show(shown, content["metadata"], display_id, update=update)

    def clear_output(self, wait: bool = False) -> None:
        """Remove this rank's earlier output of the cell; output of other ranks stays.

        In an ``ipywidgets.Output``, remove only its contents.
        """
        if self._hooks and self._hooked("clear_output", {"wait": wait}) is None:
            return
        area = self._channel.areas.current()
        if area is None:
            self._channel.clear(wait=bool(wait))
        else:
            self._channel.areas.clear(area, wait=bool(wait))

    def _hooked(self, kind: str, content: dict[str, Any]) -> dict[str, Any] | None:
        """Pass a message through the registered hooks; return None if a hook has consumed it."""
        message: dict[str, Any] | None = self.session.msg(kind, content, self.parent_header)
        for hook in self._hooks:
            message = hook(message)
            if message is None:
                return None
        return message


class Capture:
    """Redirects the output of a shell, and of its process, while a cell runs."""

    def __init__(self, shell: Any, channel: OutputChannel) -> None:
        self.channel = channel
        self._shell = shell
        self._streams = {
            "stdout": CellStream("stdout", channel, 1, sys.stdout),
            "stderr": CellStream("stderr", channel, 2, sys.stderr),
        }
        self._displays = CellDisplays(channel, shell.display_pub)
        channel.areas.install()
        self._descriptors = channel.descriptors = Descriptors(channel.forward)

    @contextmanager
    def __call__(self, cell: int) -> Iterator[None]:
        """Send the printed and shown output of the body as the output of `cell`."""
        shell = self._shell
        displays = shell.display_pub
        self.channel.begin(cell)
        self.channel.areas.begin_cell()
        sys.stdout = self._streams["stdout"]
        sys.stderr = self._streams["stderr"]
        shell.display_pub = self._displays
        self._descriptors.redirect()
        try:
            with pages_printed(shell):
                yield
        finally:
            self.channel.stop_waiting()
            self.channel.areas.flush()
            self._descriptors.restore()
            self.channel.forward()
            # the cell may have replaced them; threads of the user continue to print to them
            sys.stdout = self._streams["stdout"]
            sys.stderr = self._streams["stderr"]
            shell.display_pub = displays
            self.channel.end()
