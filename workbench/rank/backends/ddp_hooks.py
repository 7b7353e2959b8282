"""Records the buckets that PyTorch's DistributedDataParallel reduces, and when they are done.

A DDP model accepts one communication hook. Ours is registered. It calls the user's hook if
there is one, and otherwise does what DDP does without a hook.

`torch_collectives` records other communication by torch.distributed.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workbench.rank.backends.torch_calls import Bucket, TorchCalls
from workbench.rank.recording.collectives import Operation
from workbench.rank.recording.patches import Hooks, Patches
from workbench.rank.recording.recorder import Recorder

Hook = Callable[[Any, Any], Any]


class DDPHooks(Hooks):
    """Reports to a `Recorder` what DistributedDataParallel does in this process."""

    def __init__(self, recorder: Recorder, calls: TorchCalls) -> None:
        super().__init__(recorder)
        self._calls = calls
        # the reducer of a model keeps its hook; these must not outlive the model
        self._models: weakref.WeakValueDictionary[int, _Model] = weakref.WeakValueDictionary()
        self._registration = Patches()

    def install(self) -> None:
        """Start to record; a model that has another communication hook is not recorded."""
        if not dist.is_available():
            return
        self.replace(DistributedDataParallel, "__init__", self._new_model)
        self._registration.replace(dist, "_register_comm_hook", self._register)
        self._registration.replace(dist, "_register_builtin_comm_hook", self._register_builtin)
        if dist.is_initialized():
            self._follow_earlier()

    def remove(self) -> None:
        """Stop recording and restore the originals.

        DDP keeps the communication hook of a model. Ours then only calls the user's hook, which
        can still be registered.
        """
        super().remove()
        if not self._models:
            self._registration.remove()

    def moved(self, ddp: Any, before: Any) -> None:
        """Note that a model has another process group."""
        known = self._models.get(id(ddp.reducer))
        if known is None:
            return
        known.move(before, ddp.process_group)

    def _new_model(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(ddp: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(ddp, *args, **kwargs)
            self._follow(ddp)

        return __init__

    def _follow(self, ddp: Any) -> None:
        """Register our hook with a model, unless its ``__init__`` has."""
        key = id(ddp.reducer)
        if key not in self._models:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            dist._register_comm_hook(ddp.reducer, ddp.process_group, allreduce_hook)
            self._models[key].replaceable = True
        self._models[key].group = ddp.process_group
        weakref.finalize(ddp, self._models.pop, key, None)  # a traceback may keep the value

    def _follow_earlier(self) -> None:
        """Register our hook with the models that were wrapped while recording was off."""
        for thing in gc.get_objects():
            if not issubclass(type(thing), DistributedDataParallel):
                continue
            reducer = getattr(thing, "reducer", None)
            if reducer is not None and id(reducer) not in self._models:
                with contextlib.suppress(RuntimeError):  # it has a hook
                    self._follow(thing)

    def _register(self, original: Callable[..., None]) -> Callable[..., None]:
        def _register_comm_hook(reducer: Any, state: Any, hook: Hook) -> None:
            known = self._models.get(id(reducer))
            if known is not None and known.replaceable:
                known.state, known.hook, known.replaceable = state, hook, False
                return
            taken = {model.number for model in self._models.values()}
            free = next(number for number in itertools.count() if number not in taken)
            model = _Model(free, state, hook)
            original(reducer, model, self._reduce)  # raises if there is a hook already
            self._models[id(reducer)] = model

        return _register_comm_hook

    def _register_builtin(self, original: Callable[..., None]) -> Callable[..., None]:
        def _register_builtin_comm_hook(reducer: Any, kind: Any) -> None:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            known = self._models.get(id(reducer))
            if known is None or not known.replaceable:
                original(reducer, kind)
                return
            halves = kind == dist.BuiltinCommHookType.FP16_COMPRESS
            known.hook = (
                default_hooks.fp16_compress_hook if halves else default_hooks.allreduce_hook
            )
            known.state, known.replaceable = known.group, False

        return _register_builtin_comm_hook

    def _reduce(self, model: _Model, bucket: Any) -> Any:
        if not self._recorder.on:
            self._recorder.used_while_off = True
            return model.hook(model.state, bucket)
        if self._recorder.capturing:
            self._recorder.loop.note_unheard()
            with self._calls.hook_of_ddp([]):
                return model.hook(model.state, bucket)
        began = perf_counter_ns()
        handle = Bucket(self._recorder)
        with self._calls.hook_of_ddp(handle.sent):
            future = model.hook(model.state, bucket)
            buffer = bucket.buffer()
            if isinstance(future, torch._C.Future):  # the base class, which PyTorch returns too
                handle.follow(future, gpu=buffer.is_cuda)
            else:
                handle.finished = perf_counter_ns()
            operation = model.operation(bucket, buffer.nbytes)
            loop = self._recorder.loop
            waits = bucket.is_last() and loop.in_backward  # for all buckets of the backward
            loop.buckets.submitted(operation, handle, began, waits=waits)
        return future


class _Model:
    """A wrapped model: the hook that reduces its buckets, and its number among existing models."""

    def __init__(self, number: int, state: Any, hook: Hook) -> None:
        self.number = number
        self._operations: dict[tuple[int, int], Operation] = {}
        self.state = state
        self.hook = hook
        self.group: Any = None
        self.replaceable = False

    def move(self, before: Any, group: Any) -> None:
        """Use another process group, also in the hook if the group is its state."""
        self.group = group
        if self.state is before:
            self.state = group
        self._operations.clear()

    def operation(self, bucket: Any, size: int) -> Operation:
        """Return the description of a bucket without a hook, which may send fewer bytes."""
        key = bucket.index(), size
        found = self._operations.get(key)
        if found is None:
            model = f"model {self.number}, " if self.number else ""
            found = self._operations[key] = Operation(
                f"{model}bucket {bucket.index()}",
                size,
                len(bucket.parameters()),
                "allreduce",
                0,
                dist.get_world_size(self.group),
                "ddp",
            )
        return found
