"""Where a cell's folded output goes."""

from __future__ import annotations

import json
import sys
from typing import Protocol

from workbench.cluster.fold import Folded, Writer
from workbench.cluster.ranks import label


class Sink(Protocol):
    """Takes folded output in its order."""

    def put(self, folded: Folded) -> None:
        """Take one line or display."""

    def note(self, text: str) -> None:
        """Take what the kernel itself has to say, in whole lines."""

    def close(self) -> None:
        """Nothing more will come."""


class TextSink:
    """Keeps the output as text; a display counts as its plain text."""

    def __init__(self) -> None:
        self._writer = Writer()
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._parts)

    def put(self, folded: Folded) -> None:
        """Keep one line or display."""
        mark = label(folded.ranks)
        if not folded.item.bundle:
            self._parts.append(self._writer.render(folded, mark))
            return
        plain = json.loads(folded.item.bundle)["data"].get("text/plain", "")
        self._parts += [self._writer.close(), _marked(mark, str(plain))]

    def note(self, text: str) -> None:
        """Keep what the kernel says."""
        self._parts += [self._writer.close(), text]

    def close(self) -> None:
        """End an unfinished line."""
        self._parts.append(self._writer.close())


class NotebookSink:
    """Shows the output where the calling cell's output goes, rich displays as such."""

    def __init__(self) -> None:
        self._writer = Writer()
        self._stream = "stdout"

    def put(self, folded: Folded) -> None:
        """Show one line or display."""
        mark = label(folded.ranks)
        if folded.item.bundle:
            self._show(mark, **json.loads(folded.item.bundle))
            return
        if folded.item.stream != self._stream:
            self._write(self._writer.close())
            self._stream = folded.item.stream
        self._write(self._writer.render(folded, mark))

    def note(self, text: str) -> None:
        """Show what the kernel says, as a warning is shown."""
        self._write(self._writer.close())
        sys.stderr.write(text)
        sys.stderr.flush()

    def close(self) -> None:
        """End an unfinished line."""
        self._write(self._writer.close())
        sys.stdout.flush()

    def _show(self, mark: str, data: dict[str, object], metadata: dict[str, object]) -> None:
        self._write(self._writer.close())
        if set(data) == {"text/plain"}:
            self._write(_marked(mark, str(data["text/plain"])))
            return
        from IPython.display import display

        self._write(mark + "\n")
        sys.stdout.flush()
        display(data, metadata=metadata, raw=True)

    def _write(self, text: str) -> None:
        if text:
            (sys.stderr if self._stream == "stderr" else sys.stdout).write(text)


def _marked(mark: str, text: str) -> str:
    """Return a value's text behind its mark, on lines of its own where it has several."""
    return f"{mark}{chr(10) if chr(10) in text else ' '}{text}\n"
