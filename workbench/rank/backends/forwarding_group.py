"""A process group that forwards the calls of a DDP model's reducer, and notes its buckets.

`native_group` is the same group in C++. This module is used if the C++ group is not compiled, and
on GPUs, because there events in the stream show when a bucket is done.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist

from workbench.rank.backends.torch_operations import sent_bytes
from workbench.rank.interrupts import postpones_interrupts
from workbench.rank.recording.patches import Function

_ALLREDUCE = dist.ProcessGroup.allreduce
_BROADCAST = dist.ProcessGroup.broadcast
"""The original methods; recording replaces them in the class."""


def called_by_reducer(function: Function) -> Function:
    """Prepare a function that C++ calls during a backward, or while compiled code runs.

    Interrupts are postponed until it returns. TorchDynamo does not compile it.
    """
    postpones_interrupts(function)
    frames = torch._C._dynamo.eval_frame  # without importing torch._dynamo, which takes a second
    if hasattr(frames, "skip_code"):  # PyTorch 2.4
        frames.skip_code(function.__code__)
    elif hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        strategy = frames._FrameExecStrategy(skip, skip)
        frames.set_code_exec_strategy(function.__code__, strategy)
    return function


class ForwardingGroup(dist.ProcessGroup):
    """Forwards collectives to another group.

    Parameters
    ----------
    real
        The group that carries out the collectives.
    submitted
        Called for each submitted bucket with the bucket's tensor, its bytes before the reduction,
        its `Work`, and the time before the call, as ``time.perf_counter_ns()``.

    Attributes
    ----------
    real
        As the parameter; it can be replaced by a group with the same number of ranks.
    """

    def __init__(self, real: Any, submitted: Callable[[Any, int, Any, int], None]) -> None:
        super().__init__(real.rank(), real.size())
        self.real = real
        self._submitted = submitted
        self._layout: Any = None
        """Tensor with the number of parameters of each bucket, after a new division; or None."""

    @called_by_reducer
    def allreduce(self, tensors: Any, options: Any) -> Any:
        """Reduce a bucket, or DDP's map of used parameters."""
        bucket = tensors[0]
        # measure first: while a sparse gradient is reduced, a thread of Gloo puts the rows of all
        # ranks in it
        size = sent_bytes(bucket)
        began = perf_counter_ns()
        real = self.real
        plain = type(real) is dist.ProcessGroup
        work = _ALLREDUCE(real, tensors, options) if plain else real.allreduce(tensors, options)
        if bucket.dtype != torch.int32:  # the map of used parameters is the only int32 tensor
            self._submitted(bucket, size, work, began)
        return work

    @called_by_reducer
    def broadcast(self, tensors: Any, options: Any) -> Any:
        """Broadcast DDP's new division of the parameters into buckets."""
        real = self.real
        self._layout = tensors[0]  # the last call has the number of parameters of each bucket
        plain = type(real) is dist.ProcessGroup
        return _BROADCAST(real, tensors, options) if plain else real.broadcast(tensors, options)

    def take_layout(self) -> list[int]:
        """Return the number of parameters of each bucket if DDP has divided them again.

        The result is empty if there was no new division since the last call.
        """
        parameters_per_bucket = self._layout
        self._layout = None
        return [] if parameters_per_bucket is None else list(parameters_per_bucket.tolist())
