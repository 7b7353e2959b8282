"""Destinations of a cell's merged output."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

from workbench.output.bounded_text import MAX_CHARACTERS, BoundedText
from workbench.output.excerpt import DOUBLE, HALF, Excerpt, Size, is_clear, is_update
from workbench.output.merger import Item, LabelWriter, MergedItem
from workbench.ranks import label

_REDRAW_S = 2.0
"""Seconds between redraws of output that is too long to show completely."""
_REWRITE_S = 0.2
"""Seconds between redraws of output that ranks clear or update."""


class Sink(Protocol):
    """A destination of merged output, which arrives twice: live and in its final order."""

    def put(self, merged: MergedItem) -> None:
        """Receive one line or display."""

    def note(self, text: str) -> None:
        """Receive a note of the kernel, in complete lines."""

    def poll(self) -> None:
        """Do periodic work; called several times a second while the cell runs."""

    def put_final(self, output: Sequence[MergedItem]) -> None:
        """Receive the next chunk of the final order when it is determined."""

    def finish(self) -> None:
        """Complete the output after the end of the cell, for example by showing the final order."""


class _LabelledText:
    """Output as text; a display is represented by its plain text."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._writer = LabelWriter()
        self.text = BoundedText(max_characters)

    def add(self, merged: MergedItem) -> None:
        mark = _mark(merged)
        if not merged.item.bundle:
            self.text.add(self._writer.render(merged, mark))
            return
        if is_clear(merged.item):  # the text keeps the cleared output
            return
        plain = json.loads(merged.item.bundle)["data"].get("text/plain", "")
        self.text.add(self._writer.close(), _marked(mark, str(plain)))

    def note(self, text: str) -> None:
        self.text.add(self._writer.close(), text)

    def close(self) -> None:
        self.text.add(self._writer.close())


class TextSink:
    r"""A sink that stores the output as text; a display is represented by its plain text.

    Parameters
    ----------
    poll
        Function that is called several times a second while the cell runs.
    max_characters
        Maximum length of the text while the cell runs. The middle of a longer text is dropped.

    Examples
    --------
    >>> sink = TextSink()
    >>> sink.put(MergedItem((0, 1), Item("stdout", "ready\n")))
    >>> sink.text
    '[ranks 0-1] ready\n'
    """

    def __init__(
        self,
        poll: Callable[[], object] = lambda: None,
        *,
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        self._poll = poll
        self._live = _LabelledText(max_characters)
        self._final = _LabelledText()

    @property
    def text(self) -> str:
        """The text so far; after the end of the cell, in its final order."""
        return str(self._live.text)

    def put(self, merged: MergedItem) -> None:
        """Store one line or display."""
        self._live.add(merged)

    def note(self, text: str) -> None:
        """Store a note of the kernel."""
        self._live.note(text)

    def poll(self) -> None:
        """Call the function `poll`."""
        self._poll()

    def put_final(self, output: Sequence[MergedItem]) -> None:
        """Store the next chunk of the final order, which is used at the end."""
        for merged in output:
            self._final.add(merged)

    def finish(self) -> None:
        """Replace the text by the final order."""
        self._live = self._final
        self._final = _LabelledText()
        self._live.close()


class NotebookSink:
    """A sink that shows the output in the calling cell, with rich displays.

    The order while the cell runs depends on arrival times. If it differs from the final
    order, the output of a ``%%distributed`` cell is replaced at the end. Other callers
    (`Cluster.run`, a terminal) may have other output, which is not replaced. Only the
    beginning and the end of long output are shown, except in a terminal.

    In a ``%%distributed`` cell, ``clear_output()`` removes the output of its rank, and
    ``update_display`` replaces a display.
    """

    def __init__(self) -> None:
        self._is_distributed = _is_distributed_cell()
        self._is_limited = _is_notebook()
        self._excerpt = self._new_excerpt()
        self._final = self._new_excerpt()
        """The excerpt of the output in its final order."""
        self._page = Page()
        self._limit = DOUBLE if self._is_distributed else HALF
        self._used = Size()
        """Amount of output that was written since the last redraw."""
        self._hidden: MergedItem | None = None
        """The latest item that is not shown yet, because of the limit or of `_rewritten`."""
        self._rewritten = False
        """Whether shown output was cleared or replaced since it was drawn."""
        self._drawn_at = time.monotonic()

    def put(self, merged: MergedItem) -> None:
        """Show one line or display, within the limit."""
        if is_clear(merged.item) and not self._is_distributed:
            return
        self._rewritten |= is_clear(merged.item) or (
            self._is_distributed and is_update(merged.item)
        )
        self._excerpt.add(merged)
        self._used.add(merged.item)
        fits = self._hidden is None and not self._rewritten and self._used.fits(self._limit)
        if not self._is_limited or fits:
            self._page.write(merged)
        else:
            self._hidden = merged

    def note(self, text: str) -> None:
        """Show a note of the kernel on standard error."""
        self.put(MergedItem((), Item("stderr", text)))
        sys.stderr.flush()

    def poll(self) -> None:
        """Show rewritten output, and the end of output that exceeds the limit, at intervals."""
        hidden = self._hidden
        now = time.monotonic()
        interval_s = _REWRITE_S if self._rewritten else _REDRAW_S
        if hidden is None or now - self._drawn_at < interval_s:
            return
        self._drawn_at = now
        if self._is_distributed:
            self._redraw()
            self._hidden = None
            self._used = Size()
            self._limit = HALF
            self._rewritten = False
        else:
            self._page.write(self._excerpt.progress())
            self._page.write(hidden)

    def put_final(self, output: Sequence[MergedItem]) -> None:
        """Store the next chunk of the final order, to show it at the end."""
        if self._is_distributed:
            for merged in output:
                self._final.add(merged)

    def finish(self) -> None:
        """Show the final order, or the end of output that exceeded the limit."""
        self._page.close()
        if self._is_distributed:
            self._excerpt = self._final
            final_page = Page(silent=True)
            final_page.write(*self._excerpt.entries())
            final_page.close()
            if final_page.chunks != self._page.chunks:
                self._redraw()
            # Later output, such as a note on the ring, must be shown at once.
            self._hidden = None
            self._rewritten = False
            self._used = Size()
        elif self._hidden is not None:
            self._page.write(*self._excerpt.end())
        self._page.close()
        sys.stdout.flush()

    def _new_excerpt(self) -> Excerpt:
        return Excerpt("_distributed.output" if self._is_distributed else "the result's `output`")

    def _redraw(self) -> None:
        from IPython.display import clear_output

        entries = self._excerpt.entries()
        clear_output(wait=bool(entries))
        self._page = Page()
        self._page.write(*entries)


class Page:
    """Writer to the calling cell's output, which records the written texts and displays.

    Parameters
    ----------
    silent
        Record without writing.
    """

    def __init__(self, *, silent: bool = False) -> None:
        self._parts: list[tuple[str, list[str]]] = []
        self._writer = LabelWriter()
        self._stream = "stdout"
        self._silent = silent
        self._ids: dict[tuple[tuple[int, ...], int], str] = {}
        """Display ids of the kernel, by the ranks and the number of the display on them."""

    @property
    def chunks(self) -> list[tuple[str, str]]:
        """The texts with their streams, and the displays, joined as a front end joins them."""
        return [(kind, "".join(texts)) for kind, texts in self._parts]

    def write(self, *entries: MergedItem) -> None:
        """Write lines and displays."""
        for merged in entries:
            mark = _mark(merged)
            if merged.item.bundle:
                self._display(merged, mark)
                continue
            if merged.item.stream != self._stream:
                self.close()
                self._stream = merged.item.stream
            self._text(self._writer.render(merged, mark))

    def close(self) -> None:
        """End an unfinished line."""
        self._text(self._writer.close())

    def _display(self, merged: MergedItem, mark: str) -> None:
        from IPython.display import display

        content = json.loads(merged.item.bundle)
        data = content["data"]
        display_key = merged.ranks, content.get("id", 0)
        options: dict[str, Any] = {"metadata": content["metadata"], "raw": True}
        if content.get("update") and display_key in self._ids and set(data) != {"text/plain"}:
            if not self._silent:
                display(data, **options, display_id=self._ids[display_key], update=True)
            return
        self.close()
        self._stream = "stdout"  # A value is written there, even after text on stderr.
        if set(data) == {"text/plain"}:
            self._text(_marked(mark, str(data["text/plain"])))
            return
        self._text(mark + "\n")
        self._parts.append(("display", [merged.item.bundle]))
        if display_key[1]:
            options["display_id"] = self._ids.setdefault(display_key, secrets.token_hex(8))
        if self._silent:
            return
        sys.stdout.flush()
        display(data, **options)

    def _text(self, text: str) -> None:
        if not text:
            return
        stream_changed = not self._parts or self._parts[-1][0] != self._stream
        if stream_changed:
            self._parts.append((self._stream, []))
        self._parts[-1][1].append(text)
        if self._silent:
            return
        if stream_changed:  # Flush the other stream to keep the order of both.
            (sys.stdout if self._stream == "stderr" else sys.stderr).flush()
        stream = sys.stderr if self._stream == "stderr" else sys.stdout
        try:
            stream.write(text)
        except UnicodeEncodeError:  # In a locale such as C, a script's stream is ASCII.
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _is_notebook() -> bool:
    """Return whether printed text becomes notebook output."""
    iostream = sys.modules.get("ipykernel.iostream")
    return iostream is not None and isinstance(sys.stdout, iostream.OutStream)


def _is_distributed_cell() -> bool:
    """Return whether the running cell is a ``%%distributed`` cell, which has no other output."""
    if not _is_notebook():
        return False
    from IPython import get_ipython

    shell: Any = get_ipython()
    try:
        code = shell.get_parent()["content"]["code"]
    except (AttributeError, KeyError, LookupError, TypeError):
        return False
    return str(code).lstrip().startswith("%%distributed")


def _mark(merged: MergedItem) -> str:
    """Return the label before an item, such as ``[ranks 0-1]``; empty for the kernel's notes."""
    return _label(merged.ranks) if merged.ranks else ""


_label = lru_cache(label)


def _marked(mark: str, text: str) -> str:
    """Return a value's text after its mark, on separate lines if it has several lines."""
    return f"{mark}{chr(10) if chr(10) in text else ' '}{text}\n"
