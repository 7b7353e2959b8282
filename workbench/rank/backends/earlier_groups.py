"""Process groups that ended with the default process group; they are formed again with the next.

Variables, FSDP2 models, device meshes and optimizers of cells refer to process groups. These
references are replaced by references to the new groups.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Sequence
from ctypes import py_object, pythonapi
from datetime import timedelta
from types import CellType
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

DEFAULT = "0"
"""Name of the default process group."""
_get_backend = distributed_c10d.get_backend


class EarlierGroup(NamedTuple):
    """A process group that ended with the default process group.

    Attributes
    ----------
    name
        Name of the group, which device meshes use; equal on all ranks of the group.
    ranks
        Global ranks of the group, in increasing order.
    backend
        Name such as ``"gloo"``; empty for the backend of the default group.
    timeout_s
        Timeout of the group's collectives, in seconds.
    description
        The user's ``group_desc``.
    """

    name: str
    ranks: tuple[int, ...]
    backend: str
    timeout_s: float
    description: str


class EarlierGroups:
    """The groups of this process that have ended with the default process group."""

    def __init__(self) -> None:
        self._groups: dict[EarlierGroup, Any] = {}
        self._formed: list[tuple[Any, Any]] = []
        """Earlier groups, each with the new group that replaces it."""

    @staticmethod
    def install() -> None:
        """Make collectives on a destroyed group raise an informative error."""
        dist.get_backend = distributed_c10d.get_backend = get_backend

    def keep(self) -> None:
        """Store the existing groups before they are destroyed."""
        self._groups = {}
        for group in list(distributed_c10d._world.pg_names):
            with contextlib.suppress(KeyError, RuntimeError, ValueError):
                described = _describe(group)
                # `new_group` chooses a decimal name and sorts the ranks, so it cannot form
                # groups with other names or orders again
                if described.name.isdecimal() and described.ranks == tuple(sorted(described.ranks)):
                    self._groups[described] = group

    def described(self) -> list[EarlierGroup]:
        """Return the descriptions of the stored groups, to be sent to `form` on all ranks."""
        return list(self._groups)

    def form(self, every: Sequence[list[EarlierGroup]], timeout: timedelta) -> None:
        """Form each group again that all ranks of the group have stored; all ranks call this.

        Parameters
        ----------
        every
            The stored groups of each rank, by rank.
        timeout
            Time limit for forming a group.
        """
        self._formed = []
        world = distributed_c10d._world
        stored = [set(groups) for groups in every]
        unique_groups = sorted(
            {group for groups in stored for group in groups}, key=lambda group: int(group.name)
        )
        for group in unique_groups:
            if any(rank >= len(stored) or group not in stored[rank] for rank in group.ranks):
                continue
            process_group = dist.group.WORLD
            if group.name != DEFAULT:
                world.group_count = int(group.name)  # PyTorch derives the name from this number
                process_group = dist.new_group(
                    list(group.ranks), timeout, group.backend or None,
                    group_desc=group.description,
                )  # fmt: skip
            elif len(group.ranks) != len(every):
                continue
            if group in self._groups:
                self._formed.append((self._groups[group], process_group))
                distributed_c10d._set_pg_timeout(timedelta(seconds=group.timeout_s), process_group)
        numbers = [int(group.name) for group in unique_groups]
        world.group_count = max([world.group_count, *(number + 1 for number in numbers)])

    def successor(self, group: Any) -> Any:
        """Return the new group that replaces an earlier group, or None.

        Groups are compared by identity: an earlier and a later default group have the same name,
        but may have different ranks.
        """
        return next((new for old, new in self._formed if old is group), None)

    def replace(self) -> None:
        """Replace references to earlier groups with references to the new groups."""
        formed = self._formed
        self._formed = []
        self._groups = {}
        for old, new in formed:
            for holder in gc.get_referrers(old):
                _replace(holder, old, new)
        if not formed:
            return
        model_class = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
        for candidate in gc.get_objects():
            if issubclass(type(candidate), DeviceMesh):
                # the garbage collector does not track a dictionary that holds only groups, so
                # `gc.get_referrers` has not returned it
                for old, new in formed:
                    _replace(getattr(candidate, "_pg_registry", {}), old, new)
            elif issubclass(type(candidate), model_class) and hasattr(
                candidate, "reset_iter_state"
            ):
                # discard the state of a failed iteration, which refers to collectives that ended
                with contextlib.suppress(RuntimeError, AttributeError):  # not the root, or unused
                    candidate.reset_iter_state()


def get_backend(group: Any = None) -> Any:
    """Return the name of a group's backend, as ``torch.distributed.get_backend`` does.

    PyTorch calls this after each error of a collective, so that the user sees the error of this
    function.

    Raises
    ------
    ValueError
        The group has ended with an earlier default process group.
    """
    is_current = group is None or group in distributed_c10d._world.pg_map
    if is_current or not isinstance(group, dist.ProcessGroup) or not dist.is_initialized():
        return _get_backend(group)
    raise ValueError(
        f"This process group of {group.size()} ranks has ended with its ring, and another ring was "
        "formed since. Form the group again on all ranks with dist.new_group(), or use the default "
        "group; then build device meshes and FSDP2 models that used it again."
    )


def _describe(group: Any) -> EarlierGroup:
    world = distributed_c10d._world
    default_config = world.pg_backend_config.get(dist.group.WORLD)
    has_default_config = world.pg_backend_config.get(group) == default_config
    backend = "" if has_default_config else world.pg_map[group][0]
    options = group._get_backend(group._device_types[0]).options
    timeout_s = options._timeout.total_seconds()
    ranks = tuple(dist.get_process_group_ranks(group))
    return EarlierGroup(world.pg_names[group], ranks, str(backend), timeout_s, group.group_desc)


def _replace(holder: Any, old: Any, new: Any) -> None:
    """Replace references in a list, a dictionary, a closure or an object's attributes."""
    if isinstance(holder, CellType):
        holder.cell_contents = new
    elif isinstance(holder, list):
        holder[:] = [new if value is old else value for value in holder]
    elif not isinstance(holder, type):
        values = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
        for name in [name for name, value in values.items() if value is old]:
            values[name] = new
        if isinstance(holder, dict):
            for owner in gc.get_referrers(holder):
                # the dictionary may hold the attributes of a class, which Python caches
                if isinstance(owner, type):
                    pythonapi.PyType_Modified(py_object(owner))
