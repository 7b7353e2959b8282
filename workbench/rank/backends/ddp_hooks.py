"""Records the buckets that PyTorch's DistributedDataParallel reduces, and their completion.

The reducer of a DDP model sends its buckets through a process group. This module gives the reducer
a group that notes each bucket and forwards it to the model's own group. DDP's arithmetic does not
change. Recording with a communication hook would change it: such a hook divides the gradients
itself, which changes their last bits, and ignores ``join(divide_by_initial_world_size=False)``.

A user's communication hook in Python sends the buckets itself. The hook is called unchanged, and
the end of the future that it returns is recorded.

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
        """Replaced functions that register communication hooks. They stay while a model exists."""
        self._assigned: list[list[int]] = []
        """Indices of the parameters of each bucket of the latest wrapped model; the last bucket
        is first."""
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
        """Stop recording and restore the functions that were replaced.

        Communication hooks stay registered: DDP offers no way to replace them.
        """
        super().remove()
        for model in tuple(self._models.values()):  # a finalizer may remove a model at any time
            model.restore_group()
        if not self._models:
            self._registration.remove()

    def take_buckets(self) -> Iterator[tuple[Operation, int, int]]:
        """Yield the buckets that groups in C++ have noted since the last call.

        Yields
        ------
        tuple
            The description, the time of submission, and the time of the end. Both times are as
            ``time.perf_counter_ns()``.
        """
        backward = self._recorder.loop.buckets.backwards
        for model in tuple(self._models.values()):
            for submitted, finished, size in model.take():
                operation = model.operation(model.next_bucket(backward), size)
                # without an end, the bucket is about to finish: now is close enough
                yield operation, submitted, finished or perf_counter_ns()

    def moved(self, ddp: Any, before: Any) -> None:
        """Forward the buckets of a model to its new process group.

        Parameters
        ----------
        ddp
            The DistributedDataParallel model.
        before
            The earlier process group of the model.
        """
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
            parameters_per_bucket = [len(indices) for indices in reversed(self._assigned)]
            if not parameters_per_bucket and id(reducer) not in self._models:
                parameters_per_bucket = _parameters_per_bucket(ddp)
            on_gpu = any(parameter.is_cuda for parameter in ddp.parameters())
            self._model(reducer).follow(group, parameters_per_bucket, on_gpu=on_gpu)

    def _model(self, reducer: Any) -> _Model:
        """Return the record of the model with this reducer; create the record if it is missing."""
        key = id(reducer)
        if key not in self._models:
            used_numbers = {model.number for model in tuple(self._models.values())}
            number = next(number for number in itertools.count() if number not in used_numbers)
            self._models[key] = _Model(number, reducer, self._submitted)
            weakref.finalize(reducer, self._models.pop, key, None).atexit = False
        return self._models[key]

    def _register(self, original: Function) -> Function:
        def _register_comm_hook(reducer: Any, state: Any, hook: Hook) -> None:
            user_hook = _UserHook(state, hook)
            original(reducer, user_hook, self._call_hook)  # raises if there is a hook already
            self._remember(reducer, user_hook)

        return _register_comm_hook

    def _remember_hook(self, reducer: Any, user_hook: _UserHook) -> None:
        model = self._model(reducer)
        model.hook = user_hook
        user_hook.model = weakref.ref(model)

    def _register_builtin(self, original: Function) -> Function:
        def _register_builtin_comm_hook(reducer: Any, kind: Any) -> None:
            original(reducer, kind)  # raises if there is a hook already
            if model := self._models.get(id(reducer)):
                model.keeps_group = True

        return _register_builtin_comm_hook

    @postpones_interrupts
    def _call_hook(self, user_hook: _UserHook, bucket: Any) -> Any:
        """Call the user's communication hook, and record when the returned future is done."""
        recorder = self._recorder
        if not recorder.on:
            recorder.used_while_off = True
            return user_hook.hook(user_hook.state, bucket)
        buffer = bucket.buffer()
        size = sent_bytes(buffer)
        handle = Bucket(recorder)
        began = perf_counter_ns()
        with self._calls.hook_of_ddp(handle.sent):
            future = user_hook.hook(user_hook.state, bucket)
            if (model := user_hook.model()) is not None:
                self._note(model, buffer, size, handle, future, began, bucket.index())
        return future

    def _note_submitted(self, model: _Model, tensor: Any, size: int, work: Any, began: int) -> None:
        """Record a bucket that a reducer has sent through its forwarding group, and its end."""
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
        """Report a bucket to the training loop, and note when its future is done.

        Parameters
        ----------
        tensor, size
            The tensor that is reduced, and the bytes that this rank sends for it.
        bucket
            Receives the time at which the future is done.
        began
            Time of submission, as ``time.perf_counter_ns()``.
        index
            Index of the bucket in the model.
        """
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
    """A communication hook of the user; the reducer refers to it until the reducer is freed."""

    def __init__(self, state: Any, hook: Hook) -> None:
        self.state = state
        self.hook = hook
        self.model: Callable[[], _Model | None] = lambda: None


class _Model:
    """A wrapped model: its number among existing models, and the group that its reducer uses.

    Parameters
    ----------
    submitted
        Called for each bucket with the model, and the bucket's tensor, bytes, `Work` and time of
        submission, as ``time.perf_counter_ns()``.

    Attributes
    ----------
    hook
        The user's communication hook in Python, or None.
    keeps_group
        Whether a communication hook in C++ uses the forwarding group. Such a hook cannot be given
        another group, so the forwarding group must be kept.
    """

    def __init__(self, number: int, reducer: Any, submitted: Callable[..., None]) -> None:
        self.number = number
        self.hook: _UserHook | None = None
        self.keeps_group = False
        self._reducer = weakref.ref(reducer)
        self._submitted = submitted
        self._groups: list[Any] = []
        """Forwarding groups; the list keeps the Python half of groups that C++ calls."""
        self._parameters_per_bucket: list[int] = []
        self._operations: dict[tuple[int, int], Operation] = {}
        """Descriptions of buckets, by index and bytes."""
        self._next_index = 0
        self._backward = -1
        """Number of the backward that sent the latest bucket."""

    def follow(self, group: Any, parameters_per_bucket: list[int], *, on_gpu: bool) -> None:
        """Make the reducer send its buckets through a group that records them.

        The recording group forwards the buckets to `group`.

        Parameters
        ----------
        parameters_per_bucket
            Number of parameters of each bucket; empty if it has not changed or is unknown.
        on_gpu
            Whether the model has parameters on a GPU.
        """
        reducer = self._reducer()
        if reducer is None:
            return
        if parameters_per_bucket:
            self._parameters_per_bucket = parameters_per_bucket
            self._next_index = 0
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

    def restore_group(self) -> None:
        """Make the reducer use the model's original group."""
        reducer = self._reducer()
        if reducer is not None and self._groups:
            reducer._update_process_group(self._groups[-1].real)
            self._record(on=False)
            if not self.keeps_group:
                self._groups = []

    def move(self, before: Any, group: Any) -> None:
        """Forward to another group, and replace the earlier group as the state of the user's hook.

        Parameters
        ----------
        before, group
            The model's earlier group, and its new group.
        """
        if self.hook is not None and self.hook.state is before:
            self.hook.state = group
        self._forward_to(group)

    def take(self) -> list[tuple[int, int, int]]:
        """Return and remove the buckets that groups in C++ have noted.

        Returns
        -------
        list
            The times of submission and end, as ``time.perf_counter_ns()``, and the bytes of each
            bucket. The end is 0 if it is not known yet.
        """
        return [row for group in self._groups if hasattr(group, "take") for row in group.take()]

    def next_bucket(self, backward: int) -> int:
        """Return the index of the next bucket; a reducer sends its buckets in their order."""
        if backward != self._backward:  # an earlier backward may have failed halfway
            self._backward = backward
            self._next_index = 0
            for group in self._groups:
                if parameters_per_bucket := group.take_layout():
                    self._parameters_per_bucket = parameters_per_bucket
                    self._operations.clear()
        index = self._next_index
        self._next_index = index + 1 if index + 1 < len(self._parameters_per_bucket) else 0
        return index

    def operation(self, index: int, size: int) -> Operation:
        """Return the description of the bucket with this index and this number of bytes."""
        operation = self._operations.get((index, size))
        if operation is None:
            model = f"model {self.number}, " if self.number else ""
            counts = self._parameters_per_bucket
            tensors = counts[index] if index < len(counts) else 0
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


def _parameters_per_bucket(ddp: Any) -> list[int]:
    """Return the number of parameters of each bucket of an earlier model; empty if unknown."""
    logged = ddp._get_ddp_logging_data()
    if rebuilt := logged.get("rebuilt_per_bucket_param_indices"):
        return [len(bucket.split()) for bucket in rebuilt.split(",")]
    if "," in str(logged.get("bucket_sizes", ",")):  # several buckets, or no information
        return []
    return [sum(parameter.requires_grad for parameter in ddp.parameters())]
