"""Records a rank's waits for Horovod's collectives, and the collectives of optimizers."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import horovod.torch
import horovod.torch.functions
import horovod.torch.mpi_ops as mpi_ops
import horovod.torch.optimizer as distributed
import horovod.torch.sync_batch_norm

from workbench.rank.backends import optimizers
from workbench.rank.backends.horovod_tap import Tap
from workbench.rank.recording.patches import Function, Hooks
from workbench.rank.recording.recorder import Recorder
from workbench.rank.recording.waits import LIMIT, Blocked, wait_with_pauses

_OWNERS = (
    mpi_ops,
    distributed,
    horovod.torch,
    horovod.torch.functions,
    horovod.torch.sync_batch_norm,
)
"""Modules that have imported `synchronize`."""

poll = mpi_ops.mpi_lib.horovod_torch_poll
"""Return whether a collective is done; raise ValueError if Horovod has cleared its handle."""


class HorovodHooks(Hooks):
    """Reports Horovod's events in this process to a `Recorder`.

    Parameters
    ----------
    tap
        Records the collectives; None if `workbench build-horovod` has not built Horovod.
    """

    def __init__(self, recorder: Recorder, tap: Tap | None) -> None:
        super().__init__(recorder)
        self._tap = tap

    def install(self) -> None:
        """Start recording."""
        if self._tap is not None:
            self._tap.optimizer_names.update(optimizers.parameter_names())
            self._tap.record()
        replace = self.replace
        for owner in _OWNERS:
            replace(owner, "synchronize", self._wait)
        for owner in (mpi_ops, horovod.torch):
            replace(owner, "barrier", self._barrier)
            replace(owner, "join", self._join)
        with optimizers.copied():
            replace(distributed._DistributedOptimizer, "synchronize", self._expose)
            for optimizer in (
                distributed._DistributedOptimizer,
                distributed._DistributedAdasumOptimizer,
            ):
                replace(optimizer, "_make_hook", self._note_name)

    def remove(self) -> None:
        """Stop recording."""
        with optimizers.copied():
            super().remove()
        if self._tap is not None:
            self._tap.record(0)

    def _wait(self, original: Function) -> Function:
        """Return a function that records the wait for a handle."""
        recorder = self._recorder

        def synchronize(handle: int) -> Any:
            if handle not in mpi_ops._handle_map:  # nothing to wait for
                return original(handle)
            waits = recorder.waits
            # this function runs once per gradient, so it avoids all unnecessary calls
            try:
                done = poll(handle)
            except ValueError:  # another thread has cleared the handle
                done = True
            if done:
                result = original(handle)
            else:
                with waits.wait(handle):
                    result = original(handle)
            handles = waits.handles
            handles.append(handle)
            if len(handles) >= LIMIT:
                waits.discard()
            return result

        return synchronize

    def _barrier(self, original: Function) -> Function:
        """Return an ``hvd.barrier`` that records its wait."""
        recorder = self._recorder

        def barrier(process_set: Any = mpi_ops.global_process_set) -> None:
            number = getattr(process_set, "process_set_id", 0) or 0  # Horovod rejects other objects
            with recorder.waits.blocking_call("barrier()", number):
                original(process_set)

        return barrier

    def _join(self, original: Function) -> Function:
        """Return an ``hvd.join`` that records its wait."""
        recorder = self._recorder

        def join(device: int = -1) -> int:
            with recorder.waits.blocking_call("join()"):
                last: int = original(device)
                return last

        return join

    def _expose(self, original: Function) -> Function:
        """Return an optimizer's ``synchronize`` that records its time as an exposed wait."""
        recorder = self._recorder

        def synchronize(optimizer: Any) -> None:
            waits = recorder.waits
            if optimizer._handles:
                recorder.loop.reduces_gradients()
                if self._tap is None:
                    recorder.loop.note_unheard()
            waits.exposed_begins()
            try:
                original(optimizer)
            finally:
                waits.exposed_ends()

        return synchronize

    def _note_name(self, original: Function) -> Function:
        """Return a function that notes the name of a parameter that an optimizer reduces."""

        def make_hook(optimizer: Any, parameter: Any) -> Function:
            if self._tap is not None:
                self._tap.optimizer_names.add(optimizer._parameter_names.get(parameter))
            hook: Function = original(optimizer, parameter)
            return hook

        return make_hook


class PausingWaits(Hooks):
    """Makes waits for Horovod's collectives pause as with recording, without recording.

    Horovod's own wait polls without a pause, and takes a core that its threads may need. A cell
    that waits in that way cannot be compared with a recorded cell.
    """

    def install(self) -> None:
        """Start pausing."""
        for owner in _OWNERS:
            self.replace(owner, "synchronize", self._wait)

    def _wait(self, original: Function) -> Function:
        recorder = self._recorder

        def synchronize(handle: int) -> Any:
            waits = recorder.waits
            if handle in mpi_ops._handle_map and not waits.done(handle):
                waits.blocked = Blocked("", perf_counter_ns(), handle=handle)
                try:
                    wait_with_pauses(lambda: waits.done(handle))
                finally:
                    waits.blocked = None
            return original(handle)

        return synchronize
