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
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
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
        self._patches.replace(Optimizer, "zero_grad", self._zero_grad)
        self._patches.replace(dataloader._BaseDataLoaderIter, "__next__", self._next)

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
        self._recorder.step_begins(key)
        steps = self._steps[key] = self._steps.get(key, 0) + 1
        # Horovod's optimizers fire twice a step: by now the loop has been through
        # twice, and every model it calls has been met
        if steps == _MET_AFTER and min(self._steps.values()) >= _MET_AFTER:
            self._modules.stop_search()

    def _step_ends(self, optimizer: Optimizer, *_: Any) -> None:
        self._recorder.step_ends(id(optimizer))

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
            try:
                original(*args, **kwargs)
            finally:
                recorder.backward_ends()

        return backward

    def _zero_grad(self, original: Callable[..., None]) -> Callable[..., None]:
        recorder = self._recorder

        def zero_grad(self: Optimizer, *args: Any, **kwargs: Any) -> None:
            recorder.cleaning_begins()
            try:
                original(self, *args, **kwargs)
            finally:
                recorder.cleaning_ends()

        return zero_grad

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        def __next__(self: Any) -> Any:  # noqa: N807 - the name of what it stands for
            began = perf_counter_ns()
            batch = original(self)
            recorder.loaded(began)
            return batch

        return __next__
