"""Tools of the tests of faults: a fault as data, a cluster of their own, and ways to wait."""

import contextlib
import inspect
import os
import signal
import threading
import time
from dataclasses import dataclass

import psutil
import pytest
from clusters import children
from combinations import BACKENDS
from timers import LIMITS_FACTOR, eventually, when

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import ClusterStopped

HANG_S = 2.0
CELL_S = 90.0 * LIMITS_FACTOR
"""What nobody frees ends only with its cell, since Horovod waits for longer in tests."""
AGENT, CONTROLLER = "workbench.agent.program", "workbench.cluster.controller"
ENDED = {
    AGENT: r"agent of this machine .*SIGKILL",
    CONTROLLER: "controller was killed by SIGKILL",
}
"""The message about either after it was killed."""
MEET = "total('met')"
USUAL = BACKENDS["horovod"]
SMALL = """
limit = psutil.Process().memory_info().vms + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
bytearray(1 << 33)
"""
HOOK = '''
"""Lets a test put code before a step of a rank's start: a file named STEP-VM-SLOT."""
import os

FOLDER = os.path.dirname(__file__)

def before(name, function):
    def wrapped(*args, **options):
        place = os.environ["WORKBENCH_PLACE"].replace(":", "-")
        path = os.path.join(FOLDER, f"{name}-{place}")
        if os.path.exists(path):
            with open(path) as file:
                source = file.read()
            os.unlink(path)
            exec("import ctypes, os, psutil, resource, signal, sys, time\\n" + source, {})
        return function(*args, **options)
    return wrapped

def change(module):
    for step in ("hello", "join", "init_ring", "shutdown_ring"):
        setattr(module, step, before(step, getattr(module, step)))
'''


@dataclass(frozen=True)
class Fault:
    """One fault of a stage: what, how it happens on rank 1, and what must be reported to the user.

    Without code it is played by the function that `by` names. It happens to a ring of each backend,
    unless `ring` is False: then it has nothing to do with the ring. If `soak`, only `make soak`
    plays it: another fault of its stage is handled in the same way.
    """

    what: str
    code: str = ""
    says: str = ""
    dead: tuple[int, ...] = ()
    by: str = ""
    ring: bool = True
    soak: bool = False

    def __str__(self) -> str:
        return self.what.replace(" ", "-")


def _cases(faults):
    """Return the cases of a stage: each fault on each backend, or on the usual one only.

    `make test` runs each fault on one backend, and the faults of a ring alternate between the
    backends. `make soak` runs the others.
    """
    ring_faults = [fault for fault in faults if fault.ring]
    cases = []
    for position, backend in enumerate(BACKENDS.values()):
        for fault in faults:
            if not fault.ring and backend is not USUAL:
                continue
            turn = ring_faults.index(fault) % len(BACKENDS) if fault.ring else position
            marks = [pytest.mark.soak] if fault.soak or turn != position else []
            cases.append(pytest.param(fault, backend, id=f"{fault}-{backend}", marks=marks))
    return cases


def case_for_each(faults, usual=""):
    """Return the test of a stage, with a case for each of its faults.

    A fault is played by the function of its file that it names, or by the `usual`
    one; that takes the fault, and fixtures, by the names of its arguments.
    """

    @pytest.mark.timeout(300, method="signal")
    @pytest.mark.parametrize(("fault", "backend"), _cases(faults))
    def test_fault(fault, backend, request):
        """The fault is named; survivors keep their variables; the way on works; nothing is left."""
        request.getfixturevalue("box").use(backend)
        function = getattr(request.module, fault.by or usual)
        names = inspect.signature(function).parameters
        function(**{name: request.getfixturevalue(name) for name in names})
        request.getfixturevalue("box").settled()

    return test_fault


def quiet(cluster, source, timeout=CELL_S, **options):
    return cluster.run(source, sink=TextSink(), timeout=timeout, **options)


def ours():
    """The agents, ranks and controllers of this process, orphans included."""
    me, found = str(os.getpid()), set()
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        mine = {AGENT, CONTROLLER} & set(words)
        if mine and me in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.add(process.pid)
    return found


def leader(module):
    """The one process of this one that runs a module; ranks and helpers are its children."""
    (process,) = children(module)
    return process.pid


def status(pid):
    """Return the state of a process, or None where it is gone."""
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return None


def alive(pid):
    """Whether a process runs: one that has ended may not have been reaped yet."""
    return status(pid) not in {None, psutil.STATUS_ZOMBIE}


def interrupt():
    """Do as Ctrl-C in the kernel does."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@contextlib.contextmanager
def bounded():
    """The body ends, and not because something in it has waited to its time limit."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < CELL_S * 2 / 3


class Box:
    """One cluster of three ranks for all tests, made when it is wanted."""

    def __init__(self, folder):
        self.folder = folder
        self.backend = USUAL
        self._cluster = None
        self._processes = 0

    @property
    def cluster(self):
        """Return the cluster, which is ready; ranks have `kept`."""
        if self._cluster is None:
            self._cluster = self.new(n=3, hang_after_s=HANG_S).start()
            quiet(self._cluster, self.setup)
            self._processes = len(ours())
        return self._cluster

    @property
    def setup(self):
        """A cell that sets `kept`, and defines the functions of `BackendCase.cells`."""
        return self.backend.cells + "kept = rank * 10"

    @property
    def ask(self):
        """A cell with `kept` and a sum over all ranks, also on new ranks."""
        return self.backend.cells + "globals().get('kept'), total()"

    def use(self, backend):
        """Have the next clusters use a backend."""
        if backend is not self.backend:
            self.close()
        self.backend = backend

    def new(self, **options):
        """Return another cluster, which is not started."""
        return wb.Cluster(backend=self.backend.name, **options)

    def put(self, step, source):
        """Have rank 1 run `source` before a step, once; return the file of it."""
        path = self.folder / f"{step}-0-1"
        partial = path.with_suffix(".new")
        partial.write_text(source)
        partial.rename(path)
        return path

    def while_in(self, step, source, action):
        """Have rank 1 run `source` before a step, and do something as soon as it does."""
        path = self.put(step, source)
        return when(lambda: not path.exists(), action)

    def close(self):
        """Stop what runs; the next who wants a cluster gets a new one."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.stop()

    def lives(self, dead=()):
        """Lost ranks are reported; `restart` replaces them; the rest is unchanged."""
        cluster = self.cluster
        if dead:
            assert cluster.state == "failed"
            assert tuple(r.rank for r in cluster.ranks if r.state == "dead") == tuple(dead)
            with pytest.raises(ClusterStopped, match="%cluster restart --ranks"):
                quiet(cluster, "1")
            cluster.restart()
        assert cluster.state == "ready", cluster.message
        found = quiet(cluster, self.ask).values
        assert found == {r: (None if r in dead else r * 10, 3.0) for r in range(3)}
        quiet(cluster, self.setup)

    def lost(self):
        """All ranks are lost: that is reported, with what to do."""
        assert self.cluster.state == "failed"
        with pytest.raises(
            ClusterStopped, match=r"with %cluster restart;|%cluster stop, and start"
        ):
            quiet(self.cluster, "1")
        with bounded():
            self.close()

    def settled(self):
        """Nothing runs but the cluster, where there is one."""
        for path in self.folder.glob("*-0-*"):
            path.unlink()
        up = 0 if self._cluster is None else self._processes
        assert eventually(lambda: len(ours()) == up), [
            (pid, status(pid), psutil.Process(pid).ppid()) for pid in ours()
        ]


@contextlib.contextmanager
def across(machines, box):
    """A rank on each of two VMs; nothing of it is left here."""
    cluster = box.new(hosts=machines.hosts(1), ssh_config=machines.ssh_config)
    before = {process.pid for process in psutil.Process().children()}
    try:
        cluster.start()
        quiet(cluster, box.setup)
        yield cluster
    finally:
        machines.mend("vm2")
        cluster.stop()
    assert eventually(lambda: {process.pid for process in psutil.Process().children()} <= before), (
        psutil.Process().children()
    )
