"""The names and sizes of the collectives of an iteration, to which its record refers."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.errors import WireError
from workbench.wire.message import Message


@dataclass(frozen=True)
class Layout(Message):
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
        ``"broadcast"``, ``"alltoall"``, ``"reducescatter"``, or of torch.distributed also
        ``"reduce"``, ``"gather"``, ``"scatter"``, ``"send"`` and ``"recv"``.
    process_sets
        Horovod's number of the process set that each ran in, or for a process group of
        torch.distributed a larger number made from its name; 0 is all ranks.
    ranks
        Ranks in that process set.
    by
        Who called it: ``"optimizer"``, ``"ddp"``, ``"fsdp"``, ``"zero"``, ``"dtensor"``,
        ``"pipeline"``, or ``"cell"`` where the cell did itself.
    libraries
        What transferred it, such as ``"GLOO_ALLREDUCE"``; empty where that is not known, and
        neither are the times of the transfer.
    groups
        The name that the user gave to the process group of each, such as that of a dimension of
        a DeviceMesh; empty without one. Not given: none has a name.
    peers
        The rank to which each is sent, or from which it is received; -1 if unknown, and for
        collectives. Not given: -1.
    """

    number: int
    names: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    tensors: tuple[int, ...]
    kinds: tuple[str, ...]
    process_sets: tuple[int, ...]
    ranks: tuple[int, ...]
    by: tuple[str, ...]
    libraries: tuple[str, ...]
    groups: tuple[str, ...] = ()
    peers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("groups", ""), ("peers", -1)):
            if not getattr(self, name):
                object.__setattr__(self, name, (value,) * len(self.names))

    def check(self) -> Layout:
        """Return the layout.

        Raises
        ------
        WireError
            It has more of one column than of another.
        """
        counts = {len(column) for column in vars(self).values() if isinstance(column, tuple)}
        if len(counts) > 1:
            raise WireError(
                f"Layout {self.number}: damaged, as it has between {min(counts)} and "
                f"{max(counts)} collectives."
            )
        return self
