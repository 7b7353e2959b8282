"""Where a cell's merged output goes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from workbench.cluster.bounded_text import BoundedText
from workbench.cluster.excerpt import DOUBLE, HALF, Excerpt, Size
from workbench.cluster.fold import Folded, Item, Writer
from workbench.cluster.ranks import label

_REDRAW_S = 2.0
"""How often the output of a cell is written again, where it is too long to show whole."""


class Sink(Protocol):
    """Takes merged output: as it comes, and also in its final order."""

    def put(self, folded: Folded) -> None:
        """Take one line or display."""

    def note(self, text: str) -> None:
        """Take what the kernel itself has to say, in whole lines."""

    def poll(self) -> None:
        """Called several times a second while the cell runs."""

    def order(self, output: Sequence[Folded]) -> None:
        """Take the next part of the output in its final order, as soon as that is certain."""

    def settle(self, output: Sequence[Folded]) -> None:
        """Take the last part of the final order; nothing more will come."""


class _Text:
    """Output as text; a display counts as its plain text."""

    def __init__(self) -> None:
        self._writer = Writer()
        self.text = BoundedText()

    def add(self, folded: Folded) -> None:
        mark = _mark(folded)
        if not folded.item.bundle:
            self.text.add(self._writer.render(folded, mark))
            return
        plain = json.loads(folded.item.bundle)["data"].get("text/plain", "")
        self.text.add(self._writer.close(), _marked(mark, str(plain)))

    def note(self, text: str) -> None:
        self.text.add(self._writer.close(), text)

    def close(self) -> None:
        self.text.add(self._writer.close())


class TextSink:
    """Keeps the output as text; a display counts as its plain text."""

    def __init__(self) -> None:
        self._live = _Text()
        self._final = _Text()

    @property
    def text(self) -> str:
        """All text so far; once the cell has ended, in its final order."""
        return str(self._live.text)

    def put(self, folded: Folded) -> None:
        """Keep one line or display."""
        self._live.add(folded)

    def note(self, text: str) -> None:
        """Keep what the kernel says."""
        self._live.note(text)

    def poll(self) -> None:
        """Do nothing."""

    def order(self, output: Sequence[Folded]) -> None:
        """Keep the next part of the final order, for the end."""
        for folded in output:
            self._final.add(folded)

    def settle(self, output: Sequence[Folded]) -> None:
        """Have the final order as the text."""
        self.order(output)
        self._live, self._final = self._final, _Text()
        self.close()

    def close(self) -> None:
        """End an unfinished line."""
        self._live.close()


class NotebookSink:
    """Shows the output where the calling cell's output goes, rich displays as such.

    What is shown while the cell runs depends on when it arrived. Where that is
    not the final order, a ``%%distributed`` cell is written again at its end;
    elsewhere (a call of `Cluster.run`, a terminal) there may be other output,
    which must stay. A long output is shown as its beginning and its end, except
    in a terminal.
    """

    def __init__(self) -> None:
        self._own_cell = _is_distributed_cell()
        self._limited = _is_notebook()
        self._excerpt = self._new_excerpt()
        self._final = self._new_excerpt()
        """The same in the final order."""
        self._page = Page()
        self._limit = DOUBLE if self._own_cell else HALF
        self._used = Size()
        self._hidden: Folded | None = None
        """The latest that is not shown yet, for there is no room."""
        self._drawn = time.monotonic()

    def put(self, folded: Folded) -> None:
        """Show one line or display, as long as there is room."""
        self._excerpt.add(folded)
        self._used.add(folded.item)
        if not self._limited or (self._hidden is None and self._used.fits(self._limit)):
            self._page.write(folded)
        else:
            self._hidden = folded

    def note(self, text: str) -> None:
        """Show what the kernel says, as a warning is shown."""
        self.put(Folded((), Item("stderr", text)))
        sys.stderr.flush()

    def poll(self) -> None:
        """Show what there was no room for: its end, from time to time."""
        hidden, now = self._hidden, time.monotonic()
        if hidden is None or now - self._drawn < _REDRAW_S:
            return
        self._drawn = now
        if self._own_cell:
            self._redraw()
            self._hidden, self._used, self._limit = None, Size(), HALF
        else:
            self._page.write(self._excerpt.progress())
            self._page.write(hidden)

    def order(self, output: Sequence[Folded]) -> None:
        """Take the next part of the final order, to show it at the end."""
        if self._own_cell:
            for folded in output:
                self._final.add(folded)

    def settle(self, output: Sequence[Folded]) -> None:
        """Show the final order, or the end of what there was no room for."""
        self.order(output)
        self._page.close()
        if self._own_cell:
            self._excerpt = self._final
            final = Page(silent=True)
            final.write(*self._excerpt.entries())
            final.close()
            if final.chunks != self._page.chunks:
                self._redraw()
        elif self._hidden is not None:
            self._page.write(*self._excerpt.end())
        self._page.close()
        sys.stdout.flush()

    def _new_excerpt(self) -> Excerpt:
        return Excerpt("_distributed.output" if self._own_cell else "the result's `output`")

    def _redraw(self) -> None:
        from IPython.display import clear_output

        clear_output(wait=True)
        self._page = Page()
        self._page.write(*self._excerpt.entries())


class Page:
    """Writes to the calling cell's output, and remembers what.

    Parameters
    ----------
    silent
        Only remember.

    """

    def __init__(self, *, silent: bool = False) -> None:
        self._parts: list[tuple[str, list[str]]] = []
        self._writer = Writer()
        self._stream = "stdout"
        self._silent = silent

    @property
    def chunks(self) -> list[tuple[str, str]]:
        """Streams with their text, and displays, as a front end joins them."""
        return [(kind, "".join(texts)) for kind, texts in self._parts]

    def write(self, *entries: Folded) -> None:
        """Write lines and displays."""
        for folded in entries:
            mark = _mark(folded)
            if folded.item.bundle:
                self._display(mark, folded.item.bundle)
                continue
            if folded.item.stream != self._stream:
                self.close()
                self._stream = folded.item.stream
            self._text(self._writer.render(folded, mark))

    def close(self) -> None:
        """End an unfinished line."""
        self._text(self._writer.close())

    def _display(self, mark: str, bundle: str) -> None:
        self.close()
        self._stream = "stdout"  # a value is no warning, whatever was printed before it
        content = json.loads(bundle)
        data = content["data"]
        if set(data) == {"text/plain"}:
            self._text(_marked(mark, str(data["text/plain"])))
            return
        self._text(mark + "\n")
        self._parts.append(("display", [bundle]))
        if self._silent:
            return
        from IPython.display import display

        sys.stdout.flush()
        display(data, metadata=content["metadata"], raw=True)

    def _text(self, text: str) -> None:
        if not text:
            return
        changed = not self._parts or self._parts[-1][0] != self._stream
        if changed:
            self._parts.append((self._stream, []))
        self._parts[-1][1].append(text)
        if self._silent:
            return
        if changed:  # two streams keep their order only where each is sent before the other
            (sys.stdout if self._stream == "stderr" else sys.stderr).flush()
        (sys.stderr if self._stream == "stderr" else sys.stdout).write(text)


def _is_notebook() -> bool:
    """Whether what is printed becomes part of a notebook."""
    iostream = sys.modules.get("ipykernel.iostream")
    return iostream is not None and isinstance(sys.stdout, iostream.OutStream)


def _is_distributed_cell() -> bool:
    """Whether the cell that runs here is a ``%%distributed`` one, with no output but its own."""
    if not _is_notebook():
        return False
    from IPython import get_ipython

    shell: Any = get_ipython()
    try:
        code = shell.get_parent()["content"]["code"]
    except (AttributeError, KeyError, LookupError, TypeError):
        return False
    return str(code).lstrip().startswith("%%distributed")


def _mark(folded: Folded) -> str:
    return _label(folded.ranks) if folded.ranks else ""


_label = lru_cache(label)


def _marked(mark: str, text: str) -> str:
    """Return a value's text behind its mark, on lines of its own where it has several."""
    return f"{mark}{chr(10) if chr(10) in text else ' '}{text}\n"
