"""The Horovod backend of a rank."""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import FrameType
from typing import Any

import horovod
import horovod.torch as hvd
import torch
from horovod.torch import mpi_ops

from workbench.rank.backends import (
    cell_init,
    horovod_hooks,
    mpi_controller,
    optimizers,
    process_sets,
    script_groups,
)
from workbench.rank.backends.backend import ABORTED, Backend, Pending, RingNotFormed, in_thread
from workbench.rank.backends.ddp_hooks import DDPHooks
from workbench.rank.backends.horovod_tap import Tap
from workbench.rank.backends.horovod_tensorflow import HorovodTensorFlow
from workbench.rank.backends.horovod_thread import HorovodThread
from workbench.rank.backends.neutral import neutral
from workbench.rank.backends.ring_sockets import RingSockets
from workbench.rank.backends.tensorflow_config import free_address
from workbench.rank.backends.torch_calls import TorchCalls
from workbench.rank.backends.torch_collectives import TorchCollectives
from workbench.rank.backends.torch_operators import OperatorHooks
from workbench.rank.backends.transports import gloo_transport
from workbench.rank.recording.recorder import Recorder
from workbench.wire import Message
from workbench.wire.rank_messages import UNIDENTIFIED, RendezvousPort, RingCheck
from workbench.wire.transport import Transport

_log = logging.getLogger(__name__)
_SHUTDOWN_S = 1.0
"""Time limit for Horovod's shutdown before the sockets of the ring are shut down."""
_BREAK_S = 5.0
_BREAK_PERIOD_S = 0.1
_SYNCHRONIZE = mpi_ops.synchronize.__code__
"""Code of the function that ends every wait for a collective."""
_WITHOUT_TENSOR = (mpi_ops.barrier.__code__, mpi_ops.join.__code__)
_FUNCTION_FILES = ("horovod/torch/mpi_ops.py", "horovod/torch/functions.py")
_LOST = (
    "Horovod's thread has ended without finishing its collectives, and logged the reason above. "
    "They are given up, and the ring is rebuilt.\n"
)
_LOG = re.compile(r"Horovod could not be initialized: (?:\[[^]]*\.(?:cc|h):\d+\] )*(.*)")


class HorovodBackend(Backend):
    """Joins this process in a Horovod ring; shutting down its sockets ends the ring."""

    poll = staticmethod(horovod_hooks.poll)

    def __init__(self, recorder: Recorder, send: Callable[[Message], None]) -> None:
        super().__init__(recorder, send)
        self._tap = Tap.open(recorder.members)
        if self._tap is not None:
            recorder.sources.append(self._tap)
        calls = TorchCalls(recorder)
        self.waits = (horovod_hooks.PausingWaits(recorder),)
        self.hooks = (
            horovod_hooks.HorovodHooks(recorder, self._tap),
            DDPHooks(recorder, calls),
            TorchCollectives(recorder, calls),
            OperatorHooks(recorder, calls),
        )
        self._tensorflow = HorovodTensorFlow(recorder)
        self._ring = RingSockets()
        self._thread = HorovodThread(self._thread_ended)
        self._aborted: str | None = None
        """The ring that must no longer be formed; this rank may not have begun to form it. Empty
        for the ring that is being formed; None if no ring was aborted."""
        self._shutdown = threading.Lock()
        """Horovod's shutdown joins its thread; two concurrent calls would wait forever."""

    @staticmethod
    def versions() -> dict[str, str]:
        """Return Horovod's version."""
        return {"Horovod": horovod.__version__}

    def install(self) -> None:
        """Enable a cell to create its optimizer repeatedly."""
        optimizers.NewestOptimizer().install()
        self._tensorflow.install()
        script_groups.install()

    def pending(self) -> Pending:
        """Return the collectives that are not finished or not waited for; see `Backend.pending`."""
        pending = (self._tap and self._tap.pending()) or Pending({}, {})
        return pending._replace(handles=frozenset(list(mpi_ops._handle_map)))

    def settings(self, interface: str) -> dict[str, str]:
        """Return Horovod's environment variables, the MPI job and TensorFlow's address.

        Horovod's variables are left out before the first ring. Later they are included because
        cells can change them, and ranks with different values may be unable to form a ring.
        ``MPI_JOB`` is the MPI job that allows this process to use Horovod's MPI controller.

        Parameters
        ----------
        interface
            The network interface of TensorFlow's address.
        """
        formed = self._ring.name != "" or mpi_controller.is_used()
        process_settings = _environment_settings() if formed else {}
        job = "" if self._ring.name else mpi_controller.job()
        return {**process_settings, mpi_controller.JOB: job, **free_address(interface)}

    @neutral()
    def init_ring(self, environment: dict[str, str], shared: dict[str, str]) -> RingCheck:
        """Form a ring, and return the result of a first collective.

        Parameters
        ----------
        environment
            The HOROVOD_* variables of this rank, which Horovod reads in every init.
        shared
            The variables of the other ranks, used where this rank has no value.
        """
        os.environ.update({**shared, **_environment_settings(), **environment})
        mpi = mpi_controller.is_used()  # a ring of MPI has no sockets that could be shut down
        aborted = self._aborted
        self._aborted = None
        if not mpi:
            if aborted == environment["HOROVOD_GLOO_RENDEZVOUS_PORT"]:
                raise RingNotFormed(ABORTED)  # the other ranks no longer wait for this rank
            with self._shutdown:  # a running shutdown belongs to the previous ring
                self._ring = RingSockets(environment["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        ring = self._ring
        leave = partial(self._break, ring, peer_lost=not mpi)
        starts = nullcontext if mpi else self._thread.starts
        cell_init.install(self._recorder, ring, self._send, leave, self._shutdown, starts)
        if mpi:
            mpi_controller.start_mpi()
        try:
            with nullcontext() if mpi else ring:
                # an `_abort_init` that ran before `ring.forming` was set has had no effect
                if not mpi and self._aborted in {"", ring.name}:
                    raise RingNotFormed(ABORTED)
                with starts():
                    _init()
                tensor = torch.ones(1, dtype=torch.float32, device="cpu")
                total = hvd.allreduce(tensor, op=hvd.Sum, name="workbench.ready")
            process_sets.note_members(self._recorder)
        except BaseException as error:
            if mpi:
                raise
            self.shutdown_ring(peer_lost=True)  # otherwise the next hvd.init() fails at once
            if isinstance(error, hvd.HorovodInternalError):
                raise RingNotFormed(f"the first collective failed: {error}") from None
            raise
        process_sets.install(self._recorder, ring)
        if self._tap is not None:
            self._tap.ring_formed(hvd.size())
        self._transports_without_nccl = (_transport(ring),)
        return RingCheck(float(total.item()), process_sets.dynamic(), self.transports())

    def shutdown_ring(self, *, peer_lost: bool = False) -> None:
        """Shut Horovod down; with `peer_lost`, first shut down sockets that it would wait for."""
        if peer_lost:
            self._ring.shut_down()
        with self._shutdown:
            # this also resets the numbers of handles: ranks match unnamed collectives by these
            # numbers, and after a failure the numbers differ between ranks
            hvd.shutdown()
        objects = gc.get_objects()
        process_sets.end_with_ring(objects)
        optimizers.discard_handles(objects)

    def abort_init(self, ring: str) -> None:
        """Stop forming or leaving a ring.

        A thread shuts down the ring's sockets. If this rank has not begun to form the ring,
        `init_ring` will raise an error.
        """
        self._aborted = ring
        in_thread(self._abort_init, ring)

    def release(self, *, peer_lost: bool) -> None:
        """Shut Horovod down in a thread; after `_SHUTDOWN_S`, shut down the ring's sockets.

        ``hvd.shutdown`` is not used: it clears PyTorch's handles first, and the blocked
        caller would raise an error about a missing handle. After the loss of a peer, neither MPI
        nor Horovod's shutdown ends a collective. In this case, nothing is done.
        """
        if peer_lost and mpi_controller.is_used():
            return
        # the thread gets the current ring, because a delayed thread must not end the next ring
        in_thread(self._break, self._ring, peer_lost)

    def is_initialized(self) -> bool:
        """Return whether Horovod is initialized and its thread runs; a cell can change both."""
        return bool(mpi_ops.is_initialized()) and self._thread.is_alive()

    @neutral()
    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        hvd.barrier()

    @neutral()
    def allreduce(self, tensor: torch.Tensor, name: str) -> None:
        """Sum a tensor over all ranks, in place."""
        hvd.allreduce_(tensor, op=hvd.Sum, name=name)

    @neutral()
    def largest(self, number: float, name: str) -> float:
        """Return the maximum of a number over all ranks."""
        tensor = torch.tensor(number, dtype=torch.float64, device="cpu")
        return float(hvd.allreduce(tensor, op=hvd.Max, name=name))

    @neutral()
    def exchange(
        self,
        tensor: torch.Tensor,
        sent: list[int],
        out: torch.Tensor,  # noqa: ARG002
        got: list[int],  # noqa: ARG002
    ) -> None:
        """Send a part of a tensor to each rank, and receive from each."""
        splits = torch.tensor(sent, dtype=torch.int32, device="cpu")
        hvd.alltoall(tensor, splits, name="workbench.exchange")

    def namespace(self) -> dict[str, Any]:
        """Return Horovod's module, and this rank's number."""
        return {
            "hvd": hvd,
            "rank": hvd.rank(),
            "local_rank": hvd.local_rank(),
            "world_size": hvd.size(),
        }

    def receive(self, message: Message) -> bool:
        """Handle the port that hvd.init() in a cell waits for."""
        if not isinstance(message, RendezvousPort):
            return False
        cell_init.take_port(message)
        return True

    def wait_of(self, frame: FrameType | None) -> tuple[str, Any, int] | None:
        """Return the name if it is a barrier or a join, and the handle that the thread waits for.

        See `Backend.wait_of`.
        """
        # an op of TensorFlow is pending only while its caller waits
        ops = [handle for handle in self.pending().operations if handle < 0]
        if ops:
            return "", max(ops), 0
        while frame is not None and frame.f_code is not _SYNCHRONIZE:
            frame = frame.f_back
        if frame is None:
            return None
        caller = frame.f_back.f_code if frame.f_back else None
        name = f"{caller.co_name}()" if caller in _WITHOUT_TENSOR and caller else ""
        return name, frame.f_locals["handle"], 0

    def collective_of(self, frame: FrameType | None) -> tuple[str, int]:
        """Return the name of the collective or of its function, and its process set."""
        name = function = ""
        process_set: Any = None
        while frame is not None:
            if frame.f_code.co_filename.endswith(_FUNCTION_FILES):
                local_name = frame.f_locals.get("name")
                name = name or (local_name if isinstance(local_name, str) else "")
                function = frame.f_code.co_name
                if process_set is None:
                    process_set = frame.f_locals.get("process_set")
            elif function and function != "synchronize":
                break
            frame = frame.f_back
        name = name or (f"{function}()" if function else UNIDENTIFIED)
        return name, int(getattr(process_set, "process_set_id", 0) or 0)

    def _abort_init(self, name: str) -> None:
        ring = self._ring
        deadline = time.monotonic() + _BREAK_S
        while name in {"", ring.name} and time.monotonic() < deadline:
            if not (ring.forming or self._shutdown.locked()):
                return
            ring.shut_down()  # repeatedly, because Gloo may open further connections
            time.sleep(_BREAK_PERIOD_S)
        _log.debug("stopped aborting ring %r", name)

    def _break(self, ring: RingSockets, peer_lost: bool) -> None:
        """End a ring; may take seconds."""
        if ring.forming:
            # hvd.init() in a cell is forming the ring; it would never return if Horovod was shut
            # down just after the ring is formed
            self._abort_init(ring.name)
            return

        def shut_down() -> None:
            # if Horovod is shut down while a cell initializes it, hvd.init() never returns
            with self._shutdown:
                if self._ring is ring and not ring.forming:
                    mpi_ops._basics.shutdown()

        shutdown = in_thread(shut_down)
        shutdown.join(0 if peer_lost else _SHUTDOWN_S)
        deadline = time.monotonic() + _BREAK_S
        # every caller of Horovod's shutdown waits for Horovod's thread, so this thread is alive
        # until the ring has ended
        while shutdown.is_alive() and self._ring is ring and time.monotonic() < deadline:
            ring.shut_down()  # repeatedly, because Gloo may use further connections
            shutdown.join(_BREAK_PERIOD_S)
        if not shutdown.is_alive() and not ring.forming:
            self._end_lost(ring)
        _log.debug("shut down ring %r (peer lost: %s)", ring.name, peer_lost)

    def _thread_ended(self) -> None:
        """End the ring after an error in Horovod's thread, so that no rank waits for this rank."""
        ring = self._ring
        with self._shutdown:
            if ring is not self._ring or ring.forming or not mpi_ops.is_initialized():
                return
            if self._thread.is_alive():  # a cell has initialized Horovod again since
                return
            ring.shut_down()
        _log.debug("shut down ring %r, because Horovod's thread has ended", ring.name)
        self._end_lost(ring)

    def _end_lost(self, ring: RingSockets) -> None:
        """End the waits for collectives of a ring that Horovod's thread has left unfinished.

        An error ends Horovod's thread, for example if there is too little memory for the fusion
        buffer. The collectives in progress then never end. Their callers get a ValueError.
        """
        deadline = time.monotonic() + _SHUTDOWN_S
        while self._ring is ring and _unfinished():
            if time.monotonic() < deadline:
                time.sleep(_BREAK_PERIOD_S)
                continue
            with self._shutdown:
                if self._ring is ring:
                    sys.stderr.write(_LOST)
                    mpi_ops.mpi_lib.horovod_torch_reset()
            return


def _unfinished() -> bool:
    """Return whether any collective of this process is unfinished."""
    return not all(map(_is_finished, list(mpi_ops._handle_map)))


def _is_finished(handle: int) -> bool:
    try:
        return bool(horovod_hooks.poll(handle))
    except ValueError:  # another thread has cleared the handle
        return True


def _transport(ring: RingSockets) -> Transport:
    """Return the transport for collectives of CPU tensors; GPU tensors use NCCL if it is built.

    Horovod uses Gloo or MPI for the control of the ring, and the same library for CPU tensors.
    """
    if hvd.gloo_enabled():
        return gloo_transport(ring.addresses())
    return Transport("MPI", "", unknown="MPI does not report its connections")


def _environment_settings() -> dict[str, str]:
    """Return Horovod's environment variables in this process."""
    return {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}


def _init() -> None:
    """Call hvd.init(); on failure, raise an error with the reason from Horovod's log."""
    logged = _log_size()
    try:
        hvd.init()
    except ValueError as error:
        cause = _LOG.findall(_log_since(logged))
        reason = f"hvd.init() failed: {cause[-1]}" if cause else str(error)
        raise RingNotFormed(reason) from None


def _log_size() -> int:
    """Return the size of the log file behind descriptor 2; 0 if the descriptor is closed."""
    try:
        return os.fstat(2).st_size
    except OSError:
        return 0


def _log_since(size: int) -> str:
    """Return the log after its first `size` bytes; empty if it cannot be read."""
    try:
        return os.pread(2, 1 << 16, size).decode(errors="replace")
    except OSError:
        return ""
