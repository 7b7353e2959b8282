"""Finds the outermost modules that a cell trains, and hooks only these.

A global module hook is slow, because PyTorch calls it for every submodule. It is registered only
during a search for models, and never during the forward of a model. It is also removed while
compiled code runs, because PyTorch compiles again whenever the number of global hooks differs. The
hooks of a model are plain functions. They are left out of copies and pickles, and removed at the
end of the cell.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from workbench.rank.recording.guard import Guard
from workbench.rank.recording.recorder import Recorder

_HOOKS = (
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_forward_hooks", "_forward_hooks_always_called"),
)
_listener: ModuleHooks | None = None
"""Receives the events of the hooks, because these are plain functions without state."""


class ModuleHooks:
    """Reports to a `Recorder` when a model's forward begins and ends."""

    def __init__(self, recorder: Recorder, guard: Guard) -> None:
        self._recorder = recorder
        self._guard = guard
        self.guarded_begins = guard.only(self.begins)
        self.guarded_ends = guard.only(self.ends)
        self._searching = False
        self._global: Any = None
        self.hidden = 0
        """Identifier of the caller of compiled code that needs the global hook removed, or 0."""
        self._hooks: list[Any] = []
        self._within: set[int] = set()
        """Numbers of the threads that run a forward of an outermost module."""
        self._known: dict[int, weakref.ref[torch.nn.Module]] = {}
        """Hooked modules by `id`; a later module may have the same `id`."""
        self.checkpointing = False
        """Whether a reentrant checkpoint runs; gradients are disabled during that time."""

    @property
    def searching(self) -> bool:
        """Whether further modules are hooked when they are called."""
        return self._searching

    @property
    def found(self) -> int:
        """Number of hooked modules of the cell."""
        return len(self._known)

    def search(self) -> None:
        """Hook each outermost module that takes part in training, at its next call."""
        global _listener  # noqa: PLW0603 - hooks without a state read it
        _listener = self
        self._searching = True
        self._within.discard(get_ident())  # a forward that has raised before its hooks
        if not self.hidden:
            self._resume()

    def stop_search(self) -> None:
        """Hook no further modules."""
        self._searching = False
        self._pause()

    def compiled_begins(self, caller: int) -> None:
        """Remove the global hook while a caller, given by its number, runs compiled code."""
        if self._global is not None:
            self.hidden = caller
            self._pause()

    def compiled_ends(self, caller: int) -> None:
        """Register the global hook again, if it was removed for this caller.

        Other callers run code in between: the compiler, and functions excluded from compilation.
        """
        if self.hidden == caller:
            self.hidden = 0
            if self._searching:
                self._resume()

    def remove(self) -> None:
        """Remove all hooks."""
        global _listener  # noqa: PLW0603 - hooks without a state read it
        _listener = None
        self.hidden = 0
        self.stop_search()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._known.clear()

    def leave_out(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a ``Module.__reduce_ex__`` that omits our hooks from copies and saved models."""

        def __reduce_ex__(module: torch.nn.Module, protocol: Any) -> Any:  # noqa: N807 - its name
            reduced = original(module, protocol)
            if not self._is_known(module) or not isinstance(reduced, tuple) or len(reduced) < 3:
                return reduced
            constructor, arguments, state, *more = reduced
            if not isinstance(state, dict):
                return reduced
            own_ids = {
                number
                for name in ("_forward_pre_hooks", "_forward_hooks")
                for number, hook in (state.get(name) or {}).items()
                if hook in (_before, _after)
            }
            changed = {
                name: type(hooks)((n, hook) for n, hook in hooks.items() if n not in own_ids)
                for name in _HOOKS
                if (hooks := state.get(name)) is not None
            }
            return (constructor, arguments, {**state, **changed}, *more)

        return __reduce_ex__

    def begins(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Any = None) -> None:
        """Report the call of an outermost module."""
        self._within.add(get_ident())
        if self._recorder.loop.is_training_thread():  # other threads may run during its forwards
            self._pause()
        self._recorder.loop.forward_begins(
            training=module.training,
            grad=self._has_grad(),
            model=id(module),
            arguments=args,
            options=kwargs,
        )

    def ends(self) -> None:
        """Report the end of the call of an outermost module."""
        self._within.discard(get_ident())
        self._recorder.loop.forward_ends(grad=self._has_grad())
        trains = self._recorder.loop.is_training_thread()
        if self._searching and trains and not self.hidden:
            self._resume()

    def _has_grad(self) -> bool:
        return self.checkpointing or torch.is_grad_enabled()

    def _found(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return  # the compiler traces the model without running it
        if get_ident() in self._within:
            return  # a part of a model that another thread calls
        if self._is_known(module) or isinstance(module, torch.jit.ScriptModule):
            return  # a scripted module refuses hooks
        if not _takes_part(module, args):
            return
        self._known[id(module)] = weakref.ref(module)
        self._hooks.append(module.register_forward_pre_hook(_before, with_kwargs=True))
        self._hooks.append(module.register_forward_hook(_after, always_call=True))
        self.begins(module, args)  # its own hook is called from the next call on

    def _is_known(self, module: torch.nn.Module) -> bool:
        reference = self._known.get(id(module))
        return reference is not None and reference() is module

    def _resume(self) -> None:
        if self._global is None:
            self._global = register_module_forward_pre_hook(self._guard.only(self._found))

    def _pause(self) -> None:
        if self._global is not None:
            self._global.remove()
            self._global = None


def _takes_part(module: torch.nn.Module, args: tuple[Any, ...]) -> bool:
    """Return whether a module is trained, or passes gradients on to its arguments.

    The discriminator of a GAN is often frozen while its generator is trained.
    """
    parameters = [parameter.requires_grad for parameter in module.parameters()]
    return any(parameters) or bool(
        parameters
        and any(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in args)
    )


def _before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    if _listener is not None:
        _listener.guarded_begins(module, args, kwargs)


def _after(_module: torch.nn.Module, _args: Any, _output: Any) -> None:
    if torch.compiler.is_compiling():
        return
    if _listener is not None:
        _listener.guarded_ends()
