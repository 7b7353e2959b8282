"""The beginning and the end of an output that is too long for a notebook."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from workbench.cluster.fold import Folded, Item

LINE_CHARACTERS = 10_000
"""A longer line is cut."""


@dataclass
class Size:
    """How much output there is, or may be."""

    lines: int = 0
    characters: int = 0
    displays: int = 0
    display_bytes: int = 0

    def add(self, item: Item, times: int = 1) -> None:
        """Count an item in, or with ``times=-1`` out again."""
        if item.bundle:
            self.displays += times
            self.display_bytes += times * len(item.bundle)
        else:
            self.lines += times
            self.characters += times * len(item.text)

    def fits(self, most: Size) -> bool:
        """Whether it is within `most`."""
        return (
            self.lines <= most.lines
            and self.characters <= most.characters
            and self.displays <= most.displays
            and self.display_bytes <= most.display_bytes
        )


HALF = Size(lines=500, characters=200_000, displays=50, display_bytes=8 << 20)
"""How much is shown of the beginning, and of the end."""
DOUBLE = Size(**{name: 2 * most for name, most in vars(HALF).items()})


class Excerpt:
    """Keeps the first and the last of what is added, and counts what lies between.

    Parameters
    ----------
    whole
        Where all of it is, in the words of a note.
    """

    def __init__(self, whole: str) -> None:
        self._whole = whole
        self._head: list[Folded] = []
        self._tail: deque[Folded] = deque()
        self._sizes = Size(), Size()
        self._full = False
        self._left_out = 0
        self._all = 0

    def add(self, folded: Folded) -> None:
        """Add the next line or display, or whole lines of one stream."""
        ranks, item = folded
        if item.bundle or "\n" not in item.text[:-1]:
            self._add(folded)
            return
        lines = item.text[:-1].split("\n")
        if self._full and len(lines) > HALF.lines:
            self._leave_out(len(lines) - HALF.lines)
            del lines[: -HALF.lines]
        for line in lines:
            self._add(Folded(ranks, Item(item.stream, line + "\n")))

    def _leave_out(self, lines: int) -> None:
        """Count lines that have nothing but as many others behind them as are shown."""
        self._all += lines
        self._left_out += lines + len(self._tail)
        self._tail.clear()
        self._sizes = self._sizes[0], Size()

    def _add(self, folded: Folded) -> None:
        self._all += 1
        folded = _cut(folded)
        head_size, tail_size = self._sizes
        part, size = (self._tail, tail_size) if self._full else (self._head, head_size)
        if part and _overwritten(part[-1], folded):
            size.add(part.pop().item, -1)
        if not self._full:
            size.add(folded.item)
            if size.fits(HALF) or not self._head:
                self._head.append(folded)
                return
            size.add(folded.item, -1)
            self._full = True
        self._tail.append(folded)
        tail_size.add(folded.item)
        while len(self._tail) > 1 and not tail_size.fits(HALF):
            tail_size.add(self._tail.popleft().item, -1)
            self._left_out += 1

    def entries(self) -> list[Folded]:
        """Return what is to be shown, with a line that says how much is not."""
        return [*self._head, *self.end()]

    def end(self) -> list[Folded]:
        """Return what of it follows the beginning."""
        if not self._left_out:
            return list(self._tail)
        note = (
            f"... {self._left_out:,} of {self._all:,} lines are not shown here; "
            f"{self._whole} has them all ..."
        )
        return [_own(note), *self._tail]

    def progress(self) -> Folded:
        """Return a line that says how much there is."""
        return _own(f"... {self._all:,} lines so far, the latest:")


def _own(note: str) -> Folded:
    return Folded((), Item("stdout", note + "\n"))


def _overwritten(before: Folded, folded: Folded) -> bool:
    """Whether a line, such as a progress bar's, is written over by the next one."""
    return before.item.text.endswith("\r") and before.item.stream == folded.item.stream


def _cut(folded: Folded) -> Folded:
    text = folded.item.text
    if len(text) <= LINE_CHARACTERS:
        return folded
    end = text[-1] if text[-1] in "\r\n" else ""
    more = f" ... {len(text) - LINE_CHARACTERS:,} characters are not shown here"
    item = folded.item._replace(text=text[:LINE_CHARACTERS] + more + end)
    return Folded(folded.ranks, item)
