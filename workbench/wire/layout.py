"""Which collectives an iteration has; sent once, then named by number."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
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
        Tensors in each (more than one in a group).
    kinds
        ``"allreduce"``, ``"adasum"``, ``"sparse allreduce"``, ``"allgather"``,
        ``"broadcast"``, ``"alltoall"`` or ``"reducescatter"``.
    process_sets
        Horovod's number of the process set that each ran in; 0 is all ranks.
    ranks
        Ranks in that process set.
    by
        Who called it: ``"optimizer"``, ``"ddp"``, or ``"cell"`` where the cell did itself.
    """

    number: int
    names: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    tensors: tuple[int, ...]
    kinds: tuple[str, ...]
    process_sets: tuple[int, ...]
    ranks: tuple[int, ...]
    by: tuple[str, ...]

    def to_content(self) -> dict[str, Any]:
        """Return the content of a ``"layout"`` message."""
        return asdict(self)

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Layout:
        """Read what `to_content` returned."""
        number, *columns = (content[column.name] for column in fields(cls))
        return cls(int(number), *map(tuple, columns))
