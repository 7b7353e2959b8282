"""Explains errors that CUDA and NCCL raise in a cell."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterable
from typing import NamedTuple

import torch

_ADVICE = (
    "When the next cell starts, the tensors of this one's functions are freed. To need less: a "
    "smaller batch (workbench.fabric.largest_batch finds the largest that fits), mixed precision "
    "(torch.autocast), or gradients accumulated over several small batches."
)
_SHARED_GPU = "Duplicate GPU detected"
_ONE_GPU_EACH = (
    "NCCL refuses two ranks on one GPU (Duplicate GPU detected). Use the variable `device` of each "
    "rank instead of a fixed cuda:0. With fewer GPUs than ranks, start one rank per GPU, divide a "
    "GPU into MIG devices, or try Gloo: --backend ddp and dist.init_process_group('gloo')"
)
_GIB = 1 << 30
_NAMED = re.compile(r"\bGPU (\d+)")


class HeldMemory(NamedTuple):
    """The bytes that this process holds on one device, by purpose.

    Attributes
    ----------
    parameters, gradients
        Bytes of all modules; parameters include buffers.
    optimizer_state
        Bytes of optimizers' states, such as the moments of Adam.
    """

    parameters: int
    gradients: int
    optimizer_state: int


def held_memory(device: torch.device) -> HeldMemory:
    """Return the memory that modules and optimizers of this process hold on a device.

    Shared memory is counted once, for the first purpose in the order of `HeldMemory`.

    Examples
    --------
    >>> layer = torch.nn.Linear(2, 3)
    >>> held_memory(torch.device("cpu")).parameters >= 4 * (2 * 3 + 3)
    True
    """
    parameters: list[torch.Tensor] = []
    states: list[torch.Tensor] = []
    for module_or_optimizer in gc.get_objects():
        with contextlib.suppress(Exception):  # an object may be incomplete
            if issubclass(type(module_or_optimizer), torch.nn.Module):
                parameters += [*module_or_optimizer.parameters(), *module_or_optimizer.buffers()]
            elif issubclass(type(module_or_optimizer), torch.optim.Optimizer):
                states += [
                    tensor
                    for state in module_or_optimizer.state.values()
                    for tensor in _tensors(state.values())
                ]
    gradients = [tensor.grad for tensor in parameters if tensor.grad is not None]
    seen: set[int] = set()
    return HeldMemory(*(_bytes(group, device, seen) for group in (parameters, gradients, states)))


def explained(error: BaseException, message: str) -> str:
    """Return the message of a cell's error, with advice if a GPU is too small or shared.

    PyTorch's error for lack of memory states the requested and the free size, and the use of other
    processes. This function adds the use of this process, and what to do. NCCL's error for a shared
    GPU differs between ranks; the text here does not, so it is shown once.

    Examples
    --------
    >>> explained(ValueError("bad shape"), "bad shape")
    'bad shape'
    >>> explained(RuntimeError(), "Duplicate GPU detected : rank 1")[:33]
    'NCCL refuses two ranks on one GPU'
    """
    if isinstance(error, torch.cuda.OutOfMemoryError):
        holders = ""
        with contextlib.suppress(Exception):  # the error must be shown even without the explanation
            holders = f" {_holders(message)}"
        return f"{message}{holders} {_ADVICE}"
    return _ONE_GPU_EACH if _SHARED_GPU in message else message


def _holders(message: str) -> str:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        named = _NAMED.search(message)
        device = torch.device("cuda", int(named[1]) if named else torch.cuda.current_device())
    held_bytes = held_memory(device)._asdict()
    if device.type == "cuda":
        others = torch.cuda.memory_allocated(device) - sum(held_bytes.values())
        held_bytes["activations and others"] = max(0, others)
    parts = [f"{size / _GIB:.2f} GiB {name.replace('_', ' ')}" for name, size in held_bytes.items()]
    return f"This rank's tensors have {', '.join(parts)}."


def _tensors(values: Iterable[object]) -> Iterable[torch.Tensor]:
    return (value for value in values if isinstance(value, torch.Tensor))


def _bytes(tensors: Iterable[torch.Tensor], device: torch.device, seen: set[int]) -> int:
    total = 0
    for whole in tensors:
        tensor = getattr(whole, "_local_tensor", whole)  # this rank's part of a DTensor
        if tensor.device.type != device.type or (tensor.device.index or 0) != (device.index or 0):
            continue
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            total += storage.nbytes()
    return total
