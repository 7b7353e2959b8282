"""Records the collectives of torch.distributed that a cell calls directly or through a library.

Every Python caller uses methods of a process group, which return a `Work`. These methods and the
waits for a `Work` are replaced. `torch_operators` records functional collectives, and `ddp_hooks`
the buckets of DistributedDataParallel, which are sent from C++.

With Gloo, a collective has finished when its future is done. Sends, receives, reduce_scatter and
functional collectives have no future. Their recorded end is the time at which the cell's wait
returns, which is an upper bound.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist

from workbench.rank.backends.torch_calls import TorchCalls
from workbench.rank.backends.torch_operations import BUFFERS, MESSAGES, METHODS, Named, measure
from workbench.rank.recording.patches import Function, Hooks
from workbench.rank.recording.phase import Phase
from workbench.rank.recording.recorder import Recorder
from workbench.rank.recording.waits import Waits


class TorchCollectives(Hooks):
    """Reports collectives of torch.distributed, and waits for them, to a `Recorder`."""

    def __init__(self, recorder: Recorder, calls: TorchCalls) -> None:
        super().__init__(recorder)
        self._calls = calls
        self._waits_for: tuple[int, Waits] | None = None
        """The ``id`` of the Work that an exposed wait has begun for, and the waits of its cell."""

    def install(self) -> None:
        """Start recording."""
        if not dist.is_available():
            return
        replace = self.replace
        methods = {name: self._method(named) for name, named in METHODS.items()} | {
            "_start_coalescing": self._start_coalescing,
            "_end_coalescing": self._end_coalescing,
            "monitored_barrier": self._calls.exposed,
        }
        for name, make in methods.items():
            if hasattr(dist.ProcessGroup, name):
                replace(dist.ProcessGroup, name, make)
        replace(dist.Work, "wait", self._wait)
        replace(torch._C.Future, "wait", self._wait_for_future)
        replace(dist, "_broadcast_coalesced", self._broadcast_coalesced)
        if dist.rpc.is_available():
            for name in ("rpc_sync", "rpc_async", "remote"):
                replace(dist.rpc, name, self._unheard)

    def _method(self, named: Named) -> Callable[[Function], Function]:
        def make(original: Function) -> Function:
            def collective(group: Any, *args: Any, **kwargs: Any) -> Any:
                thread = threading.get_ident()
                arguments = (*args, *kwargs.values()) if kwargs else args
                sent = arguments[named.sent] if len(arguments) > named.sent else ()
                if self._calls.is_of_bucket(thread, sent):
                    return original(group, *args, **kwargs)
                # measured before the call: a sparse result has the rows of all ranks
                measured = measure(sent)
                began = perf_counter_ns()
                waits = not getattr(args[-1], "asyncOp", True) if args else False
                trains = self._calls.trains(thread)
                if trains:
                    self._end_wait()  # the caller has not waited for an earlier Work
                if waits and trains:
                    work = self._submit_and_wait(original, group, args, kwargs)
                else:
                    work = original(group, *args, **kwargs)
                peer = arguments[1] if named.kind in MESSAGES and len(arguments) > 2 else -1
                self._calls.submitted(
                    named, group, sent, measured, work, began, thread, waits=waits, peer=peer
                )
                return work

            return collective

        return make

    def _submit_and_wait(
        self, original: Function, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Submit a collective in an exposed wait that ends after the caller's wait for the Work."""
        waits = self._recorder.waits
        work = None
        waits.exposed_begins()
        try:
            work = original(group, *args, **kwargs)
        finally:
            if work is None:
                waits.exposed_ends()
            else:
                self._waits_for = id(work), waits
        return work

    def _end_wait(self) -> None:
        if self._waits_for is not None:
            _, waits = self._waits_for
            self._waits_for = None
            waits.exposed_ends()

    def _broadcast_coalesced(self, original: Function) -> Function:
        """Return a replacement of the blocking function with which DDP sends its buffers."""

        def broadcast(group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            began = perf_counter_ns()
            thread = threading.get_ident()
            result = self._calls.exposed(original)(group, tensors, *args, **kwargs)
            self._calls.call(BUFFERS, group, measure(tensors), began, thread).finish()
            return result

        return broadcast

    def _wait(self, original: Function) -> Function:
        exposed = self._calls.exposed(original)
        for_message = self._calls.exposed(original, Phase.MESSAGES)

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            key = id(work)
            waits_for = self._waits_for
            call = self._calls.pending.pop(key, None)
            if waits_for is not None and waits_for[0] == key:
                try:
                    result = original(work, *args, **kwargs)
                finally:
                    self._end_wait()
            elif work.is_completed():
                result = original(work, *args, **kwargs)
            else:
                of_message = bool(self._calls.messages) and work in self._calls.messages
                result = (for_message if of_message else exposed)(work, *args, **kwargs)
            if call is not None:
                call.finish()
            return result

        return wait

    def _wait_for_future(self, original: Function) -> Function:
        exposed = self._calls.exposed(original)

        def wait(future: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._calls.pending:
                return original(future, *args, **kwargs)
            if future.done():
                result = original(future, *args, **kwargs)
            else:
                result = exposed(future, *args, **kwargs)
            # The callback that reports a collective may run later in another thread. Report it now.
            for key, call in list(self._calls.pending.items()):
                if call.future is not None and call.future.done():
                    self._calls.finish(key, call)
            return result

        return wait

    def _start_coalescing(self, original: Function) -> Function:
        def start(group: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(group, *args, **kwargs)
            self._calls.coalescing[threading.get_ident()] = []
            return result

        return start

    def _end_coalescing(self, original: Function) -> Function:
        def end(group: Any, *args: Any, **kwargs: Any) -> Any:
            self._end_wait()
            calls = self._calls.coalescing.pop(threading.get_ident(), [])
            work = original(group, *args, **kwargs)
            if calls:
                self._calls.coalesced(calls, work)
            return work

        return end

    def _unheard(self, original: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._recorder.loop.note_unheard()
            return original(*args, **kwargs)

        return call
