"""Finding the outermost modules that a cell trains, and hooking only those.

A global module hook fires for every submodule and is dear, so it is there only
while models are searched for, and never within the forward of one. The hooks
left on a model are plain functions, so that it can still be copied and
pickled, and they leave it when the cell ends.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from workbench.rank.recorder import Recorder

_listener: ModuleHooks | None = None
"""Who gets the events: the hooks are plain functions and cannot carry it."""


class ModuleHooks:
    """Tells a `Recorder` when a model's forward begins and ends.

    Parameters
    ----------
    recorder
        Gets the events.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._searching = False
        self._global: Any = None
        self._hooks: list[Any] = []
        self._known: set[int] = set()
        self.checkpointing = False
        """Whether a reentrant checkpoint runs its function; it turns gradients off meanwhile."""

    def search(self) -> None:
        """Hook every outermost module with trainable parameters that is called from now on."""
        global _listener  # noqa: PLW0603 - see there
        _listener = self
        self._searching = True
        self._resume()

    def stop_search(self) -> None:
        """Leave it at the models that are known."""
        self._searching = False
        self._pause()

    def remove(self) -> None:
        """Take all hooks off."""
        global _listener  # noqa: PLW0603 - see there
        _listener = None
        self.stop_search()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._known.clear()

    def begins(self, module: torch.nn.Module) -> None:
        """An outermost module is called."""
        self._pause()
        self._recorder.forward_begins(training=module.training, grad=self._has_grad())

    def ends(self) -> None:
        """It has returned or raised."""
        self._recorder.forward_ends(grad=self._has_grad())
        if self._searching:
            self._resume()

    def _has_grad(self) -> bool:
        return self.checkpointing or torch.is_grad_enabled()

    def _meet(self, module: torch.nn.Module, _args: Any) -> None:
        if torch.compiler.is_compiling():
            return  # a compiler traces this: there is nothing to time
        if id(module) in self._known or not any(p.requires_grad for p in module.parameters()):
            return
        self._known.add(id(module))
        self._hooks.append(module.register_forward_pre_hook(_before))
        self._hooks.append(module.register_forward_hook(_after, always_call=True))
        self.begins(module)  # this call has passed the place where its own hook would fire

    def _resume(self) -> None:
        if self._global is None:
            self._global = register_module_forward_pre_hook(self._meet)

    def _pause(self) -> None:
        if self._global is not None:
            self._global.remove()
            self._global = None


def _before(module: torch.nn.Module, _args: Any) -> None:
    if torch.compiler.is_compiling():
        return
    if _listener is not None:
        _listener.begins(module)


def _after(_module: torch.nn.Module, _args: Any, _output: Any) -> None:
    if torch.compiler.is_compiling():
        return
    if _listener is not None:
        _listener.ends()
