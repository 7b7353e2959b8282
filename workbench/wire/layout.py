"""Which tensors an iteration reduces; sent once, then named by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Layout:
    """The collectives of an iteration, in the order of a record's intervals.

    Attributes
    ----------
    number
        How records of this rank refer to it.
    names
        The tensors' names, as Horovod negotiates them.
    sizes_bytes
        Bytes on the wire of each, after compression.
    tensors
        Gradient tensors in each (more than one in a group).
    """

    number: int
    names: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    tensors: tuple[int, ...]

    def to_content(self) -> dict[str, Any]:
        """Return the content of a ``"layout"`` message."""
        return {
            "number": self.number,
            "names": self.names,
            "sizes_bytes": self.sizes_bytes,
            "tensors": self.tensors,
        }

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Layout:
        """Read what `to_content` returned."""
        return cls(
            int(content["number"]),
            tuple(content["names"]),
            tuple(content["sizes_bytes"]),
            tuple(content["tensors"]),
        )
