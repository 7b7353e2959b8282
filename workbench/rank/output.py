"""What a cell prints and shows, sent to the kernel while it runs."""

from __future__ import annotations

import builtins
import io
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from IPython.core.displaypub import DisplayPublisher

from workbench.rank.descriptors import Descriptors
from workbench.rank.window import Window
from workbench.wire import Message, Outbox

_WIDGET = "application/vnd.jupyter.widget-view+json"
"""Names a model, which only the notebook's kernel could tell the page of."""


class OutputChannel:
    """Sends what a rank's cells print and show, in its order.

    Writes that follow each other closely leave as one message: the outbox's
    thread takes whatever has come together since it last did. What a thread
    of the user's writes between two cells opens the next one's output. Who
    writes faster than the kernel takes it waits, as for a pipe that is full.

    Parameters
    ----------
    outbox
        To the kernel.
    iteration
        Tells how many iterations the cell has done: it orders what ranks say.
    world_size
        Ranks in the cluster.
    """

    def __init__(
        self, outbox: Outbox, iteration: Callable[[], int] = lambda: 0, world_size: int = 1
    ) -> None:
        self._outbox = outbox
        self._iteration = iteration
        self._window = Window(world_size)
        self._cell: int | None = None
        self._lock = threading.Lock()
        self._pending: list[tuple[str, int, str]] = []

    def move(self, outbox: Outbox, world_size: int) -> None:
        """Send through another outbox from now on, among so many ranks."""
        with self._lock:
            self._outbox = outbox
            self._window.resize(world_size)

    def begin(self, cell: int) -> None:
        """What is written from now on belongs to `cell`."""
        with self._lock:
            self._cell = cell
            self._window.begin()
            if self._pending:
                self._window.write(sum(len(text) for *_, text in self._pending))
                self._outbox.send_later(self._take)

    def end(self) -> None:
        """Send what is left of the cell."""
        with self._lock:
            last = self._messages()
            self._outbox.send_later(lambda: last)
            self._cell = None

    def stop_waiting(self) -> None:
        """Have nobody wait any more: the cell's code has ended, what is left is sent at once."""
        self._window.end()

    def receive(self, message: Message) -> bool:
        """Handle the kernel's answer to a mark; return whether the message is one."""
        if message.kind != "taken":
            return False
        if message.content["cell"] == self._cell:
            self._window.take(message.content["written"])
        return True

    def write(self, stream: str, text: str) -> None:
        """Send text of ``"stdout"`` or ``"stderr"``."""
        self._put(stream, text)

    def show(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Send a display: a MIME bundle and its metadata; of a widget, its text."""
        if _WIDGET in data:
            text = data.get("text/plain", "A widget")
            data = {"text/plain": f"{text}\n(Shown as text: widgets are not supported in a rank.)"}
        self._put("display", json.dumps({"data": _plain(data), "metadata": _plain(metadata)}))

    def _put(self, kind: str, text: str) -> None:
        with self._lock:
            self._pending.append((kind, self._iteration(), text))
            self._window.write(len(text))
            if len(self._pending) == 1 and self._cell is not None:
                self._outbox.send_later(self._take)
        # the outbox's own thread hears the answers
        if self._window.full and not self._outbox.is_own_thread:
            self._window.wait()

    def _take(self) -> list[Message]:
        """Called by the outbox's thread: a later write asks for a further call."""
        with self._lock:
            return self._messages() if self._cell is not None else []

    def _messages(self) -> list[Message]:
        """Return what is pending, each of some displays and runs of one stream in one iteration."""
        messages = []
        segments: list[tuple[str, int, str]] = []
        size = room = self._window.chunk
        for (kind, iteration), pieces in itertools.groupby(self._pending, key=lambda one: one[:2]):
            texts = [text for *_, text in pieces]
            if kind != "display":
                whole = "".join(texts)
                texts = [whole[at : at + size] for at in range(0, len(whole), size)]
            for text in texts:
                segments.append((kind, iteration, text))
                room -= len(text)
                if room <= 0:
                    messages.append(self._message(segments))
                    segments, room = [], size
        if segments:
            messages.append(self._message(segments))
        self._pending.clear()
        return messages

    def _message(self, segments: list[tuple[str, int, str]]) -> Message:
        text = "".join(text for *_, text in segments)
        sizes = [(kind, iteration, len(text)) for kind, iteration, text in segments]
        content = {"cell": self._cell, "segments": sizes, **self._window.send(len(text))}
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
    """Stands in for ``sys.stdout`` or ``sys.stderr``; handlers may keep it over cells.

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
        """Send the text; wait where the kernel is too far behind."""
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


class RankIsNotInteractive(RuntimeError):
    """A cell wants to ask its user something, whom a rank cannot reach."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows below the message: nothing."""
        return []


def _no_input(prompt: object = "") -> str:
    raise RankIsNotInteractive(
        f"input({str(prompt)!r}): not supported in a rank yet. Ask in a cell of the notebook, and "
        "send the answer with %push."
    )


def _no_password(prompt: str = "Password: ", stream: object = None) -> str:  # noqa: ARG001
    raise RankIsNotInteractive(
        f"getpass({prompt!r}): not supported in a rank yet. Ask in a cell of the notebook, and "
        "send the answer with %push."
    )


def _no_debugger(*_: object, **__: object) -> None:
    raise RankIsNotInteractive(
        "breakpoint(): a debugger is not supported in a rank yet. Print what you want to see, or "
        "%pull it into the notebook."
    )


def _no_pager(shell: object, text: object, *_: object, **__: object) -> None:  # noqa: ARG001
    """Stand in for IPython's pager, which shows what ``name?`` finds."""
    sys.stderr.write(
        "name? and ?name: not supported in a rank yet. Use help(name) or print(name.__doc__).\n"
    )


@contextmanager
def not_interactive(shell: Any) -> Iterator[None]:
    """Have whatever waits for a user's answer say at once that it cannot, in the body."""
    import getpass
    import pdb

    replaced: list[tuple[object, str, object]] = [
        (builtins, "input", _no_input),
        (getpass, "getpass", _no_password),
        (sys, "breakpointhook", _no_debugger),
        (pdb.Pdb, "interaction", _no_debugger),
    ]
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    pager = shell.hooks.show_in_pager
    for owner, name, value in replaced:
        setattr(owner, name, value)
    shell.hooks.show_in_pager = MethodType(_no_pager, shell)
    try:
        yield
    finally:
        for owner, name, value in saved:
            setattr(owner, name, value)
        shell.hooks.show_in_pager = pager


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
            with not_interactive(shell):
                yield
        finally:
            self.channel.stop_waiting()
            self._descriptors.restore()
            sys.stdout, sys.stderr, shell.display_pub = saved
            self.channel.end()
