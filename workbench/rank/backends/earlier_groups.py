"""The process groups of the ring that has ended, which the next ring forms again.

Code of a cell keeps references to process groups: in variables, in FSDP2 models, device meshes and
optimizers. These are replaced by references to the groups that were formed again.
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
    """A process group of the ring that has ended.

    Attributes
    ----------
    name
        Its name, which device meshes use; equal on all its ranks.
    ranks
        Its ranks in the ring, in increasing order.
    backend
        Such as ``"gloo"``; empty for that of the default group.
    timeout_s
        How long its collectives wait, in seconds.
    description
        What its user gave as ``group_desc``.
    """

    name: str
    ranks: tuple[int, ...]
    backend: str
    timeout_s: float
    description: str


class EarlierGroups:
    """The groups of this process that have ended with their ring."""

    def __init__(self) -> None:
        self._groups: dict[EarlierGroup, Any] = {}
        self._formed: list[tuple[Any, Any]] = []

    @staticmethod
    def install() -> None:
        """Have collectives in a group that has ended say so."""
        dist.get_backend = distributed_c10d.get_backend = get_backend

    def keep(self) -> None:
        """Remember the groups that exist, before they are destroyed."""
        self._groups = {}
        for group in list(distributed_c10d._world.pg_names):
            with contextlib.suppress(KeyError, RuntimeError, ValueError):
                described = _describe(group)
                # other names and orders are not formed again by `new_group`
                if described.name.isdecimal() and described.ranks == tuple(sorted(described.ranks)):
                    self._groups[described] = group

    def described(self) -> list[EarlierGroup]:
        """Return the groups, for `form` on all ranks."""
        return list(self._groups)

    def form(self, every: Sequence[list[EarlierGroup]], timeout: timedelta) -> None:
        """Form the groups all of whose ranks still have them; every rank of the ring calls this.

        Parameters
        ----------
        every
            The groups of each rank, by rank.
        timeout
            How long the forming of a group may take.
        """
        self._formed = []
        world = distributed_c10d._world
        kept = [set(members) for members in every]
        unique_groups = sorted(
            {group for members in kept for group in members}, key=lambda group: int(group.name)
        )
        for group in unique_groups:
            if any(rank >= len(kept) or group not in kept[rank] for rank in group.ranks):
                continue
            process_group = dist.group.WORLD
            if group.name != DEFAULT:
                world.group_count = int(group.name)  # of which PyTorch makes the name
                process_group = dist.new_group(
                    list(group.ranks), timeout, group.backend or None,
                    group_desc=group.description,
                )  # fmt: skip
            elif len(group.ranks) != len(every):
                continue
            if group in self._groups:
                self._formed.append((self._groups[group], process_group))
                distributed_c10d._set_pg_timeout(timedelta(seconds=group.timeout_s), process_group)
        names = [int(group.name) for group in unique_groups]
        world.group_count = max([world.group_count, *(name + 1 for name in names)])

    def successor(self, group: Any) -> Any:
        """Return the group that `form` has formed instead of an earlier one; None if there is none.

        Those of the default group have the same name, and not always the same ranks.
        """
        return next((new for old, new in self._formed if old is group), None)

    def replace(self) -> None:
        """Let what refers to an earlier group refer to the one that was formed instead."""
        formed = self._formed
        self._formed = []
        self._groups = {}
        for old, new in formed:
            for holder in gc.get_referrers(old):
                _replace(holder, old, new)
        if not formed:
            return
        model_class = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
        for thing in gc.get_objects():
            if issubclass(type(thing), DeviceMesh):
                # Python's garbage collector does not know dictionaries of groups only
                for old, new in formed:
                    _replace(getattr(thing, "_pg_registry", {}), old, new)
            elif issubclass(type(thing), model_class) and hasattr(thing, "reset_iter_state"):
                # of an iteration that has failed
                with contextlib.suppress(RuntimeError, AttributeError):  # not the root, or unused
                    thing.reset_iter_state()


def get_backend(group: Any = None) -> Any:
    """Return the name of a group's backend, as ``torch.distributed.get_backend`` does.

    PyTorch calls this after each error of a collective.

    Raises
    ------
    ValueError
        The group has ended.
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
    of_default = world.pg_backend_config.get(dist.group.WORLD)
    backend = "" if world.pg_backend_config.get(group) == of_default else world.pg_map[group][0]
    options = group._get_backend(group._device_types[0]).options
    timeout_s = options._timeout.total_seconds()
    ranks = tuple(dist.get_process_group_ranks(group))
    return EarlierGroup(world.pg_names[group], ranks, str(backend), timeout_s, group.group_desc)


def _replace(holder: Any, old: Any, new: Any) -> None:
    """Replace a reference in a dictionary, a list, a function's variable or an object."""
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
                if isinstance(owner, type):  # it may be its attributes, which Python also caches
                    pythonapi.PyType_Modified(py_object(owner))
