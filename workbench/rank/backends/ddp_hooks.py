"""Records the buckets that PyTorch's DistributedDataParallel reduces, and their completion.

The reducer of a DDP model sends its buckets through a process group. It gets a group that forwards
to the model's own group, and notes each bucket. DDP's arithmetic does not change. A communication
hook would have to divide the gradients itself, which would change their last bits. It would also
ignore ``join(divide_by_initial_world_size=False)``.

A communication hook of the user in Python sends its buckets itself. The hook is called unchanged,
and its future is followed.

`torch_collectives` records other communication by torch.distributed.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workbench.rank.backends import native_group
from workbench.rank.backends.forwarding_group import ForwardingGroup
from workbench.rank.backends.torch_calls import Bucket, TorchCalls
from workbench.rank.backends.torch_operations import sent_bytes
from workbench.rank.interrupts import postpones_interrupts
from workbench.rank.recording.collectives import Operation
from workbench.rank.recording.patches import Function, Hooks, Patches
from workbench.rank.recording.recorder import Recorder

Hook = Callable[[Any, Any], Any]
_MAX_OPERATIONS = 4096
"""Maximum number of descriptions that are kept for a model."""


class DDPHooks(Hooks):
    """Reports the events of DistributedDataParallel in this process to a `Recorder`."""

    kind = "buckets of DDP"

    def __init__(self, recorder: Recorder, calls: TorchCalls) -> None:
        super().__init__(recorder)
        self._follow = self.guard.only(self._follow_model)
        self._note = self.guard.only(self._note_bucket)
        self._submitted = self.guard.only(self._note_submitted)
        self._remember = self.guard.only(self._remember_hook)
        self._calls = calls
        self._models: dict[int, _Model] = {}
        """Models by the ``id`` of their reducer; freeing the reducer removes the model."""
        self._registration = Patches()
        self._assigned: list[list[int]] = []
        """Parameters of each bucket of the latest wrapped model, in reverse order."""
        recorder.bucket_sources.append(self)

    def install(self) -> None:
        """Start recording all DDP models, including already wrapped models."""
        if not dist.is_available():
            return
        for name in ("__init__", "__setstate__", "_update_process_group"):
            self.replace(DistributedDataParallel, name, self._then_follow)
        self.replace(dist, "_compute_bucket_assignment_by_size", self._assign)
        self._registration.replace(dist, "_register_comm_hook", self._register)
        self._registration.replace(dist, "_register_builtin_comm_hook", self._register_builtin)
        if dist.is_initialized():
            for candidate in gc.get_objects():
                if issubclass(type(candidate), DistributedDataParallel):
                    self._follow(candidate)

    def remove(self) -> None:
        """Stop recording and restore the originals.

        Communication hooks stay registered: DDP offers no way to replace them.
        """
        super().remove()
        for model in tuple(self._models.values()):  # a finalizer may remove a model at any time
            model.release()
        if not self._models:
            self._registration.remove()

    def take_buckets(self) -> Iterator[tuple[Operation, int, int]]:
        """Yield the buckets that groups in C++ have noted since the last call.

        Yields
        ------
        tuple
            The description, the time of submission, and the time of the end.
        """
        backward = self._recorder.loop.buckets.backwards
        for model in tuple(self._models.values()):
            for submitted, finished, size in model.take():
                operation = model.operation(model.next_bucket(backward), size)
                yield operation, submitted, finished or perf_counter_ns()  # it finishes just now

    def moved(self, ddp: Any, before: Any) -> None:
        """Note that a model has another process group."""
        model = self._models.get(id(ddp.reducer))
        if model is not None:
            model.move(before, ddp.process_group)

    def _then_follow(self, original: Function) -> Function:
        """Wrap a method that changes a model's reducer or the group of the reducer."""

        def method(ddp: Any, *args: Any, **kwargs: Any) -> Any:
            self._assigned = []
            result = original(ddp, *args, **kwargs)
            self._follow(ddp)
            return result

        return method

    def _assign(self, original: Function) -> Function:
        def assign(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._assigned = result[0]
            return result

        return assign

    def _follow_model(self, ddp: Any) -> None:
        """Give the reducer of a model a forwarding group."""
        reducer = getattr(ddp, "reducer", None)
        group = getattr(ddp, "process_group", None)
        if isinstance(reducer, dist.Reducer) and group is not None:
            layout = [len(parameters) for parameters in reversed(self._assigned)]
            if not layout and id(reducer) not in self._models:
                layout = _layout_of(ddp)
            on_gpu = any(parameter.is_cuda for parameter in ddp.parameters())
            self._model(reducer).follow(group, layout, on_gpu=on_gpu)

    def _model(self, reducer: Any) -> _Model:
        """Return the record of a model, by its reducer."""
        key = id(reducer)
        if key not in self._models:
            used_numbers = {model.number for model in tuple(self._models.values())}
            number = next(number for number in itertools.count() if number not in used_numbers)
            self._models[key] = _Model(number, reducer, self._submitted)
            weakref.finalize(reducer, self._models.pop, key, None).atexit = False
        return self._models[key]

    def _register(self, original: Function) -> Function:
        def _register_comm_hook(reducer: Any, state: Any, hook: Hook) -> None:
            users = _UserHook(state, hook)
            original(reducer, users, self._call_hook)  # raises if there is a hook already
            self._remember(reducer, users)

        return _register_comm_hook

    def _remember_hook(self, reducer: Any, users: _UserHook) -> None:
        model = self._model(reducer)
        model.hook = users
        users.model = weakref.ref(model)

    def _register_builtin(self, original: Function) -> Function:
        def _register_builtin_comm_hook(reducer: Any, kind: Any) -> None:
            original(reducer, kind)  # raises if there is a hook already
            if model := self._models.get(id(reducer)):
                model.keeps_group = True

        return _register_builtin_comm_hook

    @postpones_interrupts
    def _call_hook(self, users: _UserHook, bucket: Any) -> Any:
        """Call the user's communication hook, and follow its future."""
        recorder = self._recorder
        if not recorder.on:
            recorder.used_while_off = True
            return users.hook(users.state, bucket)
        buffer = bucket.buffer()
        size = sent_bytes(buffer)
        handle = Bucket(recorder)
        began = perf_counter_ns()
        with self._calls.hook_of_ddp(handle.sent):
            future = users.hook(users.state, bucket)
            if (model := users.model()) is not None:
                self._note(model, buffer, size, handle, future, began, bucket.index())
        return future

    def _note_submitted(self, model: _Model, tensor: Any, size: int, work: Any, began: int) -> None:
        """Follow a bucket that a reducer has sent through its forwarding group."""
        if not self._recorder.on:
            self._recorder.used_while_off = True
        else:
            bucket = Bucket(self._recorder)
            index = model.next_bucket(self._recorder.loop.buckets.backwards)
            self._note(model, tensor, size, bucket, work.get_future(), began, index)

    def _note_bucket(
        self,
        model: _Model,
        tensor: Any,
        size: int,
        bucket: Bucket,
        future: Any,
        began: int,
        index: int,
    ) -> None:
        """Report a bucket when its future is done."""
        loop = self._recorder.loop
        if self._recorder.capturing:
            loop.note_unheard()
            return
        if isinstance(future, torch._C.Future):  # the base class, which PyTorch returns too
            bucket.follow(future, gpu=tensor.is_cuda)
        else:
            bucket.finished = perf_counter_ns()
        loop.bucket_submitted(partial(model.operation, index, size), began, bucket)


class _UserHook:
    """A communication hook of the user; the reducer keeps it until the reducer is freed."""

    def __init__(self, state: Any, hook: Hook) -> None:
        self.state = state
        self.hook = hook
        self.model: Callable[[], _Model | None] = lambda: None


class _Model:
    """A wrapped model: its number among existing models, and the group that its reducer uses.

    Parameters
    ----------
    submitted
        Called for each bucket with the model, and the bucket's tensor, bytes, `Work` and time.

    Attributes
    ----------
    hook
        The user's communication hook in Python, or None.
    keeps_group
        Whether a communication hook in C++ uses the forwarding group; it will always use it.
    """

    def __init__(self, number: int, reducer: Any, submitted: Callable[..., None]) -> None:
        self.number = number
        self.hook: _UserHook | None = None
        self.keeps_group = False
        self._reducer = weakref.ref(reducer)
        self._submitted = submitted
        self._groups: list[Any] = []
        """Forwarding groups; the list keeps the Python half of groups that C++ calls."""
        self._layout: list[int] = []
        """The number of parameters of each bucket."""
        self._operations: dict[tuple[int, int], Operation] = {}
        self._next = 0
        self._backward = -1

    def follow(self, group: Any, layout: list[int], *, on_gpu: bool) -> None:
        """Record the reducer's buckets through a group from now on."""
        reducer = self._reducer()
        if reducer is None:
            return
        if layout:
            self._layout = layout
            self._next = 0
        self._forward_to(group)
        if not self._groups or self._groups[-1].size() != group.size():
            native = None if on_gpu else native_group.load()
            if native is not None:
                forwarding = native.ForwardingGroup(group)
            else:
                forwarding = ForwardingGroup(group, self._report)
            self._groups = [*self._groups, forwarding] if self.keeps_group else [forwarding]
        self._record(on=True)
        reducer._update_process_group(self._groups[-1])

    def release(self) -> None:
        """Give the reducer the model's own group again."""
        reducer = self._reducer()
        if reducer is not None and self._groups:
            reducer._update_process_group(self._groups[-1].real)
            self._record(on=False)
            if not self.keeps_group:
                self._groups = []

    def move(self, before: Any, group: Any) -> None:
        """Use another group, also in the user's hook if its state is the earlier group."""
        if self.hook is not None and self.hook.state is before:
            self.hook.state = group
        self._forward_to(group)

    def take(self) -> list[tuple[int, int, int]]:
        """Return the submission, end (or 0) and bytes of each bucket that C++ groups have noted."""
        return [row for group in self._groups if hasattr(group, "take") for row in group.take()]

    def next_bucket(self, backward: int) -> int:
        """Return the index of the next bucket; a reducer sends its buckets in their order."""
        if backward != self._backward:  # an earlier backward may have failed halfway
            self._backward = backward
            self._next = 0
            for group in self._groups:
                if layout := group.take_layout():
                    self._layout = layout
                    self._operations.clear()
        index = self._next
        self._next = index + 1 if index + 1 < len(self._layout) else 0
        return index

    def operation(self, index: int, size: int) -> Operation:
        """Return the description of a bucket."""
        operation = self._operations.get((index, size))
        if operation is None:
            model = f"model {self.number}, " if self.number else ""
            tensors = self._layout[index] if index < len(self._layout) else 0
            ranks = self._groups[-1].real.size() if self._groups else 0
            name = f"{model}bucket {index}"
            operation = Operation(name, size, tensors, "allreduce", 0, ranks, "ddp")
            if len(self._operations) < _MAX_OPERATIONS:  # bytes of sparse gradients vary
                self._operations[index, size] = operation
        return operation

    def _record(self, *, on: bool) -> None:
        for group in self._groups:
            if hasattr(group, "take"):
                group.recording = on

    def _report(self, tensor: Any, size: int, work: Any, began: int) -> None:
        self._submitted(self, tensor, size, work, began)

    def _forward_to(self, group: Any) -> None:
        self._operations.clear()
        for forwarding in self._groups:
            forwarding.real = group


def _layout_of(ddp: Any) -> list[int]:
    """Return the number of parameters of each bucket of an earlier model; empty if unknown."""
    logged = ddp._get_ddp_logging_data()
    if rebuilt := logged.get("rebuilt_per_bucket_param_indices"):
        return [len(bucket.split()) for bucket in rebuilt.split(",")]
    if "," in str(logged.get("bucket_sizes", ",")):
        return []
    return [sum(parameter.requires_grad for parameter in ddp.parameters())]
