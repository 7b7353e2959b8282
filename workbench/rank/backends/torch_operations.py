"""Describes the collectives of torch.distributed: name, bytes, ranks and caller."""

from __future__ import annotations

import os
import sys
import threading
import weakref
import zlib
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from workbench.rank.recording.collectives import Operation


class Named(NamedTuple):
    """The description of a function of torch.distributed.

    Attributes
    ----------
    name
        Name of the function in torch.distributed.
    kind
        The kind of collective, as in `workbench.wire.Layout`.
    sent
        Index of the argument with the tensors that a rank sends.
    by
        The caller; empty if it varies.
    """

    name: str
    kind: str
    sent: int
    by: str = ""


_REDUCE = Named("all_reduce", "allreduce", 0)
_BROADCAST = Named("broadcast", "broadcast", 0)
_GATHER = Named("all_gather", "allgather", 1)
_SCATTER = Named("reduce_scatter", "reducescatter", 1)
_TO_ALL = Named("all_to_all", "alltoall", 1)
_SEND = Named("send", "send", 0)
_RECEIVE = Named("recv", "recv", 0)
MESSAGES = frozenset({"send", "recv"})
"""The kinds of communication between two ranks."""
BUFFERS = Named("broadcast of buffers", "broadcast", 0, "ddp")
"""The collective that DDP uses to send its buffers."""
METHODS = {
    "allreduce": _REDUCE,
    "allreduce_coalesced": _REDUCE,
    "broadcast": _BROADCAST,
    "allgather": _GATHER,
    "allgather_coalesced": _GATHER,
    "allgather_into_tensor_coalesced": _GATHER,
    "all_gather_single": _GATHER,
    "all_gather_single_coalesced": _GATHER,
    "_allgather_base": _GATHER,
    "reduce_scatter": _SCATTER,
    "reduce_scatter_single": _SCATTER,
    "reduce_scatter_single_coalesced": _SCATTER,
    "reduce_scatter_tensor_coalesced": _SCATTER,
    "_reduce_scatter_base": _SCATTER,
    "alltoall": _TO_ALL,
    "alltoall_base": _TO_ALL,
    "all_to_all_single": _TO_ALL,
    "reduce": Named("reduce", "reduce", 0),
    "gather": Named("gather", "gather", 1),
    "scatter": Named("scatter", "scatter", 0),
    "send": _SEND,
    "recv": _RECEIVE,
    "recv_anysource": _RECEIVE,
}
"""Methods of a process group, of all versions of PyTorch."""
OPERATORS = {
    "all_reduce": _REDUCE,
    "all_reduce_": _REDUCE,
    "all_reduce_coalesced": _REDUCE,
    "all_reduce_coalesced_": _REDUCE,
    "broadcast": _BROADCAST,
    "broadcast_": _BROADCAST,
    "all_gather_into_tensor": _GATHER,
    "all_gather_into_tensor_out": _GATHER,
    "all_gather_into_tensor_coalesced": _GATHER,
    "reduce_scatter_tensor": _SCATTER,
    "reduce_scatter_tensor_out": _SCATTER,
    "reduce_scatter_tensor_coalesced": _SCATTER,
    "all_to_all_single": _TO_ALL,
    "isend": _SEND,
    "irecv": _RECEIVE,
}
"""Operators of ``torch.ops._c10d_functional``; all of them send their first argument."""
_LIBRARIES = {
    "torch/distributed/fsdp/": "fsdp",
    "torch/distributed/optim/": "zero",
    "torch/nn/parallel/": "ddp",
    "torch/distributed/tensor/": "dtensor",
    "torch/distributed/pipelining/": "pipeline",
}
"""Names of libraries by a part of the caller's file name."""
_OWN_FOLDER = f"{Path(__file__).parents[1]}{os.sep}"
"""Folder of `workbench.rank`, whose frames are between the caller's frame and `_caller`."""
_TORCH_FRAMES = 2
"""Number of frames of torch.distributed between its caller and our code."""
_MAX_KEPT = 4096
"""Maximum number of descriptions, and of callers, that are kept."""


class _Group(NamedTuple):
    """A reference to a process group, its number among process sets, size, ranks and name."""

    group: weakref.ref[Any]
    number: int
    ranks: int
    members: tuple[int, ...]
    name: str


class CollectiveDescriptions:
    """Describes collectives. Within a step, the calls of each function are numbered from 1."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Operation] = {}
        self._groups: dict[Any, _Group] = {}
        self._callers: dict[Any, str] = {}
        self._counts: dict[tuple[Any, ...], int] = {}
        self._main = threading.main_thread().ident
        self._step: tuple[Any, int] = (None, 0)

    def describe(
        self,
        named: Named,
        group: Any,
        measured: tuple[int, int],
        thread: int,
        loop: Any,
        peer: int = -1,
    ) -> Operation:
        """Return the description of a call.

        Parameters
        ----------
        group
            The process group, or its name.
        measured
            The result of `measure` before the call: bytes and number of tensors.
        thread, loop
            The calling thread, and the training loop with its number of `steps`.
        peer
            The number of the other rank in the group, for a send or receive.
        """
        if self._step[1] != loop.steps or self._step[0] is not loop:
            self._step = loop, loop.steps
            self._counts.clear()
        size, tensors = measured
        key: Any = group if isinstance(group, str) else id(group)
        described = self._groups.get(key)
        live_group = described and described.group()  # a later group may have the same name or id
        if described is None or live_group is None or (live_group is not group and key != group):
            described = self._groups[key] = _described(group)
        counted = named.name, described.number, thread == self._main
        number = self._counts[counted] = self._counts.get(counted, 0) + 1
        peer_rank = described.members[peer] if 0 <= peer < len(described.members) else -1
        by = named.by or self._caller()
        key_fields = counted, number, size, tensors, described.ranks, by, described.name, peer_rank
        operation = self._known.get(key_fields)
        if operation is None:
            if len(self._known) >= _MAX_KEPT:
                self._known.clear()
            operation = self._known[key_fields] = _operation(named.kind, *key_fields)
        return operation

    def _caller(self) -> str:
        """Return the library that has called torch.distributed, or ``"cell"``."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_filename.startswith(_OWN_FOLDER):
            frame = frame.f_back
        for _ in range(_TORCH_FRAMES):
            frame = None if frame is None else frame.f_back
        if frame is None:
            return "cell"
        code = frame.f_code
        library = self._callers.get(code)
        if library is None:
            if len(self._callers) >= _MAX_KEPT:
                self._callers.clear()
            names = (name for part, name in _LIBRARIES.items() if part in code.co_filename)
            library = self._callers[code] = next(names, "cell")
        return library


def _described(group: Any) -> _Group:
    target: Any = group
    if isinstance(group, str):
        target = torch._C._distributed_c10d._resolve_process_group(group)
    try:
        members = tuple(dist.get_process_group_ranks(target))
    except (ValueError, KeyError):  # not registered
        members = ()
    return _Group(
        weakref.ref(target),
        number_of(target),
        target.size(),
        members,
        name_of(target),
    )


def name_of(group: Any) -> str:
    """Return the name that a user gave to a process group; empty without a name."""
    name = str(group.group_desc)
    if name in {"undefined", "default_pg", "mesh_default"}:
        return ""
    return name.removeprefix("mesh_")  # DeviceMesh adds this prefix to the name of a dimension


def number_of(group: Any) -> int:
    """Return the number of a process group among process sets; 0 if it has all ranks."""
    if dist.is_initialized() and group.size() == dist.get_world_size():
        return 0
    # the number is the same on all ranks of the group, and larger than the numbers of Horovod's
    # process sets
    return zlib.crc32(group.group_name.encode()) & 0x3FFFFFFF | 0x40000000


def _operation(
    kind: str,
    counted: tuple[str, int, bool],
    number: int,
    size: int,
    tensors: int,
    ranks: int,
    by: str,
    group: str,
    peer: int,
) -> Operation:
    name, process_set, main = counted
    label = f"{name} {number}" if main else f"{name} {number} of a thread"
    return Operation(label, size, tensors, kind, process_set, ranks, by, "", group, peer)


def first(sent: Any) -> Any:
    """Return the first tensor in nested lists; None without tensors."""
    while isinstance(sent, (list, tuple)):
        sent = sent[0] if sent else None
    return sent


def sent_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes that a rank sends for a tensor; call before a sparse tensor is reduced."""
    if tensor.layout == torch.sparse_coo:
        return int(tensor._indices().nbytes + tensor._values().nbytes)
    return int(tensor.nbytes)


def measure(sent: Any) -> tuple[int, int]:
    """Return the bytes and the number of tensors that a rank sends.

    A list with a single element, which may be a list of parts, counts as one tensor.

    Examples
    --------
    >>> measure([torch.zeros(4), torch.zeros(2)])
    (24, 2)
    >>> measure([[torch.zeros(4), torch.zeros(2)]])
    (24, 1)
    """
    if isinstance(sent, torch.Tensor):
        return sent_bytes(sent), 1
    if len(sent) == 1:
        return measure(sent[0])[0], 1
    sizes = [measure(part)[0] for part in sent]
    return sum(sizes), len(sizes)
