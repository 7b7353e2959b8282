"""Where PyTorch's DistributedDataParallel tells which buckets it reduces, and when they are done.

A DDP model has room for one communication hook. Ours stands there and calls the
user's, whenever that is registered, or else what DDP does without one.

Other communication by torch.distributed (a call in the script, FSDP, ZeRO) is
not timed; that there was some is noted, so that it is not taken for none.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workbench.rank.collectives import Operation
from workbench.rank.patches import Patches
from workbench.rank.recorder import Recorder

Hook = Callable[[Any, Any], Any]

_SENDERS = {
    "all_reduce": 0,
    "broadcast": 0,
    "all_gather": 1,
    "all_gather_into_tensor": 1,
    "all_to_all_single": 1,
}
"""Functions by which a user's hook may send a bucket, and which argument goes on the wire."""

_COLLECTIVES = (
    "_allgather_base", "_reduce_scatter_base", "all_gather_single", "all_gather_single_coalesced",
    "all_to_all_single", "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced",
    "allreduce", "allreduce_coalesced", "alltoall", "alltoall_base", "broadcast", "gather", "recv",
    "recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "scatter", "send",
)  # fmt: skip
"""Methods of a process group, in any version of PyTorch, that every Python caller goes through."""
_FUNCTIONAL = (
    "all_gather_tensor", "all_gather_tensor_autograd", "all_gather_into_tensor_coalesced",
    "all_reduce", "all_reduce_coalesced", "all_to_all_single", "all_to_all_single_autograd",
    "broadcast", "permute_tensor", "reduce_scatter_tensor", "reduce_scatter_tensor_autograd",
    "reduce_scatter_tensor_coalesced",
)  # fmt: skip
"""Functions that go past the process group's methods; tensor parallelism uses them."""
_FUNCTIONAL_MODULE = "torch.distributed._functional_collectives"


class Bucket:
    """A bucket under way: the handle of its collective."""

    def __init__(self) -> None:
        self.finished = 0
        self._event: Any = None

    def done(self) -> bool:
        """Tell whether it is reduced; does not wait."""
        if self._event is not None and not self.finished and self._event.query():
            self.finished = perf_counter_ns()
        return bool(self.finished)

    def follow(self, future: Any, *, gpu: bool) -> None:
        """Learn of the end from the hook's future."""
        future.add_done_callback(self._mark if gpu else self._finish)

    def _finish(self, _: Any) -> None:
        self.finished = perf_counter_ns()

    def _mark(self, _: Any) -> None:
        # the callback runs ahead, on a stream that waits for the reduction
        event = torch.cuda.Event()
        event.record()
        self._event = event


class DDPHooks:
    """Feeds a `Recorder` with what DistributedDataParallel does in this process.

    Parameters
    ----------
    recorder
        Gets the events.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._patches = Patches()
        self._models: dict[int, _Model] = {}
        self._sent: list[int] | None = None
        self._functional = False

    def install(self) -> None:
        """Start to listen; models wrapped before are not heard."""
        if not dist.is_available():
            return
        replace = self._patches.replace
        replace(DistributedDataParallel, "__init__", self._new_model)
        replace(dist, "_register_comm_hook", self._register)
        replace(dist, "_register_builtin_comm_hook", self._register_builtin)
        replace(dist, "init_process_group", self._init_process_group)
        for name, place in _SENDERS.items():
            replace(dist, name, self._count(place))
        for name in _COLLECTIVES:
            if hasattr(dist.ProcessGroup, name):
                replace(dist.ProcessGroup, name, self._note)

    def remove(self) -> None:
        """Stop to listen and put everything back; models keep a hook that does nothing more."""
        self._patches.undo()
        self._functional = False

    def begin_cell(self) -> None:
        """Listen to what has been imported since; models keep their hooks between cells."""
        module = sys.modules.get(_FUNCTIONAL_MODULE)
        if module is None or self._functional:
            return
        self._functional = True
        for name in _FUNCTIONAL:
            if hasattr(module, name):
                self._patches.replace(module, name, self._note)

    def _init_process_group(self, original: Callable[..., None]) -> Callable[..., None]:
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            self.begin_cell()

        return init_process_group

    def _note(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a collective that nothing times as one that is noted."""

        def collective(*args: Any, **kwargs: Any) -> Any:
            if self._sent is None:
                self._recorder.unheard()
            return original(*args, **kwargs)

        return collective

    def _new_model(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(ddp: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(ddp, *args, **kwargs)
            key = id(ddp.reducer)
            if key not in self._models:  # else __init__ has registered one itself
                from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
                    allreduce_hook,
                )

                dist._register_comm_hook(ddp.reducer, ddp.process_group, allreduce_hook)
                self._models[key].replaceable = True
            self._models[key].group = ddp.process_group
            weakref.finalize(ddp, self._models.pop, key, None)

        return __init__

    def _register(self, original: Callable[..., None]) -> Callable[..., None]:
        def _register_comm_hook(reducer: Any, state: Any, hook: Hook) -> None:
            known = self._models.get(id(reducer))
            if known is not None and known.replaceable:
                known.state, known.hook, known.replaceable = state, hook, False
                return
            taken = {model.number for model in self._models.values()}
            free = next(number for number in itertools.count() if number not in taken)
            model = _Model(free, state, hook)
            original(reducer, model, self._reduce)  # raises where there is one already
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

    def _count(self, place: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def send(*args: Any, **kwargs: Any) -> Any:
                if self._sent is not None and len(args) > place:
                    self._sent.append(args[place].nbytes)
                return original(*args, **kwargs)

            return send

        return make

    def _reduce(self, model: _Model, bucket: Any) -> Any:
        began = perf_counter_ns()
        handle, self._sent = Bucket(), []
        try:
            future = model.hook(model.state, bucket)
            size = sum(self._sent)
            buffer = bucket.buffer()
            if isinstance(future, torch._C.Future):  # also the base class, which PyTorch returns
                handle.follow(future, gpu=buffer.is_cuda)
            else:
                handle.finished = perf_counter_ns()
            operation = model.operation(bucket, size or buffer.nbytes)
            self._recorder.bucket_submitted(operation, handle, began, last=bucket.is_last())
        finally:
            self._sent = None
        return future


class _Model:
    """A wrapped model: the hook that reduces its buckets, and its number among those that live."""

    def __init__(self, number: int, state: Any, hook: Hook) -> None:
        self.number = number
        self._operations: dict[tuple[int, int], Operation] = {}
        self.state = state
        self.hook = hook
        self.group: Any = None
        self.replaceable = False

    def operation(self, bucket: Any, size: int) -> Operation:
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
