"""Where Horovod tells which collectives it runs and when it waits for them.

Every public function of ``horovod.torch`` that starts a collective, those that
its optimizers call included, goes through one of the few private functions of
``mpi_ops`` that are wrapped here; tensors are compressed by then.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import horovod.torch
import horovod.torch.functions
import horovod.torch.mpi_ops as mpi_ops
import horovod.torch.optimizer as distributed
import horovod.torch.sync_batch_norm
from horovod.common.exceptions import HorovodInternalError

from workbench.rank.collectives import UNNAMED, Operation
from workbench.rank.patches import Patches
from workbench.rank.recorder import Recorder

Function = Callable[..., Any]

_STARTERS = {
    "_allreduce_async": "allreduce",
    "_grouped_allreduce_async": "allreduce",
    "_allgather_async": "allgather",
    "_grouped_allgather_async": "allgather",
    "_broadcast_async": "broadcast",
    "_alltoall_async": "alltoall",
    "_reducescatter_async": "reducescatter",
    "_grouped_reducescatter_async": "reducescatter",
}
"""Functions of `mpi_ops` that start a collective, and its kind."""
_OWNERS = (
    mpi_ops,
    distributed,
    horovod.torch,
    horovod.torch.functions,
    horovod.torch.sync_batch_norm,
)
"""Modules that hold `synchronize` under a name of their own."""
_SPARSE = "sparse_allreduce_async"
_NO_SUCH_SET = "Process set provided does not exist"
_KNOWN_LIMIT = 1 << 14
"""A cell may give each of its collectives another name."""


_poll: Callable[[int], int] = mpi_ops.mpi_lib.horovod_torch_poll


def poll(handle: Any) -> int:
    """Tell whether a collective is done; ValueError where Horovod has cleared its handle."""
    return _poll(handle) if handle.__class__ is int else handle.done()


class HorovodHooks:
    """Feeds a `Recorder` with what Horovod does in this process.

    Parameters
    ----------
    recorder
        Gets the events.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._patches = Patches()
        self._known: dict[str, dict[Any, Operation]] = {name: {} for name in _STARTERS}

    def install(self) -> None:
        """Start to listen; optimizers made before are heard only in part."""
        replace = self._patches.replace
        for name, kind in _STARTERS.items():
            start = self._starter(kind, self._known[name], grouped="grouped" in name)
            replace(mpi_ops, name, start)
        for owner in _OWNERS:
            replace(owner, "synchronize", self._wait)
        for owner in (mpi_ops, horovod.torch):
            replace(owner, "barrier", self._barrier)
            replace(owner, "join", self._join)
        # its classes copy their methods when an optimizer is made
        replace(distributed._DistributedOptimizer, "synchronize", self._expose)

    def remove(self) -> None:
        """Stop to listen and put everything back."""
        self._patches.undo()

    def begin_cell(self) -> None:
        """Look at every collective anew: the ring may be another."""
        for known in self._known.values():
            known.clear()

    def _starter(
        self, kind: str, known: dict[Any, Operation], *, grouped: bool
    ) -> Callable[[Function], Function]:
        recorder, find = self._recorder, known.get
        submitted = recorder.submitted

        def make(original: Function) -> Function:
            places = list(inspect.signature(original).parameters)
            at, among = places.index("name"), places.index("process_set")

            def start(*args: Any) -> int:
                began = perf_counter_ns()
                try:
                    handle: int = original(*args)
                except ValueError as error:
                    raise _end_of_ring(error, args[among]) from None
                size = sum(tensor.nbytes for tensor in args[0]) if grouped else args[0].nbytes
                operation = find(args[at])
                if (
                    operation is None
                    or operation.size != size
                    or operation.process_set != args[among].process_set_id
                ):
                    _note_members(recorder, args[among])
                    tensors = len(args[0]) if grouped else 1
                    adasum = kind == "allreduce" and args[3] == mpi_ops.Adasum
                    if len(known) >= _KNOWN_LIMIT:
                        known.clear()
                    operation = known[args[at]] = _meet(
                        args[at], size, tensors, "adasum" if adasum else kind, args[among]
                    )
                submitted(operation, handle, began)
                return handle

            return start

        return make

    def _wait(self, original: Function) -> Function:
        """Return `original`, a wait for the handle that it is given, as a wait that is told."""
        recorder, done = self._recorder, self._recorder.done

        def synchronize(handle: int) -> Any:
            if done(handle):
                return original(handle)
            recorder.wait(handle)
            try:
                return original(handle)
            finally:
                recorder.waited(handle)

        return synchronize

    def _barrier(self, original: Function) -> Function:
        """Return ``hvd.barrier`` as a wait that the kernel can be told of."""
        recorder = self._recorder

        def barrier(process_set: Any = mpi_ops.global_process_set) -> None:
            number = getattr(process_set, "process_set_id", 0) or 0  # Horovod refuses what is none
            _note_members(recorder, process_set)
            with recorder.waits_in("barrier()", number):
                original(process_set)

        return barrier

    def _join(self, original: Function) -> Function:
        """Return ``hvd.join`` as a wait that the kernel can be told of."""
        recorder = self._recorder

        def join(device: int = -1) -> int:
            with recorder.waits_in("join()"):
                last: int = original(device)
                return last

        return join

    def _expose(self, original: Function) -> Function:
        recorder = self._recorder

        def synchronize(optimizer: Any) -> None:
            recorder.exposed_begins()
            try:
                original(optimizer)
            finally:
                recorder.exposed_ends()

        return synchronize


def _meet(name: str | None, size: int, tensors: int, kind: str, process_set: Any) -> Operation:
    by, sparse = _origin()
    if sparse:  # two allgathers, of which the values are the tensor
        kind, tensors = "sparse allreduce", int(str(name).endswith(".values"))
    label = name or f"{kind}{UNNAMED}"
    number = process_set.process_set_id
    # Horovod's own count waits for its thread, which may wait for another rank
    ranks = len(process_set.ranks) if number and process_set.ranks else process_set.size()
    return Operation(label, size, tensors, kind, number, ranks, by)


def _note_members(recorder: Recorder, process_set: Any) -> None:
    """Let the kernel know which ranks a process set has, where it is not the one of all."""
    number = getattr(process_set, "process_set_id", None)
    if number and process_set.ranks:
        recorder.members[number] = tuple(process_set.ranks)


def _end_of_ring(error: ValueError, process_set: Any) -> Exception:
    """Return what Horovod raises where a ring breaks, if this is because its sets are gone."""
    if _NO_SUCH_SET not in str(error) or not process_set.process_set_id:
        return error
    ended: Exception = HorovodInternalError(
        f"process set of ranks {process_set.ranks}: its ring has ended."
    )
    return ended


def _origin() -> tuple[str, bool]:
    """Return who asked for the collective that is met, and whether for a sparse tensor."""
    frame, sparse = sys._getframe(3), False
    while frame.f_back is not None and frame.f_code.co_filename == mpi_ops.__file__:
        sparse = sparse or frame.f_code.co_name == _SPARSE
        frame = frame.f_back
    return "optimizer" if frame.f_code.co_filename == distributed.__file__ else "cell", sparse
