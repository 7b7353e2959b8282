"""Hooks in PyTorch that report the events of a training loop."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.checkpoint import CheckpointFunction

from workbench.rank.after_import import after_import
from workbench.rank.recording import (
    batches,
    buckets,
    collectives,
    iteration,
    module_hooks,
    phases,
    recorder,
    training_loop,
    waits,
)
from workbench.rank.recording.compiler import never_compile, never_compile_module
from workbench.rank.recording.exchange import limit_bytes
from workbench.rank.recording.module_hooks import ModuleHooks
from workbench.rank.recording.patches import Hooks
from workbench.rank.recording.phase import Phase
from workbench.rank.recording.recorder import Recorder

_STEP = Optimizer.profile_hook_step(lambda _: None).__code__
"""The code of every optimizer's step."""
_compiled_steps: list[Optimizer] = []
"""Optimizers that have stepped in compiled code since the code began to run."""
_BOOKKEEPING = (
    *(batches, buckets, collectives, iteration, module_hooks, phases, recorder),
    *(training_loop, waits),
)
"""Modules that call no functions of the user."""
_FRAMES = 3
"""Number of frames that a replacement adds: the guard, the replacement, the original's call."""
_KNOWN_AFTER = 4
"""After this number of steps of each optimizer, all models of the loop have been found."""
_IN_VAIN = 4
"""After this number of searches, an unseen forward is not a module's, but e.g. compiled code."""


class TorchHooks(Hooks):
    """Reports PyTorch's events in this process to a `Recorder`."""

    kind = "training loop"

    def __init__(self, recorder: Recorder, *, copies: bool = False) -> None:
        super().__init__(recorder)
        self._copies = copies
        self._handles: list[Any] = []
        self._modules = ModuleHooks(recorder, self.guard)
        self._steps: dict[int, int] = {}
        self._searches = self._found = 0
        self._begun = 0
        """Number of optimizer steps that have begun."""
        self._compiled_since = 0
        """Time of the latest start of compiled code."""
        for module in _BOOKKEEPING:
            never_compile_module(module)
        for method in (self._before_step, self._after_step):
            never_compile(method)
        self._guarded_begin = self.guard.only(self._step_begins)
        self._guarded_end = self.guard.only(self._step_ends)

    def install(self) -> None:
        """Start recording."""
        # PyTorch warns about hooks, which are removed before a compiled model runs
        warnings.filterwarnings(
            "ignore", message=r"Using `torch\.compile\(module\)` when there are"
        )
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self.replace(Optimizer, "__init__", self._new_optimizer)
        self.replace(torch.autograd, "backward", self._backward)
        self.replace(torch.autograd, "grad", self._grad)
        self.replace(CheckpointFunction, "apply", self._checkpoint)
        self.replace(Optimizer, "zero_grad", self._in_phase(Phase.OPTIMIZER))
        self.replace(GradScaler, "step", self._scaler_step)
        self.replace(torch.nn.Module, "__reduce_ex__", self._modules.leave_out)
        self.replace(torch.cuda, "make_graphed_callables", self._without_hooks)
        self.replace(torch.jit, "script", self._script)
        after_import("torch._dynamo.eval_frame", self._install_compiler)
        if self._copies:
            for name, from_cpu in _FROM_CPU.items():
                self.replace(torch.Tensor, name, self._in_phase(Phase.COPY, from_cpu))
            self.replace(torch.cuda.CUDAGraph, "capture_begin", partial(self._capture, begins=True))
            self.replace(torch.cuda.CUDAGraph, "capture_end", partial(self._capture, begins=False))

    def _install_compiler(self, eval_frame: Any) -> None:
        """Note the begin and end of compiled code: both call a function of `eval_frame`."""
        if not self._recorder.on:
            return
        name = "_maybe_set_eval_frame"
        self.replace(eval_frame, name if hasattr(eval_frame, name) else "set_eval_frame", self._run)

    def _run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        modules = self._modules

        def set_eval_frame(callback: Any) -> Any:
            if callback:  # the callback compiles code or looks it up; False and None do neither
                self._compiled_since = perf_counter_ns()
                modules.compiled_begins(_caller())
                return original(callback)
            earlier = original(callback)
            if _compiled_steps:
                self._count_compiled_steps()
            if modules.hidden:
                modules.compiled_ends(_caller())
            return earlier

        return set_eval_frame

    def remove(self) -> None:
        """Stop recording and restore the functions that were replaced."""
        self._modules.remove()
        super().remove()
        # from now on, no hook will report the end of a CUDA graph capture
        self._note_capture(begins=False)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def begin_cell(self) -> None:
        """Search for the models that the cell trains."""
        self._steps.clear()
        _compiled_steps.clear()
        self._searches = self._found = 0
        self._modules.search()

    def end_cell(self) -> None:
        """Remove the hooks from the cell's models."""
        self._modules.remove()

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._guarded_begin(optimizer)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if torch.compiler.is_compiling():
            _compiled_steps.append(optimizer)  # compiled code repeats this at each run
        else:
            self._guarded_end(optimizer)

    def _step_begins(self, optimizer: Optimizer, began: int = 0) -> None:
        self._begun += 1
        key = id(optimizer)
        loop = self._recorder.loop
        within = loop.in_step_of_another(key) and _is_within_step()
        if loop.clock.forward_unseen and not self._modules.searching:
            self._search_again()
        loop.step_begins(key, complete=not _is_adasum(optimizer), within=within, began=began)
        steps = self._steps[key] = self._steps.get(key, 0) + 1
        if key not in loop.limits_bytes:
            loop.limits_bytes[key] = limit_bytes(optimizer)
        # Horovod's optimizers report two steps each time, so the loop has run at least twice
        if steps == _KNOWN_AFTER and min(self._steps.values()) >= _KNOWN_AFTER:
            self._modules.stop_search()

    def _search_again(self) -> None:
        """Search for a model that the cell trains later than others; give up after 4 failures."""
        if self._modules.found > self._found:
            self._searches = 0
            self._found = self._modules.found
        if self._searches < _IN_VAIN:
            self._searches += 1
            self._steps.clear()
            self._modules.search()

    def _step_ends(self, optimizer: Optimizer) -> None:
        self._recorder.loop.step_ends(id(optimizer), complete=not _is_adasum(optimizer))

    def _count_compiled_steps(self) -> None:
        """Count the optimizer steps of compiled code, which calls no hooks."""
        optimizers = list(_compiled_steps)
        _compiled_steps.clear()
        for optimizer in optimizers:
            self._step_begins(optimizer, began=self._compiled_since)
            self._step_ends(optimizer)

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Count an iteration with infinite gradients, although its optimizer takes no step."""

        def step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            before = self._begun
            result = original(scaler, optimizer, *args, **kwargs)
            if self._begun == before and scaler.is_enabled():
                self._step_begins(optimizer)
                self._step_ends(optimizer)
            return result

        return step

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        """Remove our hooks in the `with` block, whose code would refuse or compile them."""
        hooked = self._modules.searching or self._modules.found
        self._modules.remove()
        try:
            yield
        finally:
            if hooked:
                self.begin_cell()

    def _without_hooks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._hidden():
                return original(*args, **kwargs)

        return call

    def _script(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def script(
            obj: Any, optimize: Any = None, _frames_up: int = 0, *args: Any, **kwargs: Any
        ) -> Any:
            with self._hidden():  # the original looks names up in the frame of its caller
                return original(obj, optimize, _frames_up + _FRAMES, *args, **kwargs)

        return script

    def _new_optimizer(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self_: Optimizer, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(self_, *args, **kwargs)
            self._steps.pop(id(self_), None)
            self._modules.search()

        return __init__

    def _capture(self, original: Callable[..., None], *, begins: bool) -> Callable[..., None]:
        def capture(*args: Any, **kwargs: Any) -> None:
            if begins:
                self._note_capture(begins=True)
            captures = False
            try:
                original(*args, **kwargs)
                captures = begins
            finally:
                if not captures:
                    self._note_capture(begins=False)

        return capture

    def _note_capture(self, *, begins: bool) -> None:
        if (device := self._recorder.device) is not None:
            with device.asking:
                device.capturing = begins

    def _backward(self, original: Callable[..., None]) -> Callable[..., None]:
        recorder = self._recorder

        def backward(*args: Any, **kwargs: Any) -> None:
            loop = recorder.loop
            loop.backward_begins()
            raised = True
            try:
                original(*args, **kwargs)
                raised = False
            finally:
                loop.backward_ends(raised=raised)

        return backward

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        def grad(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            goes_on = bool(kwargs.get("create_graph") or args[4:5] == (True,))
            loop = recorder.loop
            loop.gradients_begin(goes_on=goes_on)
            try:
                return original(*args, **kwargs)
            finally:
                loop.gradients_end(goes_on=goes_on)

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

    def _in_phase(
        self, phase: Phase, belongs: Callable[..., bool] = lambda *_, **__: True
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a maker of replacements that count a call to a phase if `belongs` returns True."""
        recorder = self._recorder

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling() or not belongs(*args, **kwargs):
                    return original(*args, **kwargs)
                loop = recorder.loop
                if not loop.enter(phase):
                    return original(*args, **kwargs)
                try:
                    result = original(*args, **kwargs)
                finally:
                    loop.leave()
                if phase is Phase.COPY and isinstance(result, torch.Tensor):
                    source = args[1] if result is args[0] and len(args) > 1 else args[0]
                    loop.copied(source, result)
                return result

            return call

        return make


def _caller() -> int:
    """Return an identifier of the call that begins or ends compiled code."""
    frame = sys._getframe(3)  # skips this function, its caller and the guard
    if frame.f_code.co_name in {"__enter__", "__exit__"} and frame.f_back is not None:
        frame = frame.f_back
    return id(frame)


def _is_within_step() -> bool:
    """Return whether the step that begins is called by another optimizer's step."""
    steps = 0
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        steps += frame.f_code is _STEP
    return steps > 1


def _is_adasum(optimizer: Optimizer) -> bool:
    """Return whether this is Horovod's Adasum optimizer, which steps parameters in a backward."""
    return hasattr(optimizer, "_starting_models")


def _on_cpu(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cpu")


def _to_leaves_cpu(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> bool:
    if not _on_cpu(tensor):
        return False
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return not _on_cpu(value)
        if isinstance(value, (torch.device, str)):
            return bool(torch.device(value).type != "cpu")
        if isinstance(value, int) and not isinstance(value, bool):  # a GPU's number
            return True
    return False


def _copy_leaves_cpu(tensor: torch.Tensor, source: Any, *_: Any, **__: Any) -> bool:
    return not _on_cpu(tensor) and _on_cpu(source)


_FROM_CPU: dict[str, Callable[..., bool]] = {
    "to": _to_leaves_cpu,
    "cuda": lambda tensor, *_, **__: _on_cpu(tensor),
    "copy_": _copy_leaves_cpu,
}
"""Methods that copy tensors, and functions that return whether a call copies to a device."""
