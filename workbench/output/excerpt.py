"""The beginning and the end of output that is too long for a notebook."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from workbench.output.merger import Item, MergedItem

LINE_CHARACTERS = 10_000
"""Maximum length of a line that is shown in full."""


@dataclass
class Size:
    r"""An amount of output, or a limit.

    Examples
    --------
    >>> size = Size()
    >>> size.add(Item("stdout", "loss 0.5\n"))
    >>> size
    Size(lines=1, characters=9, displays=0, display_bytes=0)
    >>> size.fits(HALF)
    True
    """

    lines: int = 0
    characters: int = 0
    displays: int = 0
    display_bytes: int = 0

    def add(self, item: Item, times: int = 1) -> None:
        """Add an item to the amount, or subtract it with ``times=-1``."""
        if item.bundle:
            self.displays += times
            self.display_bytes += times * len(item.bundle)
        else:
            self.lines += times
            self.characters += times * len(item.text)

    def fits(self, limit: Size) -> bool:
        """Return whether the amount is within a limit."""
        return (
            self.lines <= limit.lines
            and self.characters <= limit.characters
            and self.displays <= limit.displays
            and self.display_bytes <= limit.display_bytes
        )


HALF = Size(lines=500, characters=200_000, displays=50, display_bytes=8 << 20)
"""Maximum amount of output that is shown from the beginning, and also from the end."""
DOUBLE = Size(**{name: 2 * limit for name, limit in vars(HALF).items()})
"""Maximum amount of output that is shown in total."""


def is_clear(item: Item) -> bool:
    """Return whether an item is a rank's call of ``clear_output()``."""
    return item.bundle.startswith('{"clear"')


def is_update(item: Item) -> bool:
    """Return whether an item replaces an earlier display of the same id."""
    return item.bundle.startswith('{"id"') and bool(json.loads(item.bundle)["update"])


def _display_id(item: Item) -> int:
    """Return the number of an item's display id on its rank; 0 without a display id."""
    return int(json.loads(item.bundle)["id"]) if item.bundle.startswith('{"id"') else 0


class Excerpt:
    """The first and the last items of long output, and the number of the others.

    Ranks can remove their earlier items, and replace displays.

    Parameters
    ----------
    source
        The place of the complete output, for the note on omitted lines.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._head: list[MergedItem] = []
        self._tail: deque[MergedItem] = deque()
        self._head_size = Size()
        self._tail_size = Size()
        self._is_head_full = False
        self._left_out: Counter[tuple[int, ...]] = Counter()
        """Number of omitted items, by the ranks that printed them."""
        self._total_count = 0
        """Number of items, including the omitted ones."""
        self._cleared_ranks: set[int] = set()
        """Ranks that have cleared their output. Their next item removes their earlier ones."""

    def add(self, merged: MergedItem) -> None:
        """Add the next line or display, or several complete lines of one stream."""
        ranks, item, _ = merged
        if is_clear(item):
            self._cleared_ranks.update(ranks)
            # Otherwise the call waits: the next output of the ranks removes the earlier output.
            if not json.loads(item.bundle)["clear"]:
                self._clear(ranks)
            return
        self._clear(ranks)
        if item.bundle or "\n" not in item.text[:-1]:
            merged = _cut(merged)
            if not is_update(item) or not self._update(merged):
                self._add(merged)
            return
        lines = item.text[:-1].split("\n")
        if self._is_head_full and len(lines) > HALF.lines:
            self._leave_out(ranks, len(lines) - HALF.lines)
            del lines[: -HALF.lines]
        for line in lines:
            self._add(_cut(MergedItem(ranks, Item(item.stream, line + "\n"))))

    def _clear(self, ranks: Iterable[int]) -> None:
        """Remove the items of the given ranks that have cleared their output."""
        cleared = self._cleared_ranks.intersection(ranks)
        if not cleared:
            return
        self._cleared_ranks -= cleared
        head = self._head
        tail = self._tail
        left_out: Counter[tuple[int, ...]] = Counter()
        for item_ranks, count in self._left_out.items():
            if remaining_ranks := tuple(rank for rank in item_ranks if rank not in cleared):
                left_out[remaining_ranks] += count
        self._head = []
        self._tail = deque()
        self._head_size = Size()
        self._tail_size = Size()
        self._left_out = left_out
        self._is_head_full = False
        self._total_count = left_out.total()
        for items in (head, tail):
            for item_ranks, item, _ in items:
                remaining_ranks = tuple(rank for rank in item_ranks if rank not in cleared)
                if remaining_ranks or not item_ranks:
                    self._add(MergedItem(remaining_ranks, item))
            self._is_head_full = self._is_head_full or bool(left_out)

    def _update(self, merged: MergedItem) -> bool:
        """Replace the displays of the same id and ranks; return whether there is such a display."""
        is_replaced = False
        display_id = _display_id(merged.item)
        # The item takes the place of the earlier display, and is therefore no longer an update.
        content = json.loads(merged.item.bundle) | {"update": False}
        merged = merged._replace(item=merged.item._replace(bundle=json.dumps(content)))
        for items, size in (
            (self._head, self._head_size),
            (self._tail, self._tail_size),
        ):
            earlier_items = list(items)
            items.clear()
            for earlier in earlier_items:
                updated_ranks = set(earlier.ranks).intersection(merged.ranks)
                if not updated_ranks or _display_id(earlier.item) != display_id:
                    items.append(earlier)
                    continue
                is_replaced = True
                if remaining_ranks := tuple(
                    rank for rank in earlier.ranks if rank not in updated_ranks
                ):
                    items.append(MergedItem(remaining_ranks, earlier.item))
                else:
                    size.add(earlier.item, -1)
                if items and items[-1].item == merged.item:
                    updated_ranks.update(items.pop().ranks)
                else:
                    size.add(merged.item)
                items.append(MergedItem(tuple(sorted(updated_ranks)), merged.item))
        return is_replaced

    def _leave_out(self, ranks: tuple[int, ...], lines: int) -> None:
        """Count omitted lines, together with the items of the end.

        At least as many lines follow as the end can show, so that none of these items stays there.
        """
        self._total_count += lines
        self._left_out[ranks] += lines
        self._left_out.update(omitted.ranks for omitted in self._tail)
        self._tail.clear()
        self._tail_size = Size()

    def _add(self, merged: MergedItem) -> None:
        self._total_count += 1
        head_size = self._head_size
        tail_size = self._tail_size
        items, size = (self._tail, tail_size) if self._is_head_full else (self._head, head_size)
        if items and _overwritten(items[-1], merged):
            size.add(items.pop().item, -1)
        if not self._is_head_full:
            size.add(merged.item)
            if size.fits(HALF) or not self._head:
                self._head.append(merged)
                return
            size.add(merged.item, -1)
            self._is_head_full = True
        self._tail.append(merged)
        tail_size.add(merged.item)
        while len(self._tail) > 1 and not tail_size.fits(HALF):
            first = self._tail.popleft()
            tail_size.add(first.item, -1)
            self._left_out[first.ranks] += 1

    def entries(self) -> list[MergedItem]:
        """Return the items to show, with a note on the omitted ones."""
        return [*self._head, *self.end()]

    def end(self) -> list[MergedItem]:
        """Return the items after the beginning."""
        if not self._left_out:
            return list(self._tail)
        note = (
            f"... {self._left_out.total():,} of {self._total_count:,} lines are not shown here; "
            f"{self._source} contains them all ..."
        )
        return [_note(note), *self._tail]

    def progress(self) -> MergedItem:
        """Return a line with the number of lines so far."""
        return _note(f"... {self._total_count:,} lines so far, the latest:")


def _note(note: str) -> MergedItem:
    return MergedItem((), Item("stdout", note + "\n"))


def _overwritten(before: MergedItem, merged: MergedItem) -> bool:
    """Return whether a line, such as a progress bar, is overwritten by the next one."""
    return before.item.text.endswith("\r") and before.item.stream == merged.item.stream


def _cut(merged: MergedItem) -> MergedItem:
    """Return an item; only its beginning if it is a line or a plain-text value that is too long."""
    item = merged.item
    if item.bundle:
        return merged._replace(item=_cut_value(item))
    return merged._replace(item=item._replace(text=_cut_line(item.text)))


def _cut_value(item: Item) -> Item:
    if len(item.bundle) <= LINE_CHARACTERS:
        return item
    content = json.loads(item.bundle)
    if set(content.get("data", ())) != {"text/plain"}:
        return item
    text = "\n".join(map(_cut_line, str(content["data"]["text/plain"]).split("\n")))
    content["data"]["text/plain"] = _cut_text(text, HALF.characters)
    return item._replace(bundle=json.dumps(content))


def _cut_line(line: str) -> str:
    end = line[-1:] if line[-1:] in ("\r", "\n") else ""
    return _cut_text(line[: len(line) - len(end)], LINE_CHARACTERS) + end


def _cut_text(text: str, max_characters: int) -> str:
    if len(text) <= max_characters:
        return text
    return (
        f"{text[:max_characters]} ... {len(text) - max_characters:,} characters are not shown here"
    )
