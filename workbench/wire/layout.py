"""The names and sizes of the collectives of an iteration. Records refer to them by a number."""

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
        The number by which records of this rank refer to the layout.
    names
        The tensors' names, as Horovod negotiates them.
    sizes_bytes
        Size of each collective on the wire, after compression.
    tensors
        Number of tensors in each collective; more than one if tensors were submitted as a group.
    kinds
        ``"allreduce"``, ``"adasum"``, ``"sparse allreduce"``, ``"allgather"``,
        ``"broadcast"``, ``"alltoall"``, ``"reducescatter"``; with torch.distributed also
        ``"reduce"``, ``"gather"``, ``"scatter"``, ``"send"`` and ``"recv"``.
    process_sets
        Horovod's number of each collective's process set. For a process group of
        torch.distributed, a larger number made from the group's name. 0 means all ranks.
    ranks
        Number of ranks in each collective's process set.
    by
        The caller of each collective: ``"optimizer"``, ``"ddp"``, ``"fsdp"``, ``"zero"``,
        ``"dtensor"``, ``"pipeline"``, or ``"cell"`` if the cell's code called it.
    libraries
        The library operation that transferred each collective, such as ``"GLOO_ALLREDUCE"``; empty
        if it is not known. Then the times of the transfer are unknown, too.
    groups
        The user's name of each collective's process group, such as the name of a dimension of a
        DeviceMesh; empty without a name. By default, no group has a name.
    peers
        The destination or source rank of each send or receive; -1 if unknown, and for
        collectives. By default -1.

    Examples
    --------
    >>> layout = Layout(
    ...     number=1, names=("fc.weight",), sizes_bytes=(4096,), tensors=(1,),
    ...     kinds=("allreduce",), process_sets=(0,), ranks=(2,), by=("optimizer",),
    ...     libraries=("GLOO_ALLREDUCE",))
    >>> layout.peers
    (-1,)
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
            The columns differ in length.
        """
        counts = {len(column) for column in vars(self).values() if isinstance(column, tuple)}
        if len(counts) > 1:
            raise WireError(
                f"Layout {self.number}: damaged, as it has between {min(counts)} and "
                f"{max(counts)} collectives."
            )
        return self
