"""Explains errors of libraries if their own text is misleading or long in a notebook."""

from __future__ import annotations

import os
import re
import traceback

import torch

_ELASTIC = os.path.join("horovod", "runner", "elastic", "worker.py")  # noqa: PTH118 - part of a path
_WITH_JOIN = re.compile(r"(\w+) is not supported with Join")
_DEVICE_IDS = re.compile(
    r"DistributedDataParallel device_ids .*got device_ids (\[.*?\]|None).*device\(type='cpu'\)",
    re.DOTALL,
)
_READY_TWICE = "mark a variable ready only once"


class SpawnError(TypeError):
    """A spawned process would need code of a cell, which it cannot import."""


def explained(error: BaseException, message: str) -> str:
    """Explain an error: what was attempted, what is wrong, and what to do.

    Returns
    -------
    str
        The explanation, with the cell's own lines as a sufficient traceback; empty for other
        errors.

    Examples
    --------
    >>> explained(ValueError("bad shape"), "bad shape")
    ''
    >>> explained(RuntimeError(), "Allgather is not supported with Join")
    'hvd.allgather was called while another rank waits in hvd.join(): ...
    """
    if isinstance(error, SpawnError):
        return message
    if match := _WITH_JOIN.search(message):
        call = f"hvd.{match[1].lower()}"
        return (
            f"{call} was called while another rank waits in hvd.join(): {match[0]}, only allreduce "
            f"is. Call {call} on all ranks before the first of them calls hvd.join(), or on all "
            "ranks after it. For sparse gradients, use "
            "hvd.DistributedOptimizer(..., sparse_as_dense=True)."
        )
    if match := _DEVICE_IDS.search(message):
        fix = "Move the model before with model.to(device), or leave device_ids out."
        if not torch.cuda.is_available():
            fix = "PyTorch finds no GPU here: leave device_ids and output_device out."
        return (
            f"DistributedDataParallel(device_ids={match[1]}): the model's parameters are on the "
            f"CPU, and device_ids is only for a model on a GPU. {fix}"
        )
    if _READY_TWICE in message:
        return (
            f"{message}\nIn a notebook there is another cause: the model was wrapped again while "
            "an earlier DistributedDataParallel of it still exists, and both reduce its gradients. "
            "Delete the earlier one before (del model), or keep it and do not wrap again."
        )
    if _in_elastic(error):
        return (
            "hvd.elastic.run: the function was not called, because elastic training needs the "
            "driver of `horovodrun --min-np`, which starts and replaces processes, and the ranks "
            "of a cluster have none. Call the function without the decorator. If a rank is lost, "
            "replace it with %cluster restart --ranks N, or continue with fewer ranks with "
            "%cluster resize -n N; variables of the other ranks are kept."
        )
    return ""


def _in_elastic(error: BaseException) -> bool:
    """Return whether an error comes from Horovod's connection to a driver of elastic training."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename.endswith(_ELASTIC) for frame, _ in frames)
