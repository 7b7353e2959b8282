"""A process group that forwards what the reducer of a DDP model calls, and notes its buckets.

`native_group` has the same in C++. This one is used where that is not compiled, and on GPUs, where
events in the stream tell when a bucket is done.
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
"""The methods themselves, which recording replaces in the class."""


def called_by_reducer(function: Function) -> Function:
    """Prepare a function for calls from C++, in a backward or while compiled code runs."""
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
    """Forwards to another group.

    Parameters
    ----------
    real
        That group.
    submitted
        Called with each tensor that was reduced, its bytes before, its `Work`, and the time before.

    Attributes
    ----------
    real
        The group; another one of as many ranks can be set.
    """

    def __init__(self, real: Any, submitted: Callable[[Any, int, Any, int], None]) -> None:
        super().__init__(real.rank(), real.size())
        self.real = real
        self._submitted = submitted
        self._layout: Any = None

    @called_by_reducer
    def allreduce(self, tensors: Any, options: Any) -> Any:
        """Reduce a bucket, or the map of the parameters that were used."""
        bucket = tensors[0]
        # while a sparse gradient is reduced, a thread of Gloo puts the rows of all ranks in it
        size = sent_bytes(bucket)
        began = perf_counter_ns()
        real = self.real
        plain = type(real) is dist.ProcessGroup
        work = _ALLREDUCE(real, tensors, options) if plain else real.allreduce(tensors, options)
        if bucket.dtype != torch.int32:  # else it is the map
            self._submitted(bucket, size, work, began)
        return work

    @called_by_reducer
    def broadcast(self, tensors: Any, options: Any) -> Any:
        """Broadcast how DDP has divided the parameters again."""
        real = self.real
        self._layout = tensors[0]  # the last call has the number of parameters of each bucket
        plain = type(real) is dist.ProcessGroup
        return _BROADCAST(real, tensors, options) if plain else real.broadcast(tensors, options)

    def take_layout(self) -> list[int]:
        """Return the number of parameters of each bucket if DDP has divided them again."""
        layout = self._layout
        self._layout = None
        return [] if layout is None else list(layout.tolist())
