"""Where PyTorch tells what a training loop does.

Installed once per rank, and taken out again without a trace.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.data import dataloader

from workbench.rank.module_hooks import ModuleHooks
from workbench.rank.patches import Patches
from workbench.rank.recorder import Recorder

_MET_AFTER = 4
"""Step hooks of one optimizer after which its models are known."""


class TorchHooks:
    """Feeds a `Recorder` with what PyTorch does in this process.

    Parameters
    ----------
    recorder
        Gets the events.
    copies
        Whether to look for copies from the host to a device.
    """

    def __init__(self, recorder: Recorder, *, copies: bool = False) -> None:
        self._recorder = recorder
        self._copies = copies
        self._patches = Patches()
        self._handles: list[Any] = []
        self._modules = ModuleHooks(recorder)
        self._steps: dict[int, int] = {}

    def install(self) -> None:
        """Start to listen."""
        # ours is gone before a compiled model runs
        warnings.filterwarnings(
            "ignore", message=r"Using `torch\.compile\(module\)` when there are"
        )
        self._handles = [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ends),
        ]
        self._patches.replace(Optimizer, "__init__", self._new_optimizer)
        self._patches.replace(torch.autograd, "backward", self._backward)
        self._patches.replace(torch.autograd, "grad", self._grad)
        self._patches.replace(CheckpointFunction, "apply", self._checkpoint)
        self._patches.replace(Optimizer, "zero_grad", self._zero_grad)
        self._patches.replace(dataloader._BaseDataLoaderIter, "__next__", self._next)
        if self._copies:
            for name in _FROM_HOST:
                self._patches.replace(torch.Tensor, name, self._copy)

    def remove(self) -> None:
        """Stop to listen and put everything back."""
        self._modules.remove()
        self._patches.undo()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def begin_cell(self) -> None:
        """Look for the models that the cell trains."""
        self._steps.clear()
        self._modules.search()

    def end_cell(self) -> None:
        """Take the hooks off the cell's models."""
        self._modules.remove()

    def _step_begins(self, optimizer: Optimizer, *_: Any) -> None:
        key = id(optimizer)
        self._recorder.step_begins(key, whole=not _is_adasum(optimizer))
        steps = self._steps[key] = self._steps.get(key, 0) + 1
        # Horovod's optimizers fire twice a step: by now the loop has been through
        # twice, and every model it calls has been met
        if steps == _MET_AFTER and min(self._steps.values()) >= _MET_AFTER:
            self._modules.stop_search()

    def _step_ends(self, optimizer: Optimizer, *_: Any) -> None:
        self._recorder.step_ends(id(optimizer), whole=not _is_adasum(optimizer))

    def _new_optimizer(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self_: Optimizer, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(self_, *args, **kwargs)
            self._steps.pop(id(self_), None)
            self._modules.search()

        return __init__

    def _backward(self, original: Callable[..., None]) -> Callable[..., None]:
        recorder = self._recorder

        def backward(*args: Any, **kwargs: Any) -> None:
            recorder.backward_begins()
            raised = True
            try:
                original(*args, **kwargs)
                raised = False
            finally:
                recorder.backward_ends(raised=raised)

        return backward

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        def grad(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            goes_on = bool(kwargs.get("create_graph") or args[4:5] == (True,))
            recorder.gradients_begin(goes_on=goes_on)
            try:
                return original(*args, **kwargs)
            finally:
                recorder.gradients_end(goes_on=goes_on)

        return grad

    def _checkpoint(self, original: Callable[..., Any]) -> Callable[..., Any]:
        modules = self._modules

        def apply(*args: Any, **kwargs: Any) -> Any:
            before = modules.checkpointing
            modules.checkpointing = before or torch.is_grad_enabled()
            try:
                return original(*args, **kwargs)
            finally:
                modules.checkpointing = before

        return apply

    def _zero_grad(self, original: Callable[..., None]) -> Callable[..., None]:
        recorder = self._recorder

        def zero_grad(self: Optimizer, *args: Any, **kwargs: Any) -> None:
            recorder.cleaning_begins()
            try:
                original(self, *args, **kwargs)
            finally:
                recorder.cleaning_ends()

        return zero_grad

    def _copy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, from_host = self._recorder, _FROM_HOST[original.__name__]

        def copy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not from_host(tensor, *args, **kwargs):
                return original(tensor, *args, **kwargs)
            recorder.copy_begins()
            try:
                return original(tensor, *args, **kwargs)
            finally:
                recorder.copy_ends()

        return copy

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        def __next__(self: Any) -> Any:  # noqa: N807 - the name of what it stands for
            began = perf_counter_ns()
            batch = original(self)
            recorder.loaded(began)
            return batch

        return __next__


def _is_adasum(optimizer: Optimizer) -> bool:
    """Whether it is Horovod's, whose hooks step each parameter before the loop's own step()."""
    return hasattr(optimizer, "_starting_models")


def _on_host(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cpu")


def _to_leaves_host(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> bool:
    if not _on_host(tensor):
        return False
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return not _on_host(value)
        if isinstance(value, (torch.device, str)):
            return bool(torch.device(value).type != "cpu")
        if isinstance(value, int) and not isinstance(value, bool):  # a GPU's number
            return True
    return False


def _cuda_leaves_host(tensor: torch.Tensor, *_: Any, **__: Any) -> bool:
    return _on_host(tensor)


def _copy_leaves_host(tensor: torch.Tensor, source: Any, *_: Any, **__: Any) -> bool:
    return not _on_host(tensor) and _on_host(source)


_FROM_HOST: dict[str, Callable[..., bool]] = {
    "to": _to_leaves_host,
    "cuda": _cuda_leaves_host,
    "copy_": _copy_leaves_host,
}
"""Methods of a tensor that copy it, and whether a call does so from the host to a device."""
