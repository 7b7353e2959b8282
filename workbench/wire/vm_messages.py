"""Messages of the ranks of a VM, merged into one stream by `workbench.agent.record_stream`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from workbench.errors import WireError
from workbench.wire.layout import Layout
from workbench.wire.message import Message

_MAX_RANKS = 10**9


def are_ranks(numbers: Sequence[int]) -> bool:
    """Return whether received numbers can be numbers of ranks.

    Examples
    --------
    >>> are_ranks([0, 3]), are_ranks([-1])
    (True, False)
    """
    return min(numbers, default=0) >= 0 and max(numbers, default=0) < _MAX_RANKS


@dataclass(frozen=True)
class VmLayout(Message):
    """A `Layout` that several ranks use."""

    ranks: tuple[int, ...]
    layout: Layout


@dataclass(frozen=True)
class VmRecords(Message):
    """Records of several ranks in one frame, because many small frames cost the kernel more time.

    Attributes
    ----------
    ranks
        The rank of each record.
    sizes
        The size of each record in bytes.
    records
        The packed records.
    """

    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    records: bytes

    @classmethod
    def of(cls, ranks: Sequence[int], records: Sequence[bytes]) -> VmRecords:
        """Return the message for some records and their ranks."""
        return cls(tuple(ranks), tuple(map(len, records)), b"".join(records))

    def split(self) -> list[bytes]:
        """Return the packed records.

        Raises
        ------
        WireError
            The sizes do not fit the records, or the ranks are invalid.
        """
        ends = list(accumulate(self.sizes))
        fits = len(self.ranks) == len(self.sizes) and (ends or [0])[-1] == len(self.records)
        if not fits or min(self.sizes, default=0) < 0 or not are_ranks(self.ranks):
            raise WireError(
                f"Records of a VM, {len(self.records)} bytes: damaged, as their "
                f"{len(self.ranks)} ranks or {len(self.sizes)} sizes are wrong."
            )
        return [self.records[end - size : end] for size, end in zip(self.sizes, ends, strict=True)]
