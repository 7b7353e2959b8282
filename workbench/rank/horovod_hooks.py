"""Where Horovod tells which gradients it reduces and when it waits for them.

`DistributedOptimizer` calls names that were imported into
``horovod.torch.optimizer``; they are wrapped there, where tensors are already
compressed. Its classes copy their methods when an optimizer is made, so the
hooks must be in place before that.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import horovod.torch
import horovod.torch.functions
import horovod.torch.mpi_ops as mpi_ops
import horovod.torch.optimizer as distributed
import horovod.torch.sync_batch_norm

from workbench.rank.collectives import Gradient
from workbench.rank.patches import Patches
from workbench.rank.recorder import Recorder

Function = Callable[..., Any]

_OWNERS = (mpi_ops, horovod.torch, horovod.torch.functions, horovod.torch.sync_batch_norm)
"""Modules that hold `synchronize` under a name of their own."""


poll: Callable[[int], int] = mpi_ops.mpi_lib.horovod_torch_poll
"""Tells whether the collective behind a handle is done; ValueError where it was cleared."""


class HorovodHooks:
    """Feeds a `Recorder` with what Horovod's optimizers do in this process.

    Parameters
    ----------
    recorder
        Gets the events.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._patches = Patches()
        self._gradients: dict[str | None, Gradient] = {}

    def install(self) -> None:
        """Start to listen; optimizers made before are heard only in part."""
        replace = self._patches.replace
        replace(distributed, "allreduce_async_", self._submit_one)
        replace(distributed, "grouped_allreduce_async_", self._submit_group)
        replace(distributed, "sparse_allreduce_async", self._submit_sparse)
        replace(distributed, "synchronize", self._wait)
        replace(distributed._DistributedOptimizer, "synchronize", self._expose)
        for owner in _OWNERS:
            replace(owner, "synchronize", self._wait_foreign)

    def remove(self) -> None:
        """Stop to listen and put everything back."""
        self._patches.undo()

    def _submit_one(self, original: Function) -> Function:
        submitted, gradient = self._recorder.submitted, self._gradient
        known = self._gradients.get

        def allreduce_async_(tensor: Any, *args: Any, **kwargs: Any) -> int:
            began = perf_counter_ns()
            handle: int = original(tensor, *args, **kwargs)
            name, size = kwargs.get("name"), tensor.nbytes
            one = known(name)
            if one is None or one.size != size:
                one = gradient(name, size, 1)
            submitted(one, handle, began)
            return handle

        return allreduce_async_

    def _submit_group(self, original: Function) -> Function:
        submitted, gradient = self._recorder.submitted, self._gradient

        def grouped_allreduce_async_(tensors: Any, *args: Any, **kwargs: Any) -> int:
            began = perf_counter_ns()
            handle: int = original(tensors, *args, **kwargs)
            size = sum(tensor.nbytes for tensor in tensors)
            submitted(gradient(kwargs.get("name"), size, len(tensors)), handle, began)
            return handle

        return grouped_allreduce_async_

    def _submit_sparse(self, original: Function) -> Function:
        submitted, gradient = self._recorder.submitted, self._gradient

        def sparse_allreduce_async(tensor: Any, *args: Any, **kwargs: Any) -> Function:
            began = perf_counter_ns()
            finish = original(tensor, *args, **kwargs)
            size = tensor._indices().nbytes + tensor._values().nbytes
            watched = self._wait(lambda _: finish())

            def wait() -> Any:
                return watched(wait)

            submitted(gradient(kwargs.get("name"), size, 1), wait, began)
            return wait

        return sparse_allreduce_async

    def _gradient(self, name: str | None, size: int, tensors: int) -> Gradient:
        """Return the same object for the same gradient: the packer compares them by identity."""
        known = self._gradients.get(name)
        if known is None or known.size != size or known.tensors != tensors:
            known = self._gradients[name] = Gradient(name or "unnamed", size, tensors)
        return known

    def _wait(self, original: Function) -> Function:
        """Return `original`, a wait for the handle that it is given, as a wait that is told."""
        recorder, done = self._recorder, self._recorder.done

        def synchronize(handle: int) -> Any:
            if done(handle):
                return original(handle)
            recorder.wait_begins(handle)
            try:
                return original(handle)
            finally:
                recorder.wait_ends(handle)

        return synchronize

    def _expose(self, original: Function) -> Function:
        recorder = self._recorder

        def synchronize(optimizer: Any) -> None:
            recorder.exposed_begins()
            try:
                original(optimizer)
            finally:
                recorder.exposed_ends()

        return synchronize

    def _wait_foreign(self, original: Function) -> Function:
        """Collectives that the cell calls itself: only known as where the rank is blocked."""
        recorder, watched = self._recorder, self._wait(original)

        def synchronize(handle: int) -> Any:
            if recorder.blocked is not None:  # within a sparse gradient's wait
                return original(handle)
            return watched(handle)

        return synchronize
