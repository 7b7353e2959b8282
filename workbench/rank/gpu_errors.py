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


class Held(NamedTuple):
    """The bytes on one device that this process holds, by purpose.

    Attributes
    ----------
    parameters, gradients
        Of all modules; parameters include buffers.
    optimizer_state
        Such as the moments of Adam.
    """

    parameters: int
    gradients: int
    optimizer_state: int


def held(device: torch.device) -> Held:
    """Return what modules and optimizers of this process hold on a device.

    Memory that several of them share is counted once, for the first in the order of `Held`.
    """
    parameters: list[torch.Tensor] = []
    states: list[torch.Tensor] = []
    for thing in gc.get_objects():
        with contextlib.suppress(Exception):  # one that is not complete
            if issubclass(type(thing), torch.nn.Module):
                parameters += [*thing.parameters(), *thing.buffers()]
            elif issubclass(type(thing), torch.optim.Optimizer):
                states += [
                    tensor for state in thing.state.values() for tensor in _tensors(state.values())
                ]
    gradients = [tensor.grad for tensor in parameters if tensor.grad is not None]
    seen: set[int] = set()
    return Held(*(_bytes(group, device, seen) for group in (parameters, gradients, states)))


def explained(error: BaseException, message: str) -> str:
    """Return the message of a cell's error, with what helps if a GPU is too small or shared.

    PyTorch's error for lack of memory says how much was asked for, how much is free, and what other
    processes use. This adds what holds the rest, and what to do. NCCL's error for a shared GPU
    differs between ranks; this one does not, so it is shown once.
    """
    if isinstance(error, torch.cuda.OutOfMemoryError):
        holders = ""
        with contextlib.suppress(Exception):  # the error itself must be shown
            holders = f" {_holders(message)}"
        return f"{message}{holders} {_ADVICE}"
    return _ONE_GPU_EACH if _SHARED_GPU in message else message


def _holders(message: str) -> str:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        named = _NAMED.search(message)
        device = torch.device("cuda", int(named[1]) if named else torch.cuda.current_device())
    found = held(device)._asdict()
    if device.type == "cuda":
        others = torch.cuda.memory_allocated(device) - sum(found.values())
        found["activations and others"] = max(0, others)
    parts = [f"{size / _GIB:.2f} GiB {name.replace('_', ' ')}" for name, size in found.items()]
    return f"This rank's tensors have {', '.join(parts)}."


def _tensors(values: Iterable[object]) -> Iterable[torch.Tensor]:
    return (value for value in values if isinstance(value, torch.Tensor))


def _bytes(tensors: Iterable[torch.Tensor], device: torch.device, seen: set[int]) -> int:
    total = 0
    for whole in tensors:
        tensor = getattr(whole, "_local_tensor", whole)  # of a DTensor, this rank's part
        if tensor.device.type != device.type or (tensor.device.index or 0) != (device.index or 0):
            continue
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            total += storage.nbytes()
    return total
