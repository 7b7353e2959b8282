"""Fill in the warnings and errors that ranks share, and list their differing parts below them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.output.differing_parts import DifferingParts, RankIdentity, ranks_of_message
from workbench.output.merger import Item, MergedItem, MessageLine


class SharedMessages:
    """Formatter of the merged lines of warnings and errors in one order: live or final.

    Parameters
    ----------
    identities
        The identities of the ranks.
    """

    def __init__(self, identities: Mapping[int, RankIdentity]) -> None:
        self._identities = identities
        self._open: dict[tuple[int, ...], DifferingParts] = {}
        """The differing parts of the latest messages, by their ranks."""

    def fill(self, merged: MergedItem) -> Iterator[MergedItem]:
        """Yield an item as it is shown. If it ends a message, yield the differing parts first."""
        ranks, item, rows = merged
        if not isinstance(item, MessageLine):
            if self._open and not self._continues(merged):
                yield from self.end()
            yield merged
            return
        if any(parts.full for parts in self._open.values()):
            yield from self.end()
        values = dict(zip(ranks, rows, strict=True))
        for group in ranks_of_message(item.text, values, self._identities):
            parts = self._open.setdefault(group, DifferingParts(group))
            text = parts.fill(item.text, [values[rank] for rank in group])
            yield MergedItem(group, Item(item.stream, text))

    def end(self) -> list[MergedItem]:
        """Return the differing parts of the latest messages."""
        lists = [(ranks, parts.lines()) for ranks, parts in self._open.items()]
        self._open = {}
        return [MergedItem(ranks, Item("stderr", line)) for ranks, line in lists if line]

    def _continues(self, merged: MergedItem) -> bool:
        """Return whether a line belongs to the messages before it, such as a line of source."""
        item = merged.item
        return item.stream == "stderr" and item.text.startswith((" ", "\t"))
