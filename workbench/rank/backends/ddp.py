"""The backend of a rank that uses torch.distributed: Gloo, and NCCL on GPUs."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import zlib
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from workbench.rank.backends import flight_recorder, gloo_abort, process_groups, torch_waits
from workbench.rank.backends.backend import ABORTED, Backend, Pending, RingNotFormed, in_thread
from workbench.rank.backends.ddp_hooks import DDPHooks
from workbench.rank.backends.neutral import neutral
from workbench.rank.backends.process_groups import ProcessGroups
from workbench.rank.backends.tensorflow_config import free_address
from workbench.rank.backends.torch_calls import TorchCalls
from workbench.rank.backends.torch_collectives import TorchCollectives
from workbench.rank.backends.torch_operations import number_of
from workbench.rank.backends.torch_operators import OperatorHooks
from workbench.rank.backends.transports import gloo_transport
from workbench.rank.recording.recorder import Recorder
from workbench.wire import Message
from workbench.wire.rank_messages import UNIDENTIFIED, RingCheck

if not dist.is_available():
    raise ImportError("torch.distributed is not available: this PyTorch was built without it")

_log = logging.getLogger(__name__)
_BREAK_S = 5.0
_BREAK_PERIOD_S = 0.1
_WAIT_FILES = (
    "torch/distributed/",
    "torch/autograd/graph.py",
    "torch/nn/parallel/",
    "torch/_ops.py",
    "workbench/rank/backends/",
)
"""Parts of the names of files with functions that wait in C++."""


class DDPBackend(Backend):
    """Joins this process in the default process group of torch.distributed."""

    def __init__(self, recorder: Recorder, send: Callable[[Message], None]) -> None:
        super().__init__(recorder, send)
        calls = TorchCalls(recorder)
        self._models = DDPHooks(recorder, calls)
        self.hooks = (
            self._models,
            TorchCollectives(recorder, calls),
            OperatorHooks(recorder, calls),
        )
        self._groups = ProcessGroups(recorder, self._models.moved)
        self._store: Any = None
        """The server that the ranks of the ring connect to, in rank 0."""
        self._aborted: str | None = None
        """The ring that must no longer be formed; this rank may not have begun to form it. Empty
        for the ring that is being formed; None if no ring was aborted."""
        self._latest_counts = self._counts_when_finished = (0, dict[str, int]())
        """Numbers of started collectives by group's name: the latest numbers, and the numbers when
        `pending` last saw that all were finished. Each has `ProcessGroups.destroyed` before it,
        because later groups have the same names.
        """

    @staticmethod
    def versions() -> dict[str, str]:
        """Return NCCL's version if PyTorch has NCCL; Gloo has no version.

        Agents call this before they fork ranks: it must not initialize CUDA.
        """
        if not (torch.version.cuda and dist.is_nccl_available()):
            return {}
        return {"NCCL": ".".join(map(str, torch.cuda.nccl.version()))}

    @staticmethod
    def poll(_handle: Any) -> bool:
        """Return True, because a collective that `pending` does not return is done."""
        return True

    def install(self) -> None:
        """Enable cells to form and destroy process groups as scripts do."""
        self._groups.install()
        gloo_abort.install()

    def settings(self, interface: str, serves: bool) -> dict[str, str]:
        """Return the addresses of the next ring's store and of a TensorFlow server.

        A cell may start the TensorFlow server later.

        Parameters
        ----------
        interface
            The network interface for listening.
        serves
            Whether this rank starts the store.
        """
        tensorflow = free_address(interface)
        if not serves:
            return tensorflow
        self._store, address, port = process_groups.serve(interface)
        return {"MASTER_ADDR": address, "MASTER_PORT": str(port), **tensorflow}

    @neutral()
    def init_ring(self, environment: dict[str, str]) -> RingCheck:
        """Form the default process group, and give it to DDP models of earlier rings.

        Parameters
        ----------
        environment
            The variables that torchrun sets, and the variables for the network interface.
        """
        os.environ.update(environment)
        name = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
        aborted = self._aborted
        self._aborted = None
        if name == aborted:  # the other ranks no longer wait for this rank
            raise RingNotFormed(ABORTED)
        try:
            total = self._groups.form(name, self._check_aborted)
        except (RuntimeError, OSError) as error:  # also torch.distributed's own
            self.shutdown_ring(peer_lost=True)
            raise RingNotFormed(str(error)) from None
        except BaseException:
            self.shutdown_ring(peer_lost=True)
            raise
        self._groups.move_models()
        store = (environment["MASTER_ADDR"], int(environment["MASTER_PORT"]))
        self._transports_without_nccl = (gloo_transport(self._groups.sockets.addresses(store)),)
        return RingCheck(total, dynamic=False, transports=self.transports())

    def shutdown_ring(self, *, peer_lost: bool = False) -> None:  # noqa: ARG002
        """Leave all process groups without waiting for other ranks."""
        self._groups.end()
        self._recorder.members.clear()

    def abort_init(self, ring: str) -> None:
        """Stop forming a ring.

        A thread shuts down the ring's sockets. If this rank has not begun to form the ring,
        `init_ring` will raise an error.
        """
        self._aborted = ring
        in_thread(self._abort_init, ring)

    def release(self, *, peer_lost: bool) -> None:  # noqa: ARG002
        """Shut down the sockets of all groups, and abort NCCL's groups."""
        self._groups.sockets.shut_down()
        if torch.cuda.is_available():
            in_thread(self._groups.abort_on_gpu)

    def is_initialized(self) -> bool:
        """Return whether there is a usable default process group; cells can destroy or break it."""
        return self._groups.usable

    @neutral()
    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        dist.barrier()

    @neutral()
    def allreduce(self, tensor: torch.Tensor, name: str) -> None:  # noqa: ARG002
        """Sum a tensor over all ranks, in place."""
        dist.all_reduce(tensor)

    @neutral()
    def largest(self, number: float, name: str) -> float:  # noqa: ARG002
        """Return the maximum of a number over all ranks."""
        devices = dist.group.WORLD._device_types
        cpu = torch.device("cpu")
        device = cpu if cpu in devices or not devices else devices[0]
        tensor = torch.tensor(number, dtype=torch.float64, device=device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor)

    @neutral()
    def exchange(
        self, tensor: torch.Tensor, sent: list[int], out: torch.Tensor, got: list[int]
    ) -> None:
        """Send a part of a tensor to each rank, and receive from each."""
        dist.all_to_all_single(out[: sum(got)], tensor, got, sent)

    def namespace(self) -> dict[str, Any]:
        """Return torch.distributed, and this rank's number."""
        return {
            "dist": dist,
            "rank": dist.get_rank(),
            "local_rank": int(os.environ["LOCAL_RANK"]),
            "world_size": dist.get_world_size(),
        }

    def pending(self) -> Pending:
        """Return the unfinished collectives, in any thread; empty if they are unknown."""
        destroyed = self._groups.destroyed
        groups = self._groups.names()
        started = {name: _started(group) for name, group in groups.items()}
        before = self._latest_counts
        self._latest_counts = (destroyed, started)
        numbers: dict[str, int] = {}
        submitted: dict[int, int] = {}
        for name, group in groups.items():
            with _unless_destroyed():
                number = numbers[name] = number_of(group)
                submitted[number] = submitted.get(number, 0) + started[name]
        operations: dict[Any, tuple[str, int]]
        operations = {key: (name, 0) for key, name in torch_waits.unfinished().items()}
        if (destroyed, started) == self._counts_when_finished:
            return Pending(submitted, operations, frozenset(operations))
        for name, number in numbers.items():
            if number:
                with _unless_destroyed():
                    ranks = tuple(dist.get_process_group_ranks(groups[name]))
                    self._recorder.members[number] = ranks
        unfinished = self._unfinished()
        # PyTorch counts a collective before the Flight Recorder has it. Only if the counts are
        # those of the previous call are all counted collectives known to be finished.
        if not unfinished and before == (destroyed, started):
            self._counts_when_finished = before
        operations |= {
            operation.id: (operation.name, numbers.get(operation.group, 0))
            for operation in unfinished
        }
        return Pending(submitted, operations, frozenset(operations))

    def wait_of(self, frame: FrameType | None) -> tuple[str, Any, int] | None:
        """Return the call or the oldest unfinished collective that a thread may wait for.

        The frames show whether the thread is in a function that may wait. A call has no handle;
        the time of the call identifies it.
        """
        if frame is None:
            return None
        call = torch_waits.find(frame)
        if call is not None and call.name:
            return call.name, None, call.began
        if not any(part in frame.f_code.co_filename for part in _WAIT_FILES):
            return None
        if unfinished := self._unfinished():
            return "", unfinished[0].id, unfinished[0].submitted
        return None if call is None else ("", None, call.began)

    def collective_of(self, frame: FrameType | None) -> tuple[str, int]:
        """Return the function of torch.distributed that waits, and the number of its set of ranks.

        The number is 0 except for sends, receives and the forming of groups. `pending` has the
        numbers of collectives.
        """
        call = torch_waits.find(frame)
        number = 0
        # as in `number_of`, the number is larger than the numbers of Horovod's process sets
        if call and call.ranks is not None and str(len(call.ranks)) != os.environ["WORLD_SIZE"]:
            number = zlib.crc32(repr(call.ranks).encode()) & 0x3FFFFFFF | 0x40000000
            self._recorder.members[number] = call.ranks
        while frame is not None:
            code = frame.f_code
            if _WAIT_FILES[0] in code.co_filename and code.co_name in dist.distributed_c10d.__all__:
                return f"{code.co_name}()", number
            frame = frame.f_back
        return UNIDENTIFIED, number

    def _check_aborted(self) -> None:
        """Raise an error if the ring was aborted before its sockets were marked as forming.

        In this case, `_abort_init` has returned without an effect.
        """
        if self._aborted in {"", self._groups.sockets.name}:
            raise RingNotFormed(ABORTED)

    def _unfinished(self) -> list[flight_recorder.Recorded]:
        return flight_recorder.unfinished(gpu=not self._recorder.capturing)

    def _abort_init(self, name: str) -> None:
        sockets = self._groups.sockets
        deadline = time.monotonic() + _BREAK_S
        while sockets.forming and name in {"", sockets.name} and time.monotonic() < deadline:
            sockets.shut_down()  # repeatedly, because further connections may be opened
            self._groups.abort_on_gpu()
            time.sleep(_BREAK_PERIOD_S)
        _log.debug("aborted the formation of ring %r", name)


def _unless_destroyed() -> contextlib.suppress:
    """Ignore the errors about a group that the main thread destroys during the body."""
    return contextlib.suppress(KeyError, ValueError, RuntimeError)


def _started(group: Any) -> int:
    """Return the number of collectives, sends and receives that a group's backends have started."""
    backends = {}
    count = 0
    with contextlib.suppress(RuntimeError):  # the main thread has destroyed the group
        backends = {
            id(backend): backend for backend in map(group._get_backend, group._device_types)
        }
    for backend in backends.values() or (group,):
        with contextlib.suppress(RuntimeError):  # this backend does not implement it
            count += int(backend._get_sequence_number_for_group())
    return count
