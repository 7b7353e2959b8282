"""The agent: a process that starts and supervises the ranks of one VM.

``python -m workbench.agent.program GRACE_S PARENT_PID [FIRST_S] [--warm DESCRIPTOR]``

It serves a Unix socket at which one kernel at a time attaches, through the relay if the
kernel is on another machine. It imports PyTorch and the backend once, and forks the ranks.
It continues when its connection is lost: a kernel that attaches receives the complete
state. It ends its ranks and itself when no kernel has been attached for the grace period,
or when its parent has ended, if it was given one. With ``--warm``, it continues in a child when
all is loaded, and the process itself becomes the kernel's warm process (`workbench.agent.warm`).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
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
    WarmProcess,
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

_PERIOD_S = 0.25
_TERMINATE_S = 3.0
_START_TOLERANCE_S = 1.0
"""Two start times of a process that differ by more belong to two processes."""
_PAUSE_S = 10.0


class AgentProcess:
    """Handles the kernel's messages until `End`, or until no kernel has been attached for long.

    Parameters
    ----------
    kernel
        The socket at which kernels attach.
    warm
        What this process becomes when all is loaded, while the agent continues in a child; None
        if it remains the agent.
    """

    def __init__(self, kernel: KernelSocket, warm: WarmProcess | None = None) -> None:
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
        """The loader's result, set before its thread has ended."""
        self._loaded: messages.Loaded | None = None
        self._to_start: list[messages.StartRank] = []
        self._history: list[messages.Started | messages.Refused | messages.Exited] = []
        """All reports on ranks, for kernels that attach later."""
        self._wakeup, self._wake = os.pipe()
        for descriptor in (self._wakeup, self._wake):
            os.set_blocking(descriptor, False)
        kernel.add_wakeup(self._wakeup)

    def run(self) -> None:
        """Serve kernels; end all ranks before returning."""
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(0))
        try:
            while not self._ending:
                for message in self._kernel.receive(_PERIOD_S):
                    self._handle(message)
                for ended in self._ranks.ended():
                    self._record(ended)
                self._start_ranks()
                while self._answers:
                    self._kernel.send(self._answers.popleft())
                if self._kernel.abandoned:
                    return
        finally:
            self._ranks.stop()
            self._stream.stop()
            self._connectivity.close()
            self._folder.remove()
            mpi_slot.remove_segments(self._kernel.path.parent)
            # the connection stays open until the process ends: the kernel waits for that
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
                self._to_start.append(message)
            case messages.StopRanks(slots):
                # ranks of these slots that have not been started yet must not start afterwards
                self._to_start = [order for order in self._to_start if order.slot not in slots]
                self._ranks.stop(slots)
            case messages.SignalRanks(number):
                self._ranks.signal(number)
            case messages.Ask():
                self._answer(message)
            case messages.End():
                self._ending = True

    def _attached(self, message: messages.Attach) -> None:
        """Send the complete state to a kernel that has attached."""
        if message.session != self._session:
            self._session, self._received = message.session, 0
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

    def _answer(self, asked: messages.Ask) -> None:
        if asked.question in self._workers:
            self._workers[asked.question].ask(asked.id)
            return
        try:
            if asked.question not in self._questions:
                raise ValueError(f"{asked.question!r}: no such question")
            answer = messages.Answer(asked.id, self._questions[asked.question](**asked.arguments))
        except Exception as error:  # noqa: BLE001 - an error is an answer, and must not end ranks
            answer = messages.Answer(asked.id, error=f"{type(error).__name__}: {error}")
        self._kernel.send(answer)
        self._kernel.restart_silence()  # a slow answer has delayed reading the kernel's messages

    def _load(self, order: messages.Load) -> None:
        """Import what the ranks need, in a thread, so that messages are still handled."""
        self._load_order = order
        os.environ.update(order.environment)
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
            sys.path.insert(0, str(Path.cwd()))  # as if Python had been started in that directory
        given = (threads, order.backend)
        self._loader = threading.Thread(target=self._import, args=given, daemon=True)
        self._loader.start()

    def _import(self, threads: int | None, backend: str) -> None:
        # PyTorch creates a million permanent objects: the collector takes 20 % of the import
        gc.disable()
        try:
            with cuda_untouched():
                versions = backends.backend_class(backend).versions()
                import ipyparallel.engine.app  # noqa: F401
                import torch

                import workbench.rank.session  # noqa: F401

                # of the first optimizer: importing it takes 1 to 8 s in each rank, 0.5 s here
                with contextlib.suppress(Exception):
                    importlib.import_module("torch._dynamo")

                versions |= {"torch": str(torch.__version__), "CUDA": torch.version.cuda or ""}
            self._load_result = messages.Loaded(versions, threads)
        except BaseException as error:  # noqa: BLE001 - a damaged installation may raise anything
            why = f"{type(error).__name__}: {error}"
            self._load_result = messages.Loaded(error=why, step="import")
        gc.freeze()
        gc.enable()
        os.write(self._wake, b"x")

    def _start_ranks(self) -> None:
        """Fork the ranks to start, once everything is loaded and no other thread runs."""
        if self._loader is not None and self._load_result is not None:
            wait_until_ended(self._loader)
            self._loader, self._loaded = None, self._load_result
            self._split()
            self._kernel.send(self._loaded)
        if self._loaded is None or self._loaded.error:
            return
        ended = self._stream.has_ended()
        if not self._to_start and not ended:
            return
        self._end_threads()
        inherited = [*self._kernel.descriptors(), self._wakeup, self._wake]
        if ended:
            with contextlib.suppress(OSError):  # no memory or too many processes: tried again
                self._stream.restart(inherited)
        while self._to_start:
            order = self._to_start.pop(0)
            try:
                if order.stream is not None:
                    with contextlib.suppress(OSError):  # the rank connects to the kernel
                        order.environment.update(self._stream.start(order.stream, inherited))
                child = self._ranks.start(order, inherited)
            except OSError as error:  # no memory or too many processes
                self._record(messages.Refused(order.slot, order.start, str(error)))
                continue
            self._record(messages.Started(order.slot, order.start, child.pid))
        for worker in self._workers.values():
            worker.resume()

    def _split(self) -> None:
        """Continue in a child, if this process is to become the warm process of the kernel."""
        warm, self._warm = self._warm, None
        assert self._loaded is not None
        if warm is None or self._loaded.error:
            return
        self._end_threads()
        inherited = [*self._kernel.descriptors(), *self._ranks.descriptors()]
        inherited += [self._wakeup, self._wake, *([] if self._lock is None else [self._lock])]
        if warm.split(self._load_order, self._loaded.threads, inherited):
            began = psutil.Process().create_time()
            self._loaded = replace(self._loaded, pid=os.getpid(), began=began)
        for worker in self._workers.values():
            worker.resume()

    def _end_threads(self) -> None:
        """End all threads, before a fork."""
        self._connectivity.close()
        for worker in self._workers.values():
            worker.pause(_PAUSE_S)

    def _report_answer(self, question: Any, answer: dict[str, Any]) -> None:
        """Queue an answer for the main loop; called in threads."""
        self._answers.append(messages.Answer(question, **answer))
        with contextlib.suppress(BlockingIOError):  # the loop is awake already
            os.write(self._wake, b"x")


def _hello(received: int) -> messages.Hello:
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
    snapshot = replace(snapshot, gpus=tuple(filter(_is_given, snapshot.gpus)))
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


def _is_given(gpu: Gpu) -> bool:
    """Return whether Slurm, or the engine that has started this agent, may use a GPU."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None or not {"SLURM_JOB_ID", GIVEN_GPUS} & set(os.environ):
        return True
    return not {str(gpu.index), str(gpu.uuid)}.isdisjoint(given.split(","))


def _retire(pid: int, began: float) -> None:
    """End an agent to which its kernel has lost the connection, if it still runs."""
    try:
        other = psutil.Process(pid)
        if abs(other.create_time() - began) > _START_TOLERANCE_S:
            return  # a different process now has this id
        other.terminate()
        try:
            other.wait(_TERMINATE_S)
        except psutil.TimeoutExpired:
            other.kill()
    except psutil.NoSuchProcess:
        return


def main() -> None:
    """Run the agent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("grace_s", type=float)
    parser.add_argument("parent", type=int)
    parser.add_argument("first_s", type=float, nargs="?")
    parser.add_argument("--warm", type=int)
    given = parser.parse_args()
    warm = None if given.warm is None else WarmProcess(given.warm)
    code = 1
    try:
        kernel = KernelSocket(given.grace_s, given.parent or None, given.first_s)
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
