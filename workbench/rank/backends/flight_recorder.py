"""Reads PyTorch's Flight Recorders: the collectives that this process has started, in order.

PyTorch has one Flight Recorder for NCCL, and one for the other backends. The field ``retired``
shows whether a collective is finished. Gloo's `send` and `recv` are not recorded.
"""

from __future__ import annotations

import contextlib
import json
import os
from time import perf_counter_ns, time_ns
from typing import Any, NamedTuple

import torch

_ENTRIES = 64
"""Number of kept collectives. Reading takes about 30 us per collective."""
_VARIABLE = "TORCH_FR_BUFFER_SIZE"
"""PyTorch reads this variable when the process forms its first process group."""
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""The function that reads each Flight Recorder. NCCL's asks the GPU which events have passed."""


class Recorded(NamedTuple):
    """A collective.

    Attributes
    ----------
    id
        Number of the Flight Recorder, and number of the collective there.
    group
        Name of the process group.
    name
        The function, and the collective's number in its group, such as ``"all_reduce 12"``.
    submitted
        Time of submission, as ``time.perf_counter_ns()``.
    finished
        Whether the collective is finished.
    tensors
        Shapes and dtypes of this rank's inputs, such as ``"Float [100, 8]"``.
    """

    id: tuple[int, int]
    group: str
    name: str
    submitted: int
    finished: bool
    tensors: str


_earlier = [-1] * len(_DUMPS)
"""Number of the last collective of ended process groups, for each Flight Recorder."""


def enable() -> None:
    """Make PyTorch record; call this before the first process group is formed."""
    # with a GPU, PyTorch's default applies, which is larger
    if not torch.cuda.is_available():
        os.environ.setdefault(_VARIABLE, str(_ENTRIES))


def forget() -> None:
    """Ignore all collectives that have started so far, because their process groups have ended."""
    for operation in _read():
        recorder, number = operation.id
        _earlier[recorder] = max(number, _earlier[recorder])


def unfinished(*, gpu: bool = True) -> list[Recorded]:
    """Return the collectives that are not finished, in the order of submission; empty if unknown.

    Parameters
    ----------
    gpu
        Whether to include NCCL's collectives; not possible while a CUDA graph is captured.
    """
    return [
        operation
        for operation in _read(gpu)
        if operation.id[1] > _earlier[operation.id[0]] and not operation.finished
    ]


def _read(gpu: bool = True) -> list[Recorded]:
    """Return all recorded collectives in the order of submission, without NCCL's unless `gpu`."""
    operations = []
    clock_offset_ns = perf_counter_ns() - time_ns()
    for recorder, function in enumerate(_DUMPS if gpu else _DUMPS[:1]):
        dump = getattr(torch._C._distributed_c10d, function, None)
        if dump is None:  # PyTorch before 2.6, or a build without NCCL
            continue
        with contextlib.suppress(ValueError, KeyError, RuntimeError, TypeError):  # another format
            entries = json.loads(dump(True, False)).get("entries", [])
            operations += [_recorded(recorder, entry, clock_offset_ns) for entry in entries]
    return sorted(operations, key=lambda operation: (operation.submitted, operation.id))


def _recorded(recorder: int, entry: dict[str, Any], clock_offset_ns: int) -> Recorded:
    """Return an entry of a Flight Recorder as a collective.

    Parameters
    ----------
    recorder
        Index of the Flight Recorder in `_DUMPS`.
    clock_offset_ns
        Added to the entry's time, to convert it from ``time_ns`` to ``perf_counter_ns``.
    """
    function = entry["profiling_name"].rpartition(":")[2]
    group = entry["process_group"][0]
    finished = bool(entry["retired"])
    name = f"{function} {entry['collective_seq_id']}"
    submitted = int(entry["time_created_ns"]) + clock_offset_ns
    sizes = entry.get("input_sizes", ())
    dtypes = entry.get("input_dtypes", ())
    tensors = ", ".join(f"{dtype} {list(size)}" for dtype, size in zip(dtypes, sizes, strict=False))
    number = int(entry["record_id"])
    return Recorded((recorder, number), str(group), name, submitted, finished, tensors)
