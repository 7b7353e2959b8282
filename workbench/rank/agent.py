"""The process that brings up the ranks of one VM, and watches them.

``python -m workbench.rank.agent [PARENT_PID]``

The kernel starts one per VM, as a child or over ssh, and talks to it in lines
of JSON (`wire.lines`): orders on its standard input, reports on its standard
output. It loads PyTorch and Horovod once and forks the ranks, which need not
load them again. When its input ends, the kernel is gone: it ends its ranks.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import workbench
from workbench.rank.aside import Aside, Samples, Snapshots
from workbench.rank.children import Children
from workbench.rank.folder import RankFolder
from workbench.rank.reach import Reach, networks
from workbench.wire.lines import PROTOCOL, LineReader, encode_line

_PERIOD_S = 0.25
_RETIRE_S = 3.0
_SAME_S = 1.0
_HALT_S = 10.0
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def threads_per_rank(slots: int) -> int | None:
    """Return the threads that let ranks share the cores; None where the user has chosen."""
    if any(name in os.environ for name in _THREAD_VARIABLES):
        return None
    return max(1, len(os.sched_getaffinity(0)) // slots)


class Agent:
    """Obeys the kernel until its input ends.

    Parameters
    ----------
    orders, reports
        Descriptors to read and to write.
    parent
        Process whose end is the kernel's, where a pipe cannot tell; None over ssh.
    """

    def __init__(self, orders: int, reports: int, parent: int | None) -> None:
        self._orders = orders
        self._reports = reports
        self._parent = parent
        self._folder = RankFolder()
        self._children = Children(self._folder)
        self._reach = Reach()
        self._questions: dict[str, Callable[..., Any]] = {
            "route": self._reach.route,
            "listen": self._reach.listen,
            "reach": self._reach.reach,
            "memory": self._children.memory_bytes,
            "clock": time.time,
            "retire": _retire,
        }
        self._asides = {
            "snapshot": Aside(Snapshots, functools.partial(self._tell, "snapshot")),
            "sample": Aside(Samples, functools.partial(self._tell, "sample")),
        }
        self._told: deque[tuple[str, dict[str, Any]]] = deque()
        self._loader: threading.Thread | None = None
        self._loaded: dict[str, Any] | None = None
        self._waiting: list[dict[str, Any]] = []
        self._silence_s = float("inf")
        self._heard = time.monotonic()
        self._wake, self._awakened = os.pipe()
        for descriptor in (self._wake, self._awakened, orders):
            os.set_blocking(descriptor, False)

    def run(self) -> None:
        """Serve; returns when the kernel is gone, with every rank ended."""
        signal.set_wakeup_fd(self._awakened)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(0))
        try:
            self._report("hello", _hello())
            self._report("facts", _facts())
            self._serve()
        except BrokenPipeError:
            pass  # nobody listens any more
        finally:
            self._children.stop()
            self._reach.close()
            self._folder.remove()

    def _serve(self) -> None:
        reader = LineReader()
        with selectors.DefaultSelector() as selector:
            selector.register(self._orders, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(_PERIOD_S)}
                if self._wake in ready:
                    os.read(self._wake, 4096)
                if self._orders in ready:
                    data = os.read(self._orders, 1 << 16)
                    if not data:
                        return
                    self._heard = time.monotonic()
                    for kind, content in reader.feed(data):
                        self._obey(kind, content)
                for ended in self._children.ended():
                    self._report("exited", ended)
                self._start_waiting()
                while self._told:
                    self._report(*self._told.popleft())
                if self._parent is not None and os.getppid() != self._parent:
                    return
                if time.monotonic() - self._heard > self._silence_s:
                    return

    def _obey(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "load":
            self._load(content)
        elif kind == "start":
            self._waiting.append(content)
        elif kind == "stop":
            slots = content.get("slots")
            # what was ordered before and has not been started yet must not come afterwards
            self._waiting = [
                order for order in self._waiting if slots is not None and order["slot"] not in slots
            ]
            self._children.stop(slots)
            self._report("stopped", {"slots": content.get("slots")})
        elif kind == "signal":
            self._children.signal(content["number"])
        elif kind == "end":
            return  # the input ends next
        elif kind == "ping":
            self._report("pong", {})
        elif kind in self._asides:
            self._asides[kind].ask(content.get("id"))
        elif kind in self._questions:
            try:
                told = {"answer": self._questions[kind](**content.get("of", {}))}
            except Exception as error:  # noqa: BLE001 - a question must not end the ranks
                told = {"error": f"{type(error).__name__}: {error}"}
            self._report(kind, {"id": content.get("id"), **told})
            self._heard = time.monotonic()  # a slow answer is no silence of the kernel's
        else:
            self._report("unknown", {"kind": kind})

    def _load(self, content: dict[str, Any]) -> None:
        """Import what the ranks need, in a thread: orders must still be heard."""
        self._silence_s = content.get("silence_s") or float("inf")
        os.environ.update(content["environment"])
        threads = threads_per_rank(content["slots"])
        if threads:
            os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
        if content.get("directory"):
            try:
                os.chdir(content["directory"])
            except OSError as error:
                self._report("loaded", {"error": str(error), "step": "directory"})
                return
            sys.path.insert(0, str(Path.cwd()))  # as if Python had been started there
        self._loader = threading.Thread(target=self._import, args=(threads,), daemon=True)
        self._loader.start()

    def _import(self, threads: int | None) -> None:
        # PyTorch makes a million objects that all stay: collecting is a fifth of its import
        gc.disable()
        try:
            import horovod
            import horovod.torch
            import ipyparallel.engine.app  # noqa: F401
            import torch

            import workbench.rank.session  # noqa: F401

            # the first optimizer needs it: 1 to 8 s in each rank, half a second here
            with contextlib.suppress(Exception):
                importlib.import_module("torch._dynamo")

            found: dict[str, Any] = {
                "torch": torch.__version__,
                "horovod": horovod.__version__,
                "cuda": torch.version.cuda or "",
                "threads": threads,
            }
        except BaseException as error:  # noqa: BLE001 - a broken installation may raise anything
            found = {"error": f"{type(error).__name__}: {error}", "step": "import"}
        gc.freeze()
        gc.enable()
        self._loaded = found
        os.write(self._awakened, b"x")

    def _start_waiting(self) -> None:
        """Fork what is to be started, once all is loaded and no thread runs here."""
        if self._loader is not None and self._loaded is not None:
            self._loader.join()
            self._loader = None
            self._report("loaded", self._loaded)
        if self._loaded is None or "error" in self._loaded:
            return
        if not self._waiting:
            return
        self._reach.close()  # a process is best forked with one thread only
        for aside in self._asides.values():
            aside.halt(_HALT_S)
        while self._waiting:
            order = self._waiting.pop(0)
            which = {"slot": order["slot"], "start": order.get("start")}
            inherited = [self._orders, self._reports, self._wake, self._awakened]
            try:
                child = self._children.start(order, inherited)
            except OSError as error:  # no memory, or too many processes
                self._report("refused", {**which, "why": str(error)})
                continue
            self._report("started", {**which, "pid": child.pid})
        for aside in self._asides.values():
            aside.go_on()

    def _tell(self, kind: str, question: Any, told: dict[str, Any]) -> None:
        """Have the loop report an answer; called in threads."""
        self._told.append((kind, {"id": question, **told}))
        with contextlib.suppress(BlockingIOError):  # it is awake as it is
            os.write(self._awakened, b"x")

    def _report(self, kind: str, content: dict[str, Any]) -> None:
        data = encode_line(kind, content)
        while data:
            data = data[os.write(self._reports, data) :]


def _hello() -> dict[str, Any]:
    """Tell who answers, before anything slow is loaded."""
    return {
        "protocol": PROTOCOL,
        "version": workbench.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "began": psutil.Process().create_time(),
        "connection": os.environ.get("SSH_CONNECTION", ""),
    }


def _facts() -> dict[str, Any]:
    """Return what this VM has."""
    from workbench.resources import Unknown, take_snapshot
    from workbench.resources.host.identity import machine_identity
    from workbench.resources.host.numa import cores_of_nodes, numa_of

    snapshot = take_snapshot()
    machine = machine_identity()
    return {
        "machine": None if isinstance(machine, Unknown) else machine,
        "snapshot": snapshot.to_plain(),
        "numa_of": numa_of(gpu.pci_address for gpu in snapshot.gpus),
        "cores_of": cores_of_nodes(),
        "cores": sorted(os.sched_getaffinity(0)),
        "networks": networks(),
    }


def _retire(pid: int, began: float) -> None:
    """End an agent whose kernel has lost it, and with it its ranks; it may be gone already."""
    try:
        other = psutil.Process(pid)
        if abs(other.create_time() - began) > _SAME_S:
            return  # the number is another process's by now
        other.terminate()
        try:
            other.wait(_RETIRE_S)
        except psutil.TimeoutExpired:
            other.kill()
    except psutil.NoSuchProcess:
        return


def main() -> None:
    """Serve the kernel that started this process."""
    reports = os.dup(1)
    os.dup2(2, 1)  # what imports print is no report
    os.set_inheritable(reports, False)
    parent = int(sys.argv[1]) if len(sys.argv) > 1 else None
    Agent(os.dup(0), reports, parent).run()


if __name__ == "__main__":
    main()
