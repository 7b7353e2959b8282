"""What a rank holds from joining a cluster to leaving it.

The kernel calls the functions at the end through ipyparallel, in this order:
`hello` on every engine, then `join` (channels, namespace) and `meet` (the
ring), then `run_cell` as often as it likes. `part` and `meet` again put a ring
together anew after a failure.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import socket
import threading
import time
import warnings
from functools import partial
from typing import Any

import torch
from horovod.torch import mpi_ops

from workbench.rank import cell as cells
from workbench.rank import cell_init, console_bars, process_sets
from workbench.rank.control import Control
from workbench.rank.ddp_hooks import DDPHooks
from workbench.rank.device_clock import DeviceClock
from workbench.rank.horovod_hooks import HorovodHooks, poll
from workbench.rank.interrupts import Interrupts
from workbench.rank.output import Capture, OutputChannel
from workbench.rank.process_state import ProcessState
from workbench.rank.recorder import Iteration, Outside, Recorder
from workbench.rank.records import RecordChannel
from workbench.rank.sockets import RingSockets
from workbench.rank.torch_hooks import TorchHooks
from workbench.rank.transfers import Transfers
from workbench.resources.processes import rank_registry
from workbench.wire import Address, Message, Outbox

_SHUTDOWN_S = 1.0
"""How long Horovod may take to free a rank, before the ring's sockets are broken."""
_BREAK_S = 5.0
_BREAK_PERIOD_S = 0.1
_HOROVOD_LOG = re.compile(r"Horovod could not be initialized: (?:\[[^]]*\.(?:cc|h):\d+\] )*(.*)")


class RingNotFormed(RuntimeError):
    """The ranks could not be joined in a ring; another try may succeed."""


class Session:
    """One rank of one cluster.

    Parameters
    ----------
    shell
        The engine's IPython shell, whose namespace the cells share.
    control, timings
        Where the kernel listens, for cells and for records.
    world_size
        Ranks in the cluster.
    """

    def __init__(self, shell: Any, control: Address, timings: Address, world_size: int) -> None:
        self._shell = shell
        # the engine's own would end it when its cell has ended, and not at all in a collective
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        shell.ask_exit = cells.leave
        warnings.filterwarnings("ignore", message="To exit: use 'exit', 'quit'")  # neither ends it
        console_bars.install()
        self._interrupts = Interrupts()
        self._state = ProcessState()
        gpu = torch.cuda.is_available()
        device = DeviceClock(partial(torch.cuda.Event, enable_timing=True)) if gpu else None
        self.recorder = Recorder(poll, self._deliver, device)
        torch_hooks = TorchHooks(self.recorder, copies=gpu)
        self.hooks = (torch_hooks, HorovodHooks(self.recorder), DDPHooks(self.recorder))
        self._answer = Control(
            self.send,
            recorder=self.recorder,
            interrupts=self._interrupts,
            release=_release,
            do_not_meet=_do_not_meet,
        )
        self.transfers = Transfers(shell, self.send, self._interrupts)
        self._control = self._connect(control, timings, world_size)
        output = OutputChannel(self._control, lambda: self.recorder.iterations, world_size)
        self._capture = Capture(shell, output)
        # once for all: an optimizer keeps the hooks with which it was made
        for hooks in self.hooks:
            hooks.install()

    def move(self, control: Address, timings: Address, world_size: int) -> None:
        """Go on as another rank, or among a different number of them."""
        self._records.close()
        self._control.close()
        self._control = self._connect(control, timings, world_size)
        self._capture.channel.move(self._control, world_size)

    def _deliver(self, iteration: Iteration | Outside) -> None:
        self._records.put(iteration)

    def send(self, message: Message) -> None:
        """Send a message to the kernel."""
        self._control.send(message)

    def _connect(self, control: Address, timings: Address, world_size: int) -> Outbox:
        self._records = RecordChannel(timings, world_size)
        # what a cell prints is never dropped
        return Outbox(control, self._receive, limit=None, name="control")

    def _receive(self, message: Message) -> None:
        """Handle a message of the kernel, in the channel's thread."""
        if message.kind == "init":
            cell_init.take_port(message.content)
        elif not self.transfers.receive(message) and not self._capture.channel.receive(message):
            self._answer(message)

    def run_cell(self, number: int, source: str) -> None:
        """Run a cell, and tell the kernel how it ended."""
        with self._interrupts.cell_runs(number):
            _restore_names(self._shell)
            self._run_cell(number, source)

    def _run_cell(self, number: int, source: str) -> None:
        self.recorder.begin_cell(number)
        for hooks in self.hooks:
            hooks.begin_cell()
        try:
            result = cells.run(
                self._shell, number, source, self._capture, self._interrupts, self._state
            )
        except BaseException as error:  # noqa: BLE001 - whatever it is, the kernel must hear of the end
            result = cells.failed(error)
        finally:
            self._interrupts.end_cell()
            self.hooks[0].end_cell()
            records = self.recorder.end_cell()
        self._records.flush()
        ended = {
            "cell": number,
            "error": result.error,
            "kept": result.kept,
            "records": records,
            "outstanding": self.recorder.outstanding,
            "calls": {str(number): count for number, count in self.recorder.calls.items()},
            "initialized": bool(mpi_ops.is_initialized()),
        }
        payload = () if result.value is None else (result.value,)
        self._control.send(Message("ended", ended, payload))


_session: Session | None = None
_ring = RingSockets()
_names: dict[str, Any] = {}
"""What every cell finds in its namespace."""
_shutdown = threading.Lock()
"""Horovod's shutdown joins its thread; two that join the same one wait for ever."""


def hello() -> dict[str, Any]:
    """Load all that the ring needs, and tell who is here."""
    threads = os.environ.pop("WORKBENCH_THREADS", "")
    if threads:  # else the user has chosen
        torch.set_num_threads(int(threads))
    # ipyparallel has read its keys: no cell, and no child of one, is to find them
    os.environ.pop("IPP_CONNECTION_INFO", None)
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "threads": torch.get_num_threads(),
        "place": os.environ.get("WORKBENCH_PLACE", ""),
    }


def join(
    control: dict[str, Any], timings: dict[str, Any], world_size: int, cluster: str = ""
) -> None:
    """Connect to the kernel as the rank that the addresses name, of the cluster of that name."""
    global _session  # noqa: PLW0603 - one process is one rank
    from IPython import get_ipython

    if _session is None:
        _session = Session(get_ipython(), Address(**control), Address(**timings), world_size)
    else:
        _session.move(Address(**control), Address(**timings), world_size)
    with contextlib.suppress(OSError):  # then samplers see a rank without its number
        rank_registry.register(cluster, control["rank"])


def _own_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}


def ring_settings() -> dict[str, str]:
    """Return the settings of Horovod in this rank's environment; none before its first ring.

    A cell may have changed them, and ranks that differ in some of them form no ring.
    """
    if "HOROVOD_GLOO_RENDEZVOUS_PORT" not in os.environ:
        return {}
    return _own_settings()


def meet(environment: dict[str, str], shared: dict[str, str] | None = None) -> dict[str, Any]:
    """Form the ring with the other ranks; return the sum of a collective over it.

    And whether process sets may be added to it later.

    Parameters
    ----------
    environment
        The HOROVOD_* variables of this rank; Horovod reads them at every init.
    shared
        Those of the other ranks, for one that has not set them itself.
    """
    global _ring  # noqa: PLW0603 - one process is one rank
    import horovod.torch as hvd

    os.environ.update({**(shared or {}), **_own_settings(), **environment})
    with _shutdown:  # one that is under way belongs to the ring before
        _ring = RingSockets(environment["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    if _session is not None:
        leave = partial(_break, _ring, torn=True)
        cell_init.install(_session.recorder, _ring, _session.send, leave)
    try:
        with _ring:
            _init(hvd)
            _fill_namespace(hvd)
            total = hvd.allreduce(torch.ones(1), op=hvd.Sum, name="workbench.ready")
    except BaseException as error:
        part(torn=True)  # else the next hvd.init() fails at once
        if isinstance(error, hvd.HorovodInternalError):
            raise RingNotFormed(f"the first collective failed: {error}") from None
        raise
    if _session is not None:
        process_sets.install(_session.recorder, _ring)
    return {"sum": float(total.item()), "dynamic": process_sets.dynamic()}


def _init(hvd: Any) -> None:
    """Call hvd.init(), whose own error only refers to what it has logged."""
    logged = _log_size()
    try:
        hvd.init()
    except ValueError as error:
        cause = _HOROVOD_LOG.findall(_log_since(logged))
        why = f"hvd.init() failed: {cause[-1]}" if cause else str(error)
        raise RingNotFormed(why) from None


def _log_size() -> int:
    """Return the length of the log that descriptor 2 leads to; 0 where it does not."""
    try:
        return os.fstat(2).st_size
    except OSError:
        return 0


def _log_since(size: int) -> str:
    """Return what was logged since the log had this length; empty where it cannot be read again."""
    try:
        return os.pread(2, 1 << 16, size).decode(errors="replace")
    except OSError:
        return ""


def _do_not_meet(name: str) -> None:
    """Let a ring that is being formed or left fail: a rank is missing that Gloo waits for.

    Parameters
    ----------
    name
        The ring's: the message may come when the next one is being formed. Empty for
        the ring of now, where the kernel has not formed it.
    """
    ring, deadline = _ring, time.monotonic() + _BREAK_S
    while name in {"", ring.name} and time.monotonic() < deadline:
        if not (ring.forming or _shutdown.locked()):
            return
        ring.shut_down()  # more than once: Gloo may be about to open a connection
        time.sleep(_BREAK_PERIOD_S)


def part(*, torn: bool = False) -> None:
    """Leave the ring, and make the optimizers that are left usable in the next.

    Parameters
    ----------
    torn
        A rank is gone: Horovod's shutdown would wait for it.
    """
    import horovod.torch as hvd

    if torn:
        _ring.shut_down()
    with _shutdown:
        # resets the handles' numbers too: unnamed collectives are negotiated by them,
        # and a rank that was freed has counted further than the one that failed
        hvd.shutdown()
    things = gc.get_objects()
    process_sets.end_with_ring(things)
    for thing in things:
        if _is_distributed_optimizer(thing):
            _forget_handles(thing)


def is_joined() -> bool:
    """Whether this process is a rank of a cluster."""
    return _session is not None


def idle() -> bool:
    """Return at once: it is called after what ran before has ended."""
    return True


def run_cell(number: int, source: str) -> None:
    """Run a cell in this rank; its end travels over the rank's own channel."""
    if _session is None:
        raise RuntimeError("this engine has not joined a cluster")
    _session.run_cell(number, source)


def transfer(step: str, *given: Any) -> Any:
    """Call a step of `Transfers`."""
    if _session is None:
        raise RuntimeError("this engine has not joined a cluster")
    return getattr(_session.transfers, step)(*given)


def _release(*, torn: bool) -> None:
    """Shut Horovod down beneath whoever waits in it; where that does not do, break the ring.

    ``hvd.shutdown`` would reset PyTorch's handles first, and the blocked
    caller would see a missing handle instead of a clean error.

    Parameters
    ----------
    torn
        A rank is gone: Horovod would wait for it.
    """
    # the ring of now: a thread that starts late would break the next one
    args = (_ring, torn)
    threading.Thread(target=_break, args=args, name="workbench-release", daemon=True).start()


def _break(ring: RingSockets, torn: bool) -> None:
    """Do what `_release` says, in a thread: it may take seconds."""
    if ring.forming:
        # by hvd.init() in a cell, which never returns where a shutdown follows its success at once
        _do_not_meet(ring.name)
        return
    shutdown = threading.Thread(target=_shut_down, args=(ring,), daemon=True)
    shutdown.start()
    shutdown.join(0 if torn else _SHUTDOWN_S)
    deadline = time.monotonic() + _BREAK_S
    # until Horovod's own thread has ended: whoever waits, or is about to, waits for that
    while shutdown.is_alive() and _ring is ring and time.monotonic() < deadline:
        ring.shut_down()  # more than once: Gloo may be about to use a connection
        shutdown.join(_BREAK_PERIOD_S)


def _shut_down(ring: RingSockets) -> None:
    """Shut Horovod down beneath who waits in it, unless another ring has been formed since."""
    with _shutdown:
        if _ring is ring:
            mpi_ops._basics.shutdown()


def _is_distributed_optimizer(thing: object) -> bool:
    # type(), because isinstance asks proxies for their __class__ and may run anything
    return hasattr(type(thing), "skip_synchronize") and hasattr(thing, "_allreduce_delay")


def _forget_handles(optimizer: Any) -> None:
    """Do what Horovod's own ``load_state_dict`` does: the broken step never was."""
    optimizer._handles.clear()
    optimizer._synchronized = False
    optimizer._should_synchronize = True
    for parameter in optimizer._allreduce_delay:
        optimizer._allreduce_delay[parameter] = optimizer.backward_passes_per_step
    for group in getattr(optimizer, "_group_counts", {}):
        optimizer._group_counts[group] = 0


def _fill_namespace(hvd: Any) -> None:
    """Give the cells the names that they expect."""
    from IPython import get_ipython

    gpu = torch.cuda.is_available()
    # the slot stays when ranks around this one go; the local rank does not
    slot = int(os.environ["WORKBENCH_PLACE"].partition(":")[2])
    names: dict[str, Any] = {
        "hvd": hvd,
        "rank": hvd.rank(),
        "local_rank": hvd.local_rank(),
        "world_size": hvd.size(),
        "device": torch.device("cuda", slot % torch.cuda.device_count())
        if gpu
        else torch.device("cpu"),
    }
    if gpu:
        torch.cuda.set_device(names["device"])
    shell: Any = get_ipython()
    shell.push(names, interactive=False)
    _names.update(names)


def _restore_names(shell: Any) -> None:
    """Set the names again that a cell has deleted, as ``%reset`` does; others are the user's."""
    missing = {name: value for name, value in _names.items() if name not in shell.user_ns}
    if missing:
        shell.push(missing, interactive=False)
