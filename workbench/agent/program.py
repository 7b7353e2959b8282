"""The agent: a process that starts and supervises the ranks of one VM.

``python -m workbench.agent.program GRACE_S PARENT_PID [FIRST_S] [--warm DESCRIPTOR]``

The agent serves a Unix socket. One kernel at a time attaches to it, through the relay if the
kernel is on another machine. The agent imports PyTorch and the backend once, and forks the ranks.
It continues when its connection is lost: a kernel that attaches later receives the complete
state. It ends its ranks and itself when no kernel has been attached for the grace period, or when
the process PARENT_PID has ended (0 for none). With ``--warm``, it continues in a child process once
all modules are loaded, and the first process becomes the kernel's warm process
(`workbench.agent.warm`).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from workbench import logs
from workbench._version import __version__
from workbench.agent import mpi_slot
from workbench.agent.connectivity import Connectivity, networks
from workbench.agent.folder import RankFolder, claim, remove
from workbench.agent.on_demand import (
    KernelLogs,
    OnDemandWorker,
    RasReports,
    Samples,
    Snapshots,
)
from workbench.agent.rank_processes import RankProcesses, wait_until_ended
from workbench.agent.record_stream import RecordStream
from workbench.agent.warm import (
    THREAD_VARIABLES,
    ForkServer,
    cuda_untouched,
    threads_per_rank,
)
from workbench.rank import backends
from workbench.redaction import secret_values
from workbench.wire import agent_messages as messages
from workbench.wire.foreign_engine import GIVEN_GPUS
from workbench.wire.kernel_socket import KernelSocket

if TYPE_CHECKING:
    from workbench.resources import Gpu

_log = logging.getLogger(__name__)

_POLL_S = 0.25
_MAX_TERMINATE_S = 3.0
_START_TOLERANCE_S = 1.0
"""Start times that differ by more than this belong to two processes with the same id."""
_MAX_PAUSE_S = 10.0


class AgentProcess:
    """Handles the kernel's messages until `End`, or until the grace period has passed.

    Parameters
    ----------
    kernel
        The socket to which kernels attach.
    warm
        The fork server that this process becomes once all modules are loaded, while the agent
        continues in a child process; None if this process remains the agent.
    """

    def __init__(self, kernel: KernelSocket, warm: ForkServer | None = None) -> None:
        self._kernel = kernel
        self._warm = warm
        self._lock = claim(kernel.path.parent)
        self._folder = RankFolder()
        self._ranks = RankProcesses(self._folder, kernel.path.parent)
        self._stream = RecordStream(self._folder)
        self._connectivity = Connectivity()
        self._questions: dict[str, Callable[..., Any]] = {
            "route": self._connectivity.route,
            "listen": self._connectivity.listen,
            "reach": self._connectivity.reach,
            "memory": self._ranks.memory_bytes,
            "log": self._ranks.logs,
            "clock": time.time,
            "retire": _retire,
            "slots": partial(mpi_slot.slots, kernel.path.parent),
        }
        self._workers = {
            "snapshot": OnDemandWorker(Snapshots, self._report_answer),
            "sample": OnDemandWorker(Samples, self._report_answer),
            "kernel log": OnDemandWorker(KernelLogs, self._report_answer),
            "NCCL RAS": OnDemandWorker(RasReports, self._report_answer),
        }
        self._answers: deque[messages.Answer] = deque()
        self._facts = _facts()
        self._session = ""
        self._received = 0
        self._ending = False
        self._load_order = messages.Load(0, "")
        self._loader: threading.Thread | None = None
        self._load_result: messages.Loaded | None = None
        """The result of the loader, which its thread sets before it ends."""
        self._loaded: messages.Loaded | None = None
        self._pending_starts: list[messages.StartRank] = []
        self._history: list[messages.Started | messages.Refused | messages.Exited] = []
        """All reports about ranks, for kernels that attach later."""
        self._wakeup, self._wake = os.pipe()
        for descriptor in (self._wakeup, self._wake):
            os.set_blocking(descriptor, False)
        kernel.add_wakeup(self._wakeup)

    def run(self) -> None:
        """Serve kernels, and end all ranks before returning."""
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signal_number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(signal_number, lambda *_: sys.exit(0))
        try:
            while not self._ending:
                for message in self._kernel.receive(_POLL_S):
                    self._handle(message)
                for exit_report in self._ranks.ended():
                    _log.info("Process %d has ended: %d", exit_report.pid, exit_report.code)
                    self._record(exit_report)
                self._start_ranks()
                while self._answers:
                    self._kernel.send(self._answers.popleft())
                if self._kernel.abandoned:
                    _log.info("Ending: no kernel is attached")
                    return
        finally:
            self._ranks.stop()
            self._stream.stop()
            self._connectivity.close()
            self._folder.remove()
            mpi_slot.remove_segments(self._kernel.path.parent)
            # Do not close the connection: the kernel waits until the end of the process closes it.
            remove(self._kernel.path.parent)

    def _handle(self, message: Any) -> None:
        if isinstance(message, messages.Attach):
            self._attached(message)
            return
        if isinstance(message, messages.Ping):
            self._kernel.send(messages.Pong(self._received))
            return
        self._received += 1
        match message:
            case messages.Load():
                self._load(message)
            case messages.StartRank():
                self._pending_starts.append(message)
            case messages.StopRanks(slots):
                # Ranks of these slots that have not been started yet must not start later.
                self._pending_starts = [
                    order for order in self._pending_starts if order.slot not in slots
                ]
                self._ranks.stop(slots)
            case messages.SignalRanks(number):
                self._ranks.signal(number)
            case messages.Ask():
                self._answer(message)
            case messages.End():
                self._ending = True

    def _attached(self, message: messages.Attach) -> None:
        """Send the complete state of the agent to a kernel that has attached."""
        if message.session != self._session:
            _log.info("A kernel has attached with a new session")
            self._session = message.session
            self._received = 0
        self._kernel.silence_s = message.silence_s or float("inf")
        self._kernel.send(_hello(self._received))
        self._kernel.send(self._facts)
        if self._loaded is not None:
            self._kernel.send(self._loaded)
        for report in self._history:
            self._kernel.send(report)

    def _record(self, report: messages.Started | messages.Refused | messages.Exited) -> None:
        self._history.append(report)
        self._kernel.send(report)

    def _answer(self, request: messages.Ask) -> None:
        if request.question in self._workers:
            self._workers[request.question].ask(request.id)
            return
        try:
            if request.question not in self._questions:
                raise ValueError(f"{request.question!r}: no such question")
            answer = messages.Answer(
                request.id, self._questions[request.question](**request.arguments)
            )
        except Exception as error:  # noqa: BLE001 - an error is an answer, and must not end ranks
            answer = messages.Answer(request.id, error=f"{type(error).__name__}: {error}")
        self._kernel.send(answer)
        self._kernel.restart_silence()  # reading the kernel's messages was delayed by this answer

    def _load(self, order: messages.Load) -> None:
        """Import the ranks' modules in a thread, so that messages are still handled."""
        self._load_order = order
        os.environ.update(order.environment)
        logs.set_up()
        threads = threads_per_rank(order.slots)
        if threads:
            os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
        if order.directory:
            try:
                os.chdir(order.directory)
            except OSError as error:
                self._loaded = messages.Loaded(error=str(error), step="directory")
                self._kernel.send(self._loaded)
                return
            sys.path.insert(0, str(Path.cwd()))  # as if Python had been started in the directory
        thread_arguments = (threads, order.backend)
        self._loader = threading.Thread(target=self._import, args=thread_arguments, daemon=True)
        self._loader.start()

    def _import(self, threads: int | None, backend: str) -> None:
        """Import the modules of the ranks, and store the result. Called in a thread."""
        # PyTorch creates a million permanent objects: the garbage collector would take 20 % of the
        # time of the import.
        gc.disable()
        try:
            with cuda_untouched():
                versions = backends.backend_class(backend).versions()
                import ipyparallel.engine.app  # noqa: F401
                import torch

                import workbench.rank.session  # noqa: F401

                # The first optimizer imports this module. That takes 1 to 8 s if each rank does it,
                # and 0.5 s here.
                with contextlib.suppress(Exception):
                    importlib.import_module("torch._dynamo")

                versions |= {"torch": str(torch.__version__), "CUDA": torch.version.cuda or ""}
            self._load_result = messages.Loaded(versions, threads)
        except BaseException as error:  # noqa: BLE001 - a damaged installation may raise anything
            message = f"{type(error).__name__}: {error}"
            self._load_result = messages.Loaded(error=message, step="import")
        gc.freeze()
        gc.enable()
        _log.info("Import of the ranks' modules: %s", self._load_result.error or "done")
        os.write(self._wake, b"x")

    def _start_ranks(self) -> None:
        """Fork the ranks that wait to be started, once all modules are loaded.

        No other thread may run during a fork.
        """
        if self._loader is not None and self._load_result is not None:
            wait_until_ended(self._loader)
            self._loader = None
            self._loaded = self._load_result
            self._become_warm_process()
            self._kernel.send(self._loaded)
        if self._loaded is None or self._loaded.error:
            return
        stream_has_ended = self._stream.has_ended()
        if not self._pending_starts and not stream_has_ended:
            return
        self._end_threads()
        inherited = [*self._kernel.descriptors(), self._wakeup, self._wake]
        if stream_has_ended:
            with contextlib.suppress(OSError):  # out of memory or processes; tried again later
                self._stream.restart(inherited)
        while self._pending_starts:
            order = self._pending_starts.pop(0)
            try:
                if order.stream is not None:
                    # If this fails, the rank connects to the kernel itself.
                    with contextlib.suppress(OSError):
                        order.environment.update(self._stream.start(order.stream, inherited))
                child = self._ranks.start(order, inherited)
            except OSError as error:  # out of memory or processes
                _log.info("Cannot fork the rank of slot %d: %s", order.slot, error)
                self._record(messages.Refused(order.slot, order.start, str(error)))
                continue
            _log.info("Forked the rank of slot %d: process %d", order.slot, child.pid)
            self._record(messages.Started(order.slot, order.start, child.pid))
        for worker in self._workers.values():
            worker.resume()

    def _become_warm_process(self) -> None:
        """Continue in a child process, if this process is to become the kernel's warm process."""
        warm = self._warm
        self._warm = None
        assert self._loaded is not None
        if warm is None or self._loaded.error:
            return
        self._end_threads()
        inherited = [*self._kernel.descriptors(), *self._ranks.descriptors()]
        inherited += [self._wakeup, self._wake, *([] if self._lock is None else [self._lock])]
        if warm.fork_agent(self._load_order, self._loaded.threads, inherited):
            began = psutil.Process().create_time()
            self._loaded = replace(self._loaded, pid=os.getpid(), began=began)
        for worker in self._workers.values():
            worker.resume()

    def _end_threads(self) -> None:
        """End all threads before a fork."""
        self._connectivity.close()
        for worker in self._workers.values():
            worker.pause(_MAX_PAUSE_S)

    def _report_answer(self, question: Any, answer: dict[str, Any]) -> None:
        """Queue an answer for the main loop. Called in threads."""
        self._answers.append(messages.Answer(question, **answer))
        with contextlib.suppress(BlockingIOError):  # the loop is awake already
            os.write(self._wake, b"x")


def _hello(received: int) -> messages.Hello:
    """Return the message that identifies this agent."""
    return messages.Hello(
        received=received,
        protocol=messages.PROTOCOL,
        version=__version__,
        python=".".join(map(str, sys.version_info[:3])),
        host=socket.gethostname(),
        pid=os.getpid(),
        began=psutil.Process().create_time(),
        connection=os.environ.get("SSH_CONNECTION", ""),
    )


def _facts() -> messages.Facts:
    """Return the facts about this VM."""
    from workbench.resources import Unknown, take_snapshot
    from workbench.resources.host.machine import machine_identity
    from workbench.resources.numa import cores_of_nodes, numa_of

    snapshot = take_snapshot()
    snapshot = replace(snapshot, gpus=tuple(filter(_is_assigned, snapshot.gpus)))
    machine = machine_identity()
    return messages.Facts(
        machine=None if isinstance(machine, Unknown) else machine,
        snapshot=snapshot.to_plain(),
        numa_of=numa_of(gpu.pci_address for gpu in snapshot.gpus),
        cores_of=cores_of_nodes(),
        cores=sorted(os.sched_getaffinity(0)),
        networks=networks(),
        secrets=sorted(secret_values(os.environ)),
    )


def _is_assigned(gpu: Gpu) -> bool:
    """Return whether this agent may use a GPU.

    Slurm, or the engine that has started this agent, may restrict the agent to some GPUs.
    """
    visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible_gpus is None or not {"SLURM_JOB_ID", GIVEN_GPUS} & set(os.environ):
        return True
    return not {str(gpu.index), str(gpu.uuid)}.isdisjoint(visible_gpus.split(","))


def _retire(pid: int, began: float) -> None:
    """End another agent that still runs although its kernel has lost the connection to it.

    `began` is the start time of its process in seconds since the epoch.
    """
    try:
        agent = psutil.Process(pid)
        if abs(agent.create_time() - began) > _START_TOLERANCE_S:
            return  # another process has this id now
        _log.info("Ending process %d: its kernel has lost the connection to it", pid)
        agent.terminate()
        try:
            agent.wait(_MAX_TERMINATE_S)
        except psutil.TimeoutExpired:
            agent.kill()
    except psutil.NoSuchProcess:
        return


def main() -> None:
    """Run the agent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("grace_s", type=float)
    parser.add_argument("parent", type=int)
    parser.add_argument("first_s", type=float, nargs="?")
    parser.add_argument("--warm", type=int)
    arguments = parser.parse_args()
    warm = None if arguments.warm is None else ForkServer(arguments.warm)
    code = 1
    try:
        kernel = KernelSocket(arguments.grace_s, arguments.parent or None, arguments.first_s)
        with contextlib.suppress(SystemExit):
            AgentProcess(kernel, warm).run()
        code = 0
    except BaseException:  # noqa: BLE001 - any error is written to the log
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # without the slow finalization of all imported modules


if __name__ == "__main__":
    main()
