"""Follows unfinished collectives of torch.distributed, and reports them when they finish."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any
from weakref import WeakSet

import torch

from workbench.rank.backends.torch_operations import (
    MESSAGES,
    CollectiveDescriptions,
    Named,
    first,
    measure,
)
from workbench.rank.recording.collectives import Operation, Reported
from workbench.rank.recording.patches import Function
from workbench.rank.recording.phase import Phase
from workbench.rank.recording.recorder import Recorder

_MAX_PENDING = 4096
"""Maximum number of unfinished collectives that are kept."""


class Bucket:
    """A bucket that is being reduced, and the time of its end.

    Parameters
    ----------
    recorder
        Shows whether a CUDA graph is captured.

    Attributes
    ----------
    sent
        The bytes of each collective that the bucket's communication hook has called.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.finished = 0
        self.sent: list[int] = []
        self._event: Any = None

    def done(self) -> bool:
        """Return whether the bucket is reduced, without waiting."""
        if self._event is not None and not self.finished and not self._recorder.capturing:
            self.finished = perf_counter_ns() if self._event.query() else 0
        return bool(self.finished)

    def follow(self, future: Any, *, gpu: bool) -> None:
        """Note when the hook's future is done; on a GPU, when the GPU has done its work."""
        future.add_done_callback(self.mark if gpu else self._finish)

    def _finish(self, _: Any) -> None:
        self.finished = perf_counter_ns()

    def mark(self, _: Any = None) -> None:
        """Record a CUDA event; the bucket is done when the current stream has reached the event."""
        # the callback runs early, on a stream that waits for the reduction
        event = torch.cuda.Event()
        event.record()
        self._event = event


class TorchCall:
    """A submitted, unfinished collective."""

    __slots__ = ("_finished", "future", "on_gpu", "operation", "others", "submitted")

    def __init__(self, operation: Operation, submitted: int, finished: Reported | None) -> None:
        self.operation = operation
        self.submitted = submitted
        self.future: Any = None
        self.on_gpu = False
        self.others: list[TorchCall] = []
        """Collectives that finish together with this collective."""
        self._finished = finished

    def claim(self) -> Reported | None:
        """Return the receiver of the collective's report at the first call; None later."""
        finished = self._finished
        self._finished = None
        return finished

    def finish(self, _future: Any = None) -> None:
        """Report the collective once; any thread may call this."""
        now = perf_counter_ns()
        if (finished := self.claim()) is not None:
            finished.add(self.operation, self.submitted, now)
        for other in self.others:
            other.finish()


class TorchCalls:
    """Reports the collectives that hooks have seen to a `Recorder` when they have finished.

    Attributes
    ----------
    pending
        Unfinished collectives by the ``id`` of the `Work`, or by the address of the result.
    coalescing
        Collectives that a thread submits together, by the thread.
    messages
        The `Work` of sends and receives.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._main = threading.main_thread().ident
        self._gpu = torch.cuda.is_available()
        self._describe = CollectiveDescriptions().describe
        self.pending: dict[int, TorchCall] = {}
        self.coalescing: dict[int, list[TorchCall]] = {}
        self.messages: WeakSet[Any] = WeakSet()
        self._without_future: set[tuple[Named, int]] = set()
        self._hook: tuple[int, list[int]] | None = None
        self._hook_thread = 0

    @contextmanager
    def hook_of_ddp(self, sent: list[int]) -> Iterator[None]:
        """Add the bytes of a bucket's collectives to `sent` instead of recording them."""
        self._hook_thread = threading.get_ident()
        self._hook = self._hook_thread, sent
        try:
            yield
        finally:
            self._hook = None

    def exposed(self, original: Function, phase: Phase = Phase.EXPOSED) -> Function:
        """Return a function that calls `original` as an exposed wait of the training."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.trains(threading.get_ident()):
                return original(*args, **kwargs)
            waits = self._recorder.waits
            waits.exposed_begins(phase)
            try:
                return original(*args, **kwargs)
            finally:
                waits.exposed_ends()

        return call

    def submitted(
        self,
        named: Named,
        group: Any,
        sent: Any,
        measured: tuple[int, int],
        work: Any,
        began: int,
        thread: int,
        *,
        waits: bool,
        peer: int = -1,
    ) -> None:
        """Follow a submitted collective.

        Parameters
        ----------
        sent
            The tensors that this rank sends.
        measured
            The bytes and the number of tensors in `sent` before the call.
        work, began, thread
            The returned `Work` or None, the time of the call as ``time.perf_counter_ns()``, and the
            calling thread.
        waits
            Whether the caller now waits for the collective.
        peer
            The other rank's number in the group, for a sent or received message.
        """
        if not self._recorder.on:  # a function that could not be restored
            return
        call = self.call(named, group, measured, began, thread, peer)
        if named.kind in MESSAGES and work is not None:
            self.messages.add(work)
        call.on_gpu = self._gpu and getattr(first(sent), "is_cuda", False)
        if thread in self.coalescing:
            self.coalescing[thread].append(call)
        elif call.on_gpu:
            self.follow_stream([call], work)
        elif work is None:
            call.finish()
        else:
            key = id(work)
            self.keep(key, call)
            kept_by = named, id(group)
            if waits or kept_by in self._without_future:
                return  # the hook of the wait reports the collective when the wait returns
            try:
                call.future = work.get_future()
                call.future.add_done_callback(lambda _: self.finish(key, call))
            except RuntimeError:  # not implemented
                self._without_future.add(kept_by)

    def keep(self, key: int, call: TorchCall) -> None:
        """Keep a call in `pending` until it is finished."""
        # an earlier call has the same key if this call reuses its Work or memory
        abandoned = [self.pending.pop(key, None)]
        if len(self.pending) >= _MAX_PENDING:
            abandoned += self.pending.values()
            self.pending.clear()
        for stale in abandoned:
            # a future would report the call; without a future, no wait has reported it
            if stale is not None and stale is not call and stale.future is None:
                lost = [each for each in (stale, *stale.others) if each.claim() is not None]
                self._recorder.reported.lost += len(lost)
        self.pending[key] = call

    def finish(self, key: int, call: TorchCall) -> None:
        """Report a kept call; any thread may call this."""
        call.finish()
        if self.pending.get(key) is call:
            self.pending.pop(key, None)

    def coalesced(self, calls: list[TorchCall], work: Any) -> None:
        """Follow calls that were submitted together; calls of the same kind count as one."""
        groups: dict[Operation, list[TorchCall]] = {}
        for call in calls:
            kind = call.operation._replace(name="", size=0, tensors=0, peer=-1)
            groups.setdefault(kind, []).append(call)
        for peer_calls in groups.values():
            peers = {call.operation.peer for call in peer_calls}
            peer_calls[0].operation = peer_calls[0].operation._replace(
                size=sum(call.operation.size for call in peer_calls),
                tensors=sum(call.operation.tensors for call in peer_calls),
                peer=peers.pop() if len(peers) == 1 else -1,
            )
        together = [peer_calls[0] for peer_calls in groups.values()]
        if work is not None and any(call.operation.kind in MESSAGES for call in calls):
            self.messages.add(work)
        if any(call.on_gpu for call in together):
            self.follow_stream(together, work)
        elif work is None:
            for call in together:
                call.finish()
        else:
            together[0].others = together[1:]
            try:
                work.get_future().add_done_callback(together[0].finish)
            except RuntimeError:  # not implemented: the calls have finished when the wait returns
                self.keep(id(work), together[0])

    def follow_stream(self, calls: list[TorchCall], work: Any) -> None:
        """Make the training loop poll whether the GPU has finished calls.

        Without a Work, the calls count as finished when the current stream has reached this point.
        """
        if self._recorder.capturing:
            # the calls run when the CUDA graph is replayed, and no hook is called then
            self._recorder.loop.note_unheard()
            return
        bucket = Bucket(self._recorder)
        try:
            future = None if work is None else work.get_future()
        except RuntimeError:  # not implemented: the call has finished when the wait returns
            calls[0].others = calls[1:]
            self.keep(id(work), calls[0])
            return
        if future is None:
            bucket.mark()
        else:
            bucket.follow(future, gpu=True)
        for call in calls:
            if call.claim() is not None:  # each result of a coalesced collective is waited for
                self._recorder.loop.buckets.follow(call.operation, call.submitted, bucket)

    def trains(self, thread: int) -> bool:
        """Return whether a thread trains: the main thread, or a GPU's backward thread."""
        if thread == self._main:
            return True
        return self._gpu and self._recorder.loop.in_backward and not _is_of_python(thread)

    def is_of_bucket(self, thread: int, sent: Any) -> bool:
        """Return whether a DDP hook makes this call, directly or in a callback of a future.

        The bytes that callbacks send are counted for the oldest unfinished bucket.
        """
        hook = self._hook
        if hook is not None and hook[0] == thread:
            hook[1].append(measure(sent)[0])
            return True
        unfinished = hook is not None or bool(self._recorder.loop.buckets)
        if thread in (self._main, self._hook_thread) or not unfinished or _is_of_python(thread):
            return False
        oldest = self._recorder.loop.buckets.oldest_sent
        if oldest is not None:
            oldest.append(measure(sent)[0])
        elif hook is not None:
            hook[1].append(measure(sent)[0])
        return True

    def call(
        self,
        named: Named,
        group: Any,
        measured: tuple[int, int],
        began: int,
        thread: int,
        peer: int = -1,
    ) -> TorchCall:
        """Return a `TorchCall` with the description of the collective."""
        recorder = self._recorder
        operation = self._describe(named, group, measured, thread, recorder.loop, peer)
        return TorchCall(operation, began, recorder.reported)


def _is_of_python(thread: int) -> bool:
    """Return whether Python, and not PyTorch, has started a thread."""
    python_thread = threading._active.get(thread)  # type: ignore[attr-defined]
    return python_thread is not None and not isinstance(python_thread, threading._DummyThread)
