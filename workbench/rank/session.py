"""The session of a rank, from joining a cluster to the end of the process.

The kernel calls the functions at the end of this module through ipyparallel: `hello` on every
engine, then `join` (connections), `init_ring` (process group and namespace), and `run_cell` for
each cell. After a failure, `shutdown_ring` and `init_ring` form another ring.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any

import torch

from workbench.rank import cell as cells
from workbench.rank import console_bars, script_launchers, spawned
from workbench.rank.attributes import AttributeNames
from workbench.rank.backends import DEFAULT, backend_class
from workbench.rank.backends.backend import Backend, CellCollectives
from workbench.rank.backends.neutral import neutral
from workbench.rank.control import Control
from workbench.rank.interrupts import Interrupts
from workbench.rank.output import Capture, OutputChannel
from workbench.rank.process_state import ProcessState
from workbench.rank.profiler import Profiler
from workbench.rank.prompts import RankPrompts
from workbench.rank.recording.communication_threads import CommunicationThreads
from workbench.rank.recording.device_clock import DeviceClock
from workbench.rank.recording.iteration import Recorded
from workbench.rank.recording.loader_hooks import LoaderHooks, named
from workbench.rank.recording.recorder import Recorder
from workbench.rank.recording.sender import RecordChannel
from workbench.rank.recording.torch_hooks import TorchHooks
from workbench.rank.sampler import LineSampler
from workbench.rank.transfers import Transfers
from workbench.resources.process_registry import register_rank
from workbench.wire import Address, Message, Outbox
from workbench.wire.cell_cost import CellCost
from workbench.wire.rank_messages import AbortInit, CellEnded, RankGreeting, ReleaseRanks, RingCheck

_log = logging.getLogger(__name__)


class Session:
    """One rank of one cluster.

    Parameters
    ----------
    shell
        The engine's IPython shell, whose namespace the cells share.
    control, timings
        The kernel's addresses for messages about cells, and for records of iterations.
    world_size
        Number of ranks in the cluster.
    backend
        Name of the backend that joins the ranks.
    """

    def __init__(
        self, shell: Any, control: Address, timings: Address, world_size: int, backend: str
    ) -> None:
        self._shell = shell
        # the engine's handler ends a rank only after its cell, and never within a collective
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        shell.ask_exit = cells.leave
        # IPython's advice is not valid in a rank
        warnings.filterwarnings("ignore", message="To exit: use 'exit', 'quit'")
        console_bars.install()
        script_launchers.install(backend)
        self._interrupts = Interrupts()
        self._prompts = RankPrompts(self.send, self._interrupts)
        self._state = ProcessState()
        gpu = torch.cuda.is_available()
        device = DeviceClock(partial(torch.cuda.Event, enable_timing=True)) if gpu else None
        chosen = backend_class(backend)
        self.recorder = Recorder(chosen.poll, self._deliver, device)
        self.recorder.on = False  # until a cell is recorded
        self.backend = chosen(self.recorder, self.send)
        self.hooks = (
            TorchHooks(self.recorder, copies=gpu),
            LoaderHooks(self.recorder),
            *self.backend.hooks,
        )
        self.cost = CellCost(0, 0, 0, None, False)
        self._names: dict[str, Any] = {}
        """Variables that every cell has."""
        self._collectives = CellCollectives(self.backend, self.recorder)
        self._sampler = LineSampler(self.recorder, self.send)
        self._profiler = Profiler(self.recorder, self.send)
        self._control = Control(
            self.send,
            recorder=self.recorder,
            collectives=self._collectives,
            interrupts=self._interrupts,
            backend=self.backend,
            sampler=self._sampler,
            prompts=self._prompts,
        )
        self._threads = CommunicationThreads()
        self._attributes = AttributeNames(shell, self.send, self._interrupts)
        self.transfers = Transfers(shell, self.send, self._interrupts)
        self._outbox = self._connect(control, timings, world_size)
        output = OutputChannel(self._outbox, lambda: self.recorder.records.iterations, world_size)
        self._capture = Capture(shell, output)
        self.backend.install()
        spawned.install()

    def move(self, control: Address, timings: Address, world_size: int) -> None:
        """Continue with another rank number, or another number of ranks."""
        if self._records is not None:
            self._records.close()
        self._outbox.close()
        self._outbox = self._connect(control, timings, world_size)
        self._capture.channel.move(self._outbox, world_size)
        _log.debug("continues as rank %d of %d", control.rank, world_size)

    def _deliver(self, recorded: Recorded) -> None:
        if self._records is not None:
            self._records.put(recorded)

    def send(self, message: Message) -> None:
        """Send a message to the kernel."""
        self._outbox.send(message)

    def _connect(self, control: Address, timings: Address, world_size: int) -> Outbox:
        if merged := os.environ.get("WORKBENCH_RECORDS"):  # the agent sends them to the kernel
            timings = timings.with_endpoint(merged)
        self._new_records = partial(
            RecordChannel,
            timings,
            self.recorder.sources,
            world_size,
            self._threads.cpu_ns,
            self.recorder.logged,
        )
        self._records = self._new_records() if self.recorder.on else None
        return Outbox(control, self._receive, name="control")

    def record(self, on: bool) -> None:
        """Turn recording on or off: install all hooks and start the sender, or undo both."""
        if on == self.recorder.on:
            return
        if on:
            self._records = self._new_records()
            self.recorder.on = True
            try:
                for hooks in self.hooks:
                    hooks.install()
            except BaseException:
                self.record(on=False)
                raise
            _log.debug("recording is on")
            return
        for hooks in reversed(self.hooks):
            hooks.remove()
        self.recorder.on = False
        if self._records is not None:
            self._records.close()
            self._records = None
        _log.debug("recording is off")

    def _receive(self, message: Message) -> None:
        """Handle a message from the kernel, in the outbox's thread."""
        if isinstance(message, ReleaseRanks | AbortInit):
            self._state.reserve.release()  # both need threads, even if a cell uses all memory
        receivers = (
            *(self.backend, self._profiler, self.transfers, self._capture.channel),
            *(self._prompts, self._control, self._attributes),
        )
        any(receiver.receive(message) for receiver in receivers)

    @neutral()
    def init_ring(self, *args: Any) -> RingCheck:
        """Form a ring with the other ranks, and set the variables that every cell has."""
        with self._state.reserve.released("forming a ring"):
            self.backend.begin_ring()
            self._threads.begin()
            formed = self.backend.init_ring(*args)
            self._threads.find()
        gpu = torch.cuda.is_available()
        # the number of the slot on this VM; unlike the local rank, it never changes
        slot = int(os.environ["WORKBENCH_PLACE"].partition(":")[2])
        device = torch.device("cuda", slot % torch.cuda.device_count()) if gpu else "cpu"
        self._names = {**self.backend.namespace(), "device": torch.device(device)}
        if gpu:
            torch.cuda.set_device(self._names["device"])
        self._shell.push(self._names, interactive=False)
        _log.debug("joined a ring")
        return formed

    @neutral()
    def shutdown_ring(self, *, peer_lost: bool) -> None:
        """Leave the ring; see `Backend.shutdown_ring`."""
        with self._state.reserve.released("leaving the ring"):
            self.backend.shutdown_ring(peer_lost=peer_lost)
        _log.debug("left the ring (peer lost: %s)", peer_lost)

    def run_cell(self, number: int, source: str, record: bool, compared: bool) -> None:
        """Run a cell, and send its result to the kernel."""
        with self._interrupts.cell_runs(number), _same_modules():
            self.record(record)
            self._restore_names()
            with self._same_waits(pause=compared and not record):
                self._run_cell(number, source)

    @contextlib.contextmanager
    def _same_waits(self, *, pause: bool) -> Iterator[None]:
        """Make the waits of the body pause as with recording if `pause` is true."""
        hooks = self.backend.waits if pause else ()
        try:
            for waits in hooks:
                waits.install()
            yield
        finally:
            for waits in hooks:
                waits.remove()

    def _restore_names(self) -> None:
        """Set again the variables that a cell has deleted, for example with ``%reset``."""
        missing = {n: value for n, value in self._names.items() if n not in self._shell.user_ns}
        if missing:
            self._shell.push(missing, interactive=False)

    def _run_cell(self, number: int, source: str) -> None:
        self.recorder.begin_cell(number)
        self.recorder.failures.clear()
        if self.recorder.on:
            for hooks in self.hooks:
                hooks.renew()
                hooks.guard.call(hooks.begin_cell)
        self._collectives.begin_cell()
        self._sampler.begin_cell(number)
        self._profiler.begin_cell()
        self.recorder.used_while_off = False
        began = perf_counter_ns()
        cpu = process_time_ns()
        thread = thread_time_ns()
        try:
            with self._prompts.installed():
                result = cells.run(
                    self._shell, number, source, self._capture, self._interrupts, self._state,
                    {**self._names, "ring": self.backend},
                )  # fmt: skip
        except BaseException as error:  # noqa: BLE001 - the kernel must always get a result
            self._state.reserve.release()
            result = cells.failed(error)
        finally:
            wall_ns = perf_counter_ns() - began
            thread_ns = thread_time_ns() - thread
            self._interrupts.end_cell()
            self._profiler.end_cell()
            for hooks in self.hooks:
                try:
                    hooks.end_cell()
                except Exception as error:  # noqa: BLE001 - the kernel must get a result
                    hooks.guard.fail(error)
            self.recorder.end_cell()
            self._sampler.end_cell()
        records = separate = 0
        if self._records is not None:
            self._records.flush()
            records = self._records.records(number)
            collectives = self._collectives.submitted()
            separate = self._records.separate_iterations(number, collectives)
        recorder = self.recorder
        iterations = recorder.records.iterations if recorder.on else None
        cpu_ns = process_time_ns() - cpu
        hooked = recorder.used_while_off
        self.cost = CellCost(wall_ns, cpu_ns, thread_ns, iterations, hooked)
        ended = CellEnded(
            cell=number,
            error=result.error,
            not_sent=result.not_sent,
            records=records,
            outstanding=self._collectives.outstanding(),
            calls=self._collectives.calls(),
            initialized=self.backend.is_initialized(),
            value=result.value,
            transports=self.backend.transports(),
            separate_iterations=separate,
            recording_failures=dict(recorder.failures),
        )
        self.send(ended)


@contextmanager
def _same_modules() -> Iterator[None]:
    """Restore this package's modules if the body has removed them.

    A second copy of them would not know that this process is a rank.
    """
    package_modules = {
        name: module for name, module in list(sys.modules.items()) if name.startswith(_PACKAGE)
    }
    try:
        yield
    finally:
        for name, module in package_modules.items():
            if sys.modules.get(name) is not module:
                sys.modules[name] = module


_PACKAGE = __name__.partition(".")[0]
_session: Session | None = None


def hello() -> RankGreeting:
    """Return the identification of this engine before it joins a cluster."""
    threads = os.environ.pop("WORKBENCH_THREADS", "")
    if threads:  # otherwise the user has set the number of threads
        torch.set_num_threads(int(threads))
    # ipyparallel has read its keys; cells and their child processes must not see them
    os.environ.pop("IPP_CONNECTION_INFO", None)
    # hide ipyparallel's options from cells that parse arguments
    del sys.argv[1:]
    return RankGreeting(
        host=socket.gethostname(),
        pid=os.getpid(),
        threads=torch.get_num_threads(),
        place=os.environ.get("WORKBENCH_PLACE", ""),
    )


def join(
    control: Address, timings: Address, world_size: int, cluster: str = "", backend: str = DEFAULT
) -> None:
    """Connect to the kernel's addresses, as a rank of the cluster with this name."""
    global _session  # noqa: PLW0603 - one process is one rank
    from IPython import get_ipython

    if _session is None:
        _session = Session(get_ipython(), control, timings, world_size, backend)
        _log.debug("joined cluster %r as rank %d of %d", cluster, control.rank, world_size)
    else:
        _session.move(control, timings, world_size)
    with contextlib.suppress(OSError):  # only the panel needs it, to show the rank's number
        register_rank(cluster, control.rank)


def _joined() -> Session:
    if _session is None:
        raise RuntimeError("This process is not a rank: it has not joined a cluster.")
    return _session


def backend() -> Backend:
    """Return the backend of this rank."""
    return _joined().backend


def ring_settings(*args: Any) -> dict[str, str]:
    """Return the settings of the backend; see `Backend.settings`."""
    return backend().settings(*args)


def init_ring(*args: Any) -> RingCheck:
    """Form a ring, with the arguments that the backend's class in the kernel sends."""
    return _joined().init_ring(*args)


def shutdown_ring(*, peer_lost: bool = False) -> None:
    """Leave the ring; see `Backend.shutdown_ring`."""
    if _session is not None:  # otherwise there is no ring to leave
        _session.shutdown_ring(peer_lost=peer_lost)


def is_joined() -> bool:
    """Return whether this process is a rank of a cluster."""
    return _session is not None


def in_ring() -> bool:
    """Return whether this rank can call collectives."""
    return _session is not None and _session.backend.is_initialized()


def idle() -> bool:
    """Return True; the answer shows that the main thread has finished earlier calls."""
    return True


def run_cell(number: int, source: str, record: bool = True, compared: bool = False) -> None:
    """Run a cell in this rank; its result is sent as `CellEnded`.

    Parameters
    ----------
    record
        Whether the cell is recorded.
    compared
        Whether the cell is compared with another run. Without recording, its waits then pause as
        with recording.
    """
    _joined().run_cell(number, source, record, compared)


def log(values: Mapping[str, Any]) -> None:
    """Log values with the current iteration; see `workbench.log`."""
    if _session is not None:
        _session.recorder.log(values)


def data(iterable: Any) -> Any:
    """Return an iterable whose batches are recorded; see `workbench.data`."""
    return iterable if _session is None else named(_session.recorder, iterable)


def cell_cost() -> CellCost:
    """Return the cost of the latest cell on this rank."""
    return _joined().cost


def transfer(step: str, *args: Any) -> Any:
    """Call the method `step` of `Transfers`."""
    return getattr(_joined().transfers, step)(*args)
