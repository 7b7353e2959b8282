"""Profiles iterations of a running cell with PyTorch's profiler at the kernel's request.

The profiler records only the thread that starts it. Therefore the training thread starts and
stops it, at the ends of iterations. Another thread writes and compresses the trace.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import psutil

from workbench.rank.recording.patches import Patches
from workbench.rank.recording.recorder import Recorder
from workbench.rank.torch_profiler import TorchProfiler, compressed
from workbench.wire import Message
from workbench.wire.profile_messages import ProfileEnded, ProfileRequest, ProfileStarted
from workbench.wire.transfer_messages import Chunk, DropTransfer, GetChunk
from workbench.wire.values import Payload

MAX_MEMORY_BYTES = 512_000_000
"""A profile ends when the rank's memory, with CUPTI's buffers on a GPU, has grown by this size. It
ends earlier if the ranks of the VM together need a quarter of its free memory. A small model on a
CPU needs 0.2 GB per second, and one second has a trace of 13 MB."""
_SHARE = 4
MAX_BYTES = 128_000_000
"""Maximum size of a compressed trace."""
_WARM_UP = 2
"""Iterations of a cell before a profile: the first ones are slower than the others."""
_OTHER_PROFILER = "The cell uses PyTorch's profiler, of which only one can run at a time."
_OPEN_BLOCK = (
    "has entered a record_function in the last profile and not left it: PyTorch may crash if "
    "another profile begins."
)


class Profiler:
    """Answers a `ProfileRequest`, for the running cell or the next one that trains.

    Without a request, an iteration costs one more call and one comparison.

    A ``record_function`` that is open at the end of a profile must not be closed during another
    profile: PyTorch would write to memory that it has freed. Therefore no profile begins in the
    iteration that ended one, or in a cell that had such an open block of the user.
    """

    def __init__(self, recorder: Recorder, send: Callable[[Message], None]) -> None:
        self._recorder = recorder
        self._send = send
        self._lock = threading.Lock()
        """Held only briefly: the control thread must not wait while PyTorch's profiler stops."""
        self._changing = False
        """Whether a thread starts or stops PyTorch's profiler."""
        self._request: ProfileRequest | None = None
        self._torch: TorchProfiler | None = None
        self._patches = Patches()
        self._writing = False
        self._ended: ProfileEnded | None = None
        self._payload: Payload | None = None
        self._cell = self._first = self._memory_bytes = self._most_memory_bytes = 0
        self._open_in = -1
        """The cell that had an open block of the user at the end of a profile."""
        self._cancelled = False

    # in the thread of the control channel

    def receive(self, message: Message) -> bool:
        """Handle a message about a profile; return whether the message is one."""
        match message:
            case ProfileRequest():
                self._ask(message)
            case GetChunk() if self._is_own(message.transfer):
                if self._payload is not None:
                    data = self._payload.read(message.offset, message.size)
                    self._send(Chunk(message.transfer, message.offset, data))
            case DropTransfer() if self._is_own(message.transfer):
                with self._lock:
                    self._payload = None
                    self._cancelled = True
                    if self._torch is None and not self._changing:
                        self._request = None  # otherwise it ends at the end of the iteration
            case _:
                return False
        return True

    def _is_own(self, number: int) -> bool:
        request = self._request
        ended = self._ended
        numbers = {message.profile for message in (request, ended) if message is not None}
        return number in numbers

    def _ask(self, request: ProfileRequest) -> None:
        with self._lock:
            is_free = self._torch is None and not self._changing and not self._writing
            if is_free:
                self._request = request
                self._payload = None
                self._ended = None
                self._cancelled = False
                self._recorder.at_iteration = self._iteration_ended
        if not is_free:
            self._send(_nothing(request.profile, 0, "Another profile has not ended yet."))

    # in the training thread

    @contextlib.contextmanager
    def _change(self) -> Iterator[tuple[ProfileRequest | None, TorchProfiler | None]]:
        """Give the body the exclusive right to start or stop PyTorch's profiler.

        The lock is not held in the body. An interrupt is raised after the body, because it would
        leave the profiler running halfway. Any other exception of the body ends the profile.

        Yields
        ------
        tuple
            The request and the running profiler. The request is None if another thread starts or
            stops the profiler.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            with self._lock:
                is_free = not self._changing
                request = self._request if is_free else None
                self._changing = True
            try:
                yield request, self._torch
            except Exception as error:  # noqa: BLE001 - a profile must not fail the cell
                self._abandon(request, error)
            finally:
                if is_free:
                    self._changing = False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)  # a pending signal raises here

    def _iteration_ended(self) -> None:
        """Start or stop a profile at the end of an iteration if one is due."""
        with self._change() as (request, running):
            if request is None:
                # the writer takes time of the training too, so its iterations are marked
                self._recorder.profiling = self._writing
                with self._lock:
                    if not self._writing and self._request is None:
                        self._recorder.at_iteration = None
            elif running is None:
                if self._recorder.records.iterations >= _WARM_UP:
                    self._begin(request)
            elif running.thread == threading.get_ident():
                self._continue(request, running)

    def _begin(self, request: ProfileRequest) -> None:
        records = self._recorder.records
        if threading.current_thread() is not threading.main_thread():
            # the end of the cell could not stop it
            self._refuse(request, "The cell trains in another thread than the main one.")
            return
        if TorchProfiler.is_in_use():
            self._refuse(request, f"{_OTHER_PROFILER} It was left running.")
            return
        if records.cell == self._open_in:
            self._refuse(request, f"The cell {_OPEN_BLOCK} Profile another cell.")
            return
        self._cell = records.cell
        self._first = records.iterations
        self._memory_bytes = _memory_bytes()
        available = psutil.virtual_memory().available
        self._most_memory_bytes = min(MAX_MEMORY_BYTES, available // (_SHARE * _ranks_here()))
        self._recorder.profiling = True
        self._send(ProfileStarted(request.profile, records.cell))
        self._start(request)

    def _start(self, request: ProfileRequest) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would write into the cell's output
        try:
            self._torch = started = TorchProfiler()
            started.start()
        except Exception as error:  # noqa: BLE001 - private functions of any version of PyTorch
            self._torch = None
            self._refuse(request, f"PyTorch's profiler does not start: {error}")
            return
        for name in ("_prepare_trace", "_start_trace"):
            self._patches.replace(started.owner, name, self._gives_way)

    def _continue(self, request: ProfileRequest, running: TorchProfiler) -> None:
        if self._cancelled:
            self._end(request, running, "")  # also to find a block that is open
            return
        done = self._recorder.records.iterations - self._first
        took_s = (perf_counter_ns() - running.began_ns) / 1e9
        if took_s >= request.seconds or done == request.iterations:
            self._end(request, running, "")
        elif (grown := _memory_bytes() - self._memory_bytes) > self._most_memory_bytes:
            self._end(
                request,
                running,
                f"It ended after {took_s:.1f} s ({done} iterations): the memory of the rank had "
                f"grown by {grown / 1e6:.0f} MB. Ask for fewer iterations for a profile of all.",
            )

    def _gives_way(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            self._give_way()
            return original(*args, **kwargs)

        return start

    def _give_way(self) -> None:
        """End the profile before the cell starts its own profiler, which would break it."""
        with self._change() as (request, running):
            if request and running is not None and running.thread == threading.get_ident():
                self._end(request, running, f"{_OTHER_PROFILER} It ended when that one began.")

    def begin_cell(self) -> None:
        """Wait for the cell's iterations, if a profile was requested."""
        if self._request is not None:
            self._recorder.at_iteration = self._iteration_ended

    def end_cell(self) -> None:
        """End the cell's profile; a profile that has not begun waits for the next cell."""
        with self._change() as (request, running):
            self._recorder.at_iteration = None
            self._recorder.profiling = False
            if request is not None and running is not None:
                self._end(request, running, "The cell ended before the profile.")

    def _end(self, request: ProfileRequest, running: TorchProfiler, note: str) -> None:
        """Stop PyTorch's profiler and report its recording; raise nothing."""
        self._torch = None
        try:
            try:
                result = running.stop()
            finally:
                self._patches.remove()
            self._keep(request, running, result, note)
        except Exception as error:  # noqa: BLE001 - private functions of any version of PyTorch
            self._refuse(request, f"PyTorch's profiler has failed: {error}")

    def _keep(self, request: ProfileRequest, ran: TorchProfiler, result: Any, note: str) -> None:
        """Start a thread that writes and reports the trace."""
        last = max(self._first, self._recorder.records.iterations - 1)
        ended = ProfileEnded(
            request.profile, self._cell, 0, self._first, last, ran.began_ns, ran.ended_ns,
            tuple(ran.marks), note,
        )  # fmt: skip
        writer = threading.Thread(
            target=self._write, args=(ended, result), name="workbench-profile", daemon=True
        )
        with self._lock:
            self._ended = ended
            self._request = None
            self._writing = True
        try:
            writer.start()
        except RuntimeError:
            self._writing = False
            raise

    def _abandon(self, request: ProfileRequest | None, error: Exception) -> None:
        """End the profile after an error; raise nothing."""
        if request is None:
            return
        running = self._torch
        self._torch = None
        with contextlib.suppress(Exception):
            if running is not None:
                running.stop()
        with contextlib.suppress(Exception):
            self._patches.remove()
        with contextlib.suppress(Exception):
            self._refuse(request, f"PyTorch's profiler has failed: {error}")

    def _refuse(self, request: ProfileRequest, note: str) -> None:
        self._request = None
        self._recorder.at_iteration = None
        self._recorder.profiling = False
        self._send(_nothing(request.profile, self._cell, note))

    # in the writer's thread

    def _write(self, ended: ProfileEnded, result: Any) -> None:
        try:
            data, is_open = compressed(result)
            if is_open:
                self._open_in = ended.cell
        except Exception as error:  # noqa: BLE001 - the kernel waits for an answer
            data = b""
            reason = f"its trace cannot be written ({error})"
        else:
            size, most = (f"{count / 1e6:.0f} MB" for count in (len(data), MAX_BYTES))
            too_large = f"its trace has {size}, and at most {most} are sent"
            reason = too_large if len(data) > MAX_BYTES else ""
        if reason:
            ended = replace(ended, note=f"{ended.note} There are no events: {reason}.".lstrip())
        else:
            ended = replace(ended, size_bytes=len(data))
        with self._lock:
            self._writing = False
            if self._cancelled:
                return
            self._payload = Payload([data], []) if ended.size_bytes else None
            self._ended = ended
        self._send(ended)


def _nothing(profile: int, cell: int, note: str) -> ProfileEnded:
    return ProfileEnded(profile, cell, 0, 0, 0, 0, 0, (), note)


def _ranks_here() -> int:
    """Return how many ranks this VM has; 1 if that is unknown."""
    counts = (os.environ.get(name) for name in ("LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE"))
    return max([1, *(int(text) for text in counts if text and text.isdecimal())])


def _memory_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
