"""Reads PyTorch's Flight Recorder: the collectives that this process has started, in order.

With Gloo, its field ``retired`` shows whether a collective is finished. It does not record `send`
and `recv`.
"""

from __future__ import annotations

import json
import os
from time import perf_counter_ns, time_ns
from typing import Any, NamedTuple

import torch

_ENTRIES = 64
"""Collectives that are kept. Reading them takes about 30 us each."""
_VARIABLE = "TORCH_FR_BUFFER_SIZE"
"""Which PyTorch reads when the process forms its first process group."""
_NONE = -1


class Recorded(NamedTuple):
    """A collective.

    Attributes
    ----------
    id
        Its number among all collectives of the process.
    group
        The name of its process group.
    name
        The function, and the collective's number in its group, such as ``"all_reduce 12"``.
    submitted
        When it was submitted, as ``time.perf_counter_ns()``.
    finished
        Whether it is finished.
    """

    id: int
    group: str
    name: str
    submitted: int
    finished: bool


_earlier = _NONE
"""The last collective of process groups that have ended."""


def enable() -> None:
    """Start to record, before the first process group is formed."""
    if not torch.cuda.is_available():  # NCCL's default is larger
        os.environ.setdefault(_VARIABLE, str(_ENTRIES))


def forget() -> None:
    """Ignore the collectives until now: their process groups have ended."""
    global _earlier  # noqa: PLW0603 - one process has one Flight Recorder
    _earlier = max((one.id for one in _read()), default=_earlier)


def unfinished() -> list[Recorded]:
    """Return the collectives that are not finished, in their order; empty if unknown."""
    return [one for one in _read() if one.id > _earlier and not one.finished]


def _read() -> list[Recorded]:
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:  # PyTorch before 2.6
        return []
    try:
        entries = json.loads(dump(True, False)).get("entries", [])
        return sorted(_recorded(entry) for entry in entries)
    except (ValueError, KeyError, RuntimeError, TypeError):  # another format
        return []


def _recorded(entry: dict[str, Any]) -> Recorded:
    function = entry["profiling_name"].rpartition(":")[2]
    group, finished = entry["process_group"][0], bool(entry["retired"])
    name = f"{function} {entry['collective_seq_id']}"
    submitted = perf_counter_ns() - (time_ns() - int(entry["time_created_ns"]))
    return Recorded(int(entry["record_id"]), str(group), name, submitted, finished)
