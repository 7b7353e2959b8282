"""What goes wrong, at each stage of a cluster: it is named, what can live on does, nothing stays.

`FAULTS` lists them all. A row with `code` is played by one of the functions
beside `PLAYS`; the others have a function of their own below, named by `by`.
"""

import contextlib
import os
import re
import resource
import signal
import subprocess
import textwrap
import threading
import time
from dataclasses import dataclass

import psutil
import pytest
from timers import later

import workbench as wb
from workbench.cluster import Kept, TextSink
from workbench.errors import (
    CellInterrupted,
    CellTimeout,
    ClusterStopped,
    RanksFailed,
    StartFailed,
)
from workbench.vms import vms, why_not

HANG_S = 2.0
SMALL = """
limit = psutil.Process().memory_info().vms + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
bytearray(1 << 33)
"""
FEW = """
opened, limit = len(os.listdir('/proc/self/fd')), resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 2, limit[1]))
"""
TAKEN = """
opened, limit = [], resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (512, limit[1]))
try:
    while True: opened.append(os.open(os.devnull, os.O_RDONLY))
finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    for descriptor in opened: os.close(descriptor)
"""
MUTE = """
class Mute(Exception):
    def __str__(self): raise OSError('mute')
raise Mute
"""


@dataclass(frozen=True)
class Fault:
    """One fault: when, what, how rank 1 comes to it, and what the user must be told."""

    stage: str
    what: str
    code: str = ""
    says: str = ""
    dead: tuple[int, ...] = ()
    by: str = ""

    def __str__(self) -> str:
        return f"{self.stage} {self.what}".replace(" ", "-")


START, INIT, RING, IDLE, STOP = (
    "while starting",
    "before init",
    "in a collective",
    "between cells",
    "while stopping",
)
FAULTS = (
    Fault(START, "a rank raises", "raise ValueError('boom')", "ValueError.*boom"),
    Fault(START, "a rank is SIGKILLed", "os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    Fault(START, "a rank segfaults", "ctypes.string_at(0)", "killed by SIGSEGV"),
    Fault(START, "a rank calls os._exit", "os._exit(7)", "exit status 7"),
    Fault(START, "the agent is killed", "os.kill(os.getppid(), 9)", "agent of .*SIGKILL"),
    Fault(START, "a rank is SIGSTOPped for a while", by="stopped_while_starting"),
    Fault(START, "the controller is killed", by="controller_killed_while_starting"),
    Fault(START, "the kernel is interrupted", by="interrupted_while_starting"),
    Fault(START, "the disk is full", by="full_disk_while_starting"),
    Fault(INIT, "a rank raises", "raise ValueError('boom')", "ValueError.*boom"),
    Fault(INIT, "a rank is SIGKILLed", "os.kill(os.getpid(), 9)", "killed by SIGKILL", (1,)),
    Fault(INIT, "a rank segfaults", "ctypes.string_at(0)", "killed by SIGSEGV", (1,)),
    Fault(INIT, "a rank calls os._exit", "os._exit(7)", "exit status 7", (1,)),
    Fault(INIT, "a rank calls sys.exit", "sys.exit(8)", "SystemExit.*8"),
    Fault(INIT, "a rank raises KeyboardInterrupt", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    Fault(INIT, "a rank has no memory left", SMALL, "MemoryError"),
    Fault(INIT, "a rank has no descriptor left", FEW, "hvd.init.*Too many open files"),
    Fault(INIT, "a rank is SIGSTOPped for a while", by="stopped_before_init"),
    Fault(INIT, "the kernel is interrupted", by="interrupted_before_init"),
    Fault(INIT, "the agent is killed", by="agent_killed_before_init"),
    Fault(INIT, "the controller is killed", by="controller_killed_before_init"),
    Fault(RING, "a rank raises", "raise ValueError('boom')", "ValueError: boom"),
    Fault(RING, "a rank is SIGKILLed", "os.kill(os.getpid(), 9)", "killed by SIGKILL", (1,)),
    Fault(RING, "a rank segfaults", "ctypes.string_at(0)", "killed by SIGSEGV", (1,)),
    Fault(RING, "a rank calls os._exit", "os._exit(7)", "exit status 7", (1,)),
    Fault(RING, "a rank calls sys.exit", "sys.exit(8)", "SystemExit"),
    Fault(RING, "a rank raises KeyboardInterrupt", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    Fault(RING, "a rank has no memory left", SMALL, "MemoryError"),
    Fault(RING, "a rank has no descriptor left", TAKEN, "Too many open files"),
    Fault(RING, "a rank raises what has no text", MUTE, "Mute"),
    Fault(RING, "a rank leaves the ring", "hvd.shutdown(); 1/0", "ZeroDivisionError"),
    Fault(RING, "a full disk", by="full_disk_in_a_cell"),
    Fault(RING, "a rank is SIGSTOPped for a while", by="stopped_in_a_collective"),
    Fault(RING, "a thread of a waiting rank segfaults", by="thread_segfaults_in_a_collective"),
    Fault(RING, "a thread of a waiting rank raises", by="thread_raises_in_a_collective"),
    Fault(RING, "the agent is killed", by="agent_killed_in_a_collective"),
    Fault(RING, "the controller is killed", by="controller_killed_in_a_collective"),
    Fault(RING, "the kernel is interrupted", by="interrupted_in_a_collective"),
    Fault(RING, "names differ", by="names_differ"),
    Fault(RING, "shapes differ", by="shapes_differ"),
    Fault(RING, "dtypes differ", by="dtypes_differ"),
    Fault(RING, "batch counts differ", by="batch_counts_differ"),
    Fault(RING, "a rank holds the GIL", by="gil_held"),
    Fault(RING, "a link is cut for two seconds", by="link_cut_and_mended"),
    Fault(IDLE, "a rank is SIGKILLed", by="killed_while_idle"),
    Fault(IDLE, "a rank segfaults", by="segfaults_while_idle"),
    Fault(IDLE, "a rank is SIGSTOPped for a while", by="stopped_while_idle"),
    Fault(IDLE, "the agent is killed", by="agent_killed_while_idle"),
    Fault(IDLE, "the controller is killed", by="controller_killed_while_idle"),
    Fault(IDLE, "a rank is replaced in a directory that is gone", by="directory_gone"),
    Fault(IDLE, "Horovod was shut down", by="shut_down"),
    Fault(IDLE, "descriptor 1 was closed", by="descriptor_1_closed"),
    Fault(IDLE, "hvd was deleted", by="hvd_deleted"),
    Fault(IDLE, "sys.stdout was replaced", by="stdout_replaced"),
    Fault(IDLE, "a value cannot be pickled", by="value_not_pickled"),
    Fault(IDLE, "a value cannot be unpickled", by="value_not_unpickled"),
    Fault(IDLE, "a value exits when unpickled", by="value_exits_when_unpickled"),
    Fault(IDLE, "a rank prints 20 MB", by="much_printed"),
    Fault(IDLE, "a VM is cut off for good", by="vm_cut_while_idle"),
    Fault(STOP, "a child lives on", by="child_lives_on"),
    Fault(STOP, "a rank raises", by="raises_while_stopping"),
    Fault(STOP, "a rank is SIGSTOPped", by="stopped_while_stopping"),
    Fault(STOP, "a rank ignores it", by="ignores_the_stop"),
    Fault(STOP, "the agent is killed", by="agent_killed_while_stopping"),
    Fault(STOP, "the agent is killed and a rank SIGSTOPped", by="agent_killed_rank_stopped"),
    Fault(STOP, "the agent is SIGSTOPped", by="agent_stopped_while_stopping"),
    Fault(STOP, "the controller is SIGSTOPped", by="controller_stopped_while_stopping"),
    Fault(STOP, "the kernel is interrupted", by="interrupted_while_stopping"),
    Fault(STOP, "it is stopped twice at once", by="stopped_twice_at_once"),
    Fault(STOP, "a VM is cut off", by="vm_cut_while_stopping"),
)


@pytest.mark.timeout(60, method="signal")
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault(fault, box, request):
    """The fault is named; survivors keep their variables; the way on works; nothing is left."""
    if fault.by:
        play = globals()[fault.by]
        names = play.__code__.co_varnames[: play.__code__.co_argcount]
        play(*(box if name == "box" else request.getfixturevalue(name) for name in names))
    else:
        PLAYS[fault.stage](box, fault)
    box.settled()


# what the tests share

SETUP = """
import ctypes, os, psutil, resource, signal, sys, threading, time
import torch
import horovod.torch as hvd
kept = rank * 10
"""
ASK = """
import torch, horovod.torch as hvd
(globals().get('kept'), float(hvd.allreduce(torch.ones(1), op=hvd.Sum)))
"""
MEET = "hvd.allreduce(torch.ones(1), name='met')"
HOOK = '''
"""Lets a test put code before a step of a rank's start: a file named STEP-VM-SLOT."""
import importlib.util, os, sys

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

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "workbench.rank.session":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            for step in ("hello", "join", "meet", "part"):
                setattr(module, step, before(step, getattr(module, step)))
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
'''


def quiet(cluster, source, timeout=20.0, **options):
    return cluster.run(source, sink=TextSink(), timeout=timeout, **options)


def ours():
    """The agents, ranks and controllers of this process, orphans included."""
    me, found = str(os.getpid()), set()
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        mine = {"workbench.rank.agent", "workbench.cluster.controller"} & set(words)
        if mine and me in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.add(process.pid)
    return found


def leader(module):
    """The one process of this one that runs a module; ranks and helpers are its children."""
    (pid,) = [
        process.pid
        for process in psutil.Process().children()
        if module in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    ]
    return pid


def within(seconds, reached):
    """Whether something comes true within some seconds."""
    deadline = time.monotonic() + seconds
    while not (done := reached()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return done


def status(pid):
    """What a process is doing, or None where it is gone."""
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


def when(reached, action):
    """Do something as soon as something has come true."""

    def follow():
        if within(20, reached):
            action()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def bounded(seconds):
    """The body takes no longer."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


class Box:
    """One cluster of three ranks for all tests, made when it is wanted."""

    def __init__(self, folder):
        self.folder = folder
        self._cluster = None
        self._processes = 0

    @property
    def cluster(self):
        """The cluster, which is ready; ranks hold `kept`."""
        if self._cluster is None:
            self._cluster = wb.Cluster(n=3, hang_after_s=HANG_S, start_timeout_s=20).start()
            quiet(self._cluster, SETUP)
            self._processes = len(ours())
        return self._cluster

    def pid_of(self, module):
        """The agent or the controller."""
        assert self.cluster.state == "ready"
        return leader(module)

    @property
    def agent(self):
        return self.pid_of("workbench.rank.agent")

    @property
    def controller(self):
        return self.pid_of("workbench.cluster.controller")

    def put(self, step, source, slot=1):
        """Have the rank of a slot run `source` before a step, once; return the file of it."""
        path = self.folder / f"{step}-0-{slot}"
        partial = path.with_suffix(".new")
        partial.write_text(source)
        partial.rename(path)
        return path

    def close(self):
        """Stop what runs; the next who wants a cluster gets a new one."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.stop()

    def lives(self, dead=()):
        """Those that are lost are told; `restart` helps; the rest is as before."""
        cluster = self.cluster
        if dead:
            assert cluster.state == "failed"
            assert tuple(r.rank for r in cluster.ranks if r.state == "dead") == tuple(dead)
            with pytest.raises(ClusterStopped, match="%cluster restart --ranks"):
                quiet(cluster, "1")
            cluster.restart()
        assert cluster.state == "ready", cluster.message
        found = quiet(cluster, ASK).values
        assert found == {r: (None if r in dead else r * 10, 3.0) for r in range(3)}
        quiet(cluster, SETUP)

    def lost(self):
        """All ranks are lost: that is told, and what to do."""
        assert self.cluster.state == "failed"
        with pytest.raises(ClusterStopped, match="%cluster stop, %cluster start"):
            quiet(self.cluster, "1")
        with bounded(10):
            self.close()

    def settled(self):
        """Nothing runs but the cluster, where there is one."""
        for path in self.folder.glob("*-0-*"):
            path.unlink()
        up = 0 if self._cluster is None else self._processes
        assert within(5, lambda: len(ours()) == up), [
            (pid, status(pid), psutil.Process(pid).ppid()) for pid in ours()
        ]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hook")
    (folder / "sitecustomize.py").write_text(HOOK)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), before]))
    found = Box(folder)
    try:
        yield found
    finally:
        found.close()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    assert within(5, lambda: not ours())


@pytest.fixture
def box(shared):
    """What the tests share; what a failed test leaves is ended here."""
    try:
        yield shared
    finally:
        cluster = shared._cluster
        if cluster is not None and (cluster.state != "ready" or len(ours()) != shared._processes):
            shared.close()
        if shared._cluster is None:
            for pid in ours():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def machines():
    """Two VMs."""
    if why_not() is not None:
        pytest.skip(str(why_not()))
    with vms(2, gbps=1.0) as found:
        yield found


# while starting


@contextlib.contextmanager
def starting(box):
    """A cluster that is not started yet, with no other beside it; the start fails."""
    box.close()
    cluster = wb.Cluster(n=2)
    try:
        with bounded(25):
            yield cluster
        assert cluster.state == "stopped"
        assert within(5, lambda: not ours())
    finally:
        cluster.stop()


def start_fails(box, fault):
    with starting(box) as cluster:
        box.put("hello", fault.code)
        with pytest.raises(StartFailed, match=rf"(?s){fault.says}"):
            cluster.start()


def stopped_while_starting(box):
    box.close()
    box.put("hello", "os.kill(os.getpid(), signal.SIGSTOP)")
    stopped = []

    def asleep():
        stopped[:] = [pid for pid in ours() if status(pid) == psutil.STATUS_STOPPED]
        return stopped

    waiter = when(asleep, lambda: (time.sleep(1), os.kill(stopped[0], signal.SIGCONT)))
    with bounded(25), wb.Cluster(n=2) as cluster:
        assert quiet(cluster, "rank").values == {0: 0, 1: 1}
    waiter.join()
    assert stopped


def controller_killed_while_starting(box):
    with starting(box) as cluster:
        path = box.put("hello", "time.sleep(5)")

        def kill():
            os.kill(leader("workbench.cluster.controller"), signal.SIGKILL)

        when(lambda: not path.exists(), kill)
        with pytest.raises(StartFailed, match="controller was killed by SIGKILL"):
            cluster.start()


def interrupted_while_starting(box):
    for delay in (0.1, 1.0):
        with starting(box) as cluster, later(delay, interrupt), pytest.raises(KeyboardInterrupt):
            cluster.start()
    with starting(box) as cluster:
        path = box.put("meet", "time.sleep(5)")
        when(lambda: not path.exists(), interrupt)
        with pytest.raises(KeyboardInterrupt):
            cluster.start()


@contextlib.contextmanager
def small_disk(folder):
    """A file system of 64 KB."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a file system")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "small", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def full_disk_while_starting(box, tmp_path, monkeypatch):
    """The agent's own folder: a new rank says so or does without, and later ones start."""
    box.close()
    with small_disk(tmp_path / "disk") as folder:
        monkeypatch.setenv("TMPDIR", str(folder))
        with wb.Cluster(n=2) as cluster:
            quiet(cluster, SETUP)
            assert list(folder.glob("workbench-rank-*"))
            full = folder / "full"
            with contextlib.suppress(OSError), full.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            told = "No space left on device"
            with bounded(25):
                try:
                    cluster.restart([1])
                except StartFailed as error:
                    told = str(error)
            assert "No space left on device" in told
            full.unlink()
            cluster.restart([1])
            assert quiet(cluster, ASK).values == {0: (0, 2.0), 1: (None, 2.0)}


def init_fails(box, fault):
    """Those that wait in hvd.init() for a new rank are freed, and hold what they held."""
    cluster = box.cluster
    box.put("meet", fault.code)
    with bounded(10), pytest.raises(StartFailed, match=rf"(?s){fault.says}"):
        cluster.restart([1])
    assert cluster.state == "failed"
    assert tuple(r.rank for r in cluster.ranks if r.state == "dead") == fault.dead
    with pytest.raises(ClusterStopped, match="%cluster restart --ranks"):
        quiet(cluster, "1")
    cluster.restart([1])
    quiet(cluster, "kept = 10", ranks=[1])
    box.lives()


def stopped_before_init(box):
    cluster = box.cluster
    path = box.put("meet", "os.kill(os.getpid(), signal.SIGSTOP)")

    def go_on():
        time.sleep(1)
        (pid,) = [pid for pid in ours() if status(pid) == psutil.STATUS_STOPPED]
        os.kill(pid, signal.SIGCONT)

    waiter = when(lambda: not path.exists(), go_on)
    with bounded(20):
        cluster.restart([1])
    waiter.join()
    quiet(cluster, "kept = 10", ranks=[1])
    box.lives()


def interrupted_before_init(box):
    cluster = box.cluster
    path = box.put("meet", "time.sleep(1)")
    when(lambda: not path.exists(), interrupt)
    with bounded(20), pytest.raises(KeyboardInterrupt):
        cluster.restart([1])
    quiet(cluster, "kept = 10", ranks=[1])
    box.lives()


def agent_killed_before_init(box):
    cluster, agent = box.cluster, box.agent
    path = box.put("meet", "time.sleep(5)")
    when(lambda: not path.exists(), lambda: os.kill(agent, signal.SIGKILL))
    with bounded(20), pytest.raises(StartFailed, match=r"agent of this machine .*SIGKILL"):
        cluster.restart([1])
    box.lost()


def controller_killed_before_init(box):
    cluster, controller = box.cluster, box.controller
    path = box.put("meet", "time.sleep(5)")
    when(lambda: not path.exists(), lambda: os.kill(controller, signal.SIGKILL))
    with bounded(20), pytest.raises(StartFailed, match="controller was killed by SIGKILL"):
        cluster.restart([1])
    box.lost()


# in a collective: two ranks wait in it when the third fails


def cell_fails(box, fault):
    source = f"if rank == 1:\n    time.sleep(0.3)\n{textwrap.indent(fault.code, '    ')}\n{MEET}"
    with bounded(15), pytest.raises(RanksFailed, match=rf"(?s){fault.says}") as caught:
        quiet(box.cluster, source)
    assert list(caught.value.errors) == [1]
    assert "[ranks 0,2] freed" in str(caught.value)
    box.lives(fault.dead)
    quiet(box.cluster, "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))")


PLAYS = {START: start_fails, INIT: init_fails, RING: cell_fails}


def full_disk_in_a_cell(box, tmp_path):
    with small_disk(tmp_path / "disk") as folder:
        source = f"""
before = os.getcwd()
try:
    if rank == 1:
        os.chdir({str(folder)!r})
        with open("checkpoint.pt", "wb") as file:
            torch.save(torch.ones(1 << 20), file)
    {MEET}
finally:
    os.chdir(before)
"""
        with pytest.raises(RanksFailed, match=r"No space left|PytorchStreamWriter|write") as caught:
            quiet(box.cluster, source)
        assert list(caught.value.errors) == [1]
        with pytest.raises(RanksFailed, match="No space left on device"):
            quiet(box.cluster, f"open({str(folder / 'x')!r}, 'w').write('x' * (1 << 20))")
    box.lives()


def stopped_in_a_collective(box):
    pid = box.cluster.ranks[1].pid
    with later(HANG_S + 3, lambda: os.kill(pid, signal.SIGCONT)):
        result = quiet(
            box.cluster,
            f"if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n{MEET}; rank",
        )
    assert "Missing is rank 1, which does not answer: its process is stopped" in result.output
    assert result.values == {0: 0, 1: 1, 2: 2}
    box.lives()


def in_a_thread(code):
    """A cell in which rank 1 waits in a collective when one of its threads does something."""
    return (
        "def soon():\n    time.sleep(0.3)\n"
        f"{textwrap.indent(code, '    ')}\n"
        "if rank == 1: threading.Thread(target=soon).start()\n"
        f"if rank == 2: time.sleep(1.5)\n{MEET}; rank"
    )


def thread_segfaults_in_a_collective(box):
    with bounded(15), pytest.raises(RanksFailed, match="killed by SIGSEGV") as caught:
        quiet(box.cluster, in_a_thread("ctypes.string_at(0)"))
    assert list(caught.value.errors) == [1]
    box.lives(dead=(1,))


def thread_raises_in_a_collective(box):
    result = quiet(box.cluster, in_a_thread("raise ValueError('boom')"))
    assert "[rank 1] ValueError: boom" in result.output
    assert result.values == {0: 0, 1: 1, 2: 2}
    box.lives()


WAIT = f"if rank == 1: time.sleep(30)\n{MEET}"


def agent_killed_in_a_collective(box):
    agent = box.agent
    with (
        bounded(15),
        later(0.5, lambda: os.kill(agent, signal.SIGKILL)),
        pytest.raises(RanksFailed, match=r"agent of this machine .*SIGKILL"),
    ):
        quiet(box.cluster, WAIT)
    box.lost()


def controller_killed_in_a_collective(box):
    controller = box.controller
    with (
        bounded(15),
        later(0.5, lambda: os.kill(controller, signal.SIGKILL)),
        pytest.raises(RanksFailed, match="controller was killed by SIGKILL"),
    ):
        quiet(box.cluster, WAIT)
    box.lost()


def interrupted_in_a_collective(box):
    cluster = box.cluster
    with bounded(15), later(0.5, interrupt), pytest.raises(CellInterrupted):
        quiet(cluster, WAIT)
    box.lives()


def names_differ(box):
    sink = TextSink()
    source = "hvd.allreduce(torch.ones(1), name='a' if rank else 'b')"
    with bounded(20), pytest.raises(CellTimeout):
        box.cluster.run(source, sink=sink, timeout=HANG_S + 3)
    assert "[rank 0] in 'b'; [ranks 1-2] in 'a'" in sink.text
    box.lives()


def shapes_differ(box):
    with bounded(15), pytest.raises(RanksFailed, match=r"(?i)mismatched.*shape"):
        quiet(box.cluster, "hvd.allreduce(torch.ones(1 + rank), name='met')")
    box.lives()


def dtypes_differ(box):
    source = "x = torch.ones(2, dtype=(torch.float32, torch.int32)[rank == 1])\n"
    with bounded(15), pytest.raises(RanksFailed, match=r"(?i)mismatched data types"):
        quiet(box.cluster, source + "hvd.allreduce(x, name='met')")
    box.lives()


def batch_counts_differ(box):
    sink = TextSink()
    source = "for batch in range(4 + rank):\n    hvd.allreduce(torch.ones(1), name='batch')"
    with bounded(20), pytest.raises(RanksFailed):
        box.cluster.run(source, sink=sink, timeout=30)
    assert "Rank 0 has ended the cell already" in sink.text
    box.lives()


def gil_held(box):
    """`PyDLL` keeps the GIL, as a slow regular expression does, for a time that is known."""
    source = f"if rank == 1: ctypes.PyDLL(None).sleep({int(HANG_S) + 3})\n{MEET}; rank"
    result = quiet(box.cluster, source)
    assert "Missing is rank 1, which does not answer" in result.output
    assert "Python's lock" in result.output
    assert result.values == {0: 0, 1: 1, 2: 2}
    box.lives()


@contextlib.contextmanager
def across(machines):
    """A rank on each of two VMs; nothing of it is left here."""
    cluster = wb.Cluster(hosts=machines.hosts(1), ssh_config=machines.ssh_config)
    children = {process.pid for process in psutil.Process().children()}
    try:
        cluster.start()
        quiet(cluster, SETUP)
        yield cluster
    finally:
        machines.mend("vm2")
        cluster.stop()
    assert within(
        5, lambda: {process.pid for process in psutil.Process().children()} <= children
    ), psutil.Process().children()


def link_cut_and_mended(box, machines):
    box.close()
    with across(machines) as cluster:
        source = """
for i in range(60):
    time.sleep(0.03)
    print("said", i)
    assert float(hvd.allreduce(torch.ones(1), name=f"{i}", op=hvd.Sum)) == 2.0
"""
        with (
            later(0.7, lambda: machines.cut("vm2")),
            later(2.7, lambda: machines.mend("vm2")),
        ):
            began = time.monotonic()
            result = quiet(cluster, source, timeout=40)
            assert time.monotonic() - began > 2
        for rank in range(2):
            ranks = rf"\[rank(s 0-1| {rank})\]"
            assert len(re.findall(rf"(?m)^{ranks} said \d+$", result.output)) == 60
        assert cluster["kept"] == [0, 10]
        assert cluster.state == "ready"


# between cells


def replaced(box, name):
    """Rank 1 dies of a signal and is named; it can be replaced, and the others stand."""
    assert within(3, lambda: box.cluster.ranks[1].state == "dead")
    with pytest.raises(ClusterStopped, match=rf"killed by {name}.*restart --ranks 1"):
        quiet(box.cluster, "1")
    box.cluster.restart()
    assert box.cluster.pull(["kept"], ranks=[0, 2]) == {0: {"kept": 0}, 2: {"kept": 20}}
    quiet(box.cluster, SETUP)
    box.lives()


def killed_while_idle(box):
    os.kill(box.cluster.ranks[1].pid, signal.SIGKILL)
    replaced(box, "SIGKILL")


def segfaults_while_idle(box):
    source = "if rank == 1: threading.Timer(0.3, ctypes.string_at, (0,)).start()"
    quiet(box.cluster, source)
    replaced(box, "SIGSEGV")


def stopped_while_idle(box):
    pid = box.cluster.ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    with later(HANG_S + 3, lambda: os.kill(pid, signal.SIGCONT)):
        result = quiet(box.cluster, f"{MEET}; rank")
    assert "Missing is rank 1, which does not answer: its process is stopped" in result.output
    box.lives()


def agent_killed_while_idle(box):
    os.kill(box.agent, signal.SIGKILL)
    assert within(3, lambda: box.cluster.ranks[0].state == "dead")
    with pytest.raises(ClusterStopped, match=r"agent of this machine .*SIGKILL"):
        quiet(box.cluster, "1")
    box.close()


def controller_killed_while_idle(box):
    os.kill(box.controller, signal.SIGKILL)
    assert within(3, lambda: box.cluster.ranks[0].state == "dead")
    with pytest.raises(ClusterStopped, match="controller was killed by SIGKILL"):
        quiet(box.cluster, "1")
    box.close()


def directory_gone(box, tmp_path):
    folder = tmp_path / "away"
    folder.mkdir()
    quiet(box.cluster, f"before = os.getcwd(); os.chdir({str(folder)!r})")
    assert set(quiet(box.cluster, "os.getcwd()").values.values()) == {str(folder)}
    folder.rmdir()
    with pytest.raises(RanksFailed, match="FileNotFoundError"):
        quiet(box.cluster, "os.getcwd()")
    box.cluster.restart([1])
    quiet(box.cluster, "os.chdir(before)", ranks=[0, 2])
    quiet(box.cluster, "kept = 10", ranks=[1])
    box.lives()


def shut_down(box):
    quiet(box.cluster, "hvd.shutdown()")
    box.lives()


def descriptor_1_closed(box):
    quiet(box.cluster, "os.close(1)")
    source = "import subprocess; print('printed'); subprocess.run(['echo', 'echoed'], check=True);"
    output = quiet(box.cluster, source).output
    assert "[ranks 0-2] printed" in output
    assert "[ranks 0-2] echoed" in output
    box.lives()


def hvd_deleted(box):
    quiet(box.cluster, "del hvd")
    with pytest.raises(RanksFailed, match="name 'hvd' is not defined"):
        quiet(box.cluster, "hvd.size()")
    quiet(box.cluster, "import horovod.torch as hvd")
    box.lives()


def stdout_replaced(box):
    quiet(box.cluster, "sys.stdout = sys.stderr = open(os.devnull, 'w')\nprint('unheard')")
    assert "[ranks 0-2] heard" in quiet(box.cluster, "print('heard')").output
    box.lives()


def value_not_pickled(box):
    value = quiet(box.cluster, "threading.Lock()").values[1]
    assert isinstance(value, Kept)
    assert "cannot pickle" in value.reason
    quitting = "class Bad:\n    def __reduce__(self): sys.exit(3)\nBad()"
    with contextlib.suppress(RanksFailed):
        value = quiet(box.cluster, quitting).values[1]
        assert isinstance(value, Kept)
    box.lives()


UNREADABLE = "class Bad:\n    def __reduce__(self): return exec, ({!r},)\nBad()"


def value_not_unpickled(box):
    value = quiet(box.cluster, UNREADABLE.format("raise ValueError('no such thing')")).values[1]
    assert isinstance(value, Kept)
    assert "ValueError: no such thing" in value.reason
    box.lives()


def value_exits_when_unpickled(box):
    try:
        value = quiet(box.cluster, UNREADABLE.format("raise SystemExit(3)")).values[1]
    except SystemExit:
        pytest.fail("reading a value ended the kernel")
    assert isinstance(value, Kept)
    assert "SystemExit" in value.reason
    box.lives()


def much_printed(box):
    """100 MB arrive as well, in eleven seconds."""
    before = psutil.Process().memory_info().rss
    source = "if rank == 1:\n    for _ in range(20): print(('x' * 99 + '\\n') * 10_000, end='')"
    with bounded(30):
        result = quiet(box.cluster, source, timeout=50)
    assert result.output.count("x" * 99) == 200_000
    assert psutil.Process().memory_info().rss - before < 1 << 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3 << 20
    box.lives()


def vm_cut_while_idle(box, machines):
    box.close()
    with across(machines) as cluster:
        machines.cut("vm2")
        with bounded(25), pytest.raises((RanksFailed, ClusterStopped), match="vm2 does not answer"):
            quiet(cluster, MEET, timeout=24)
        with bounded(15):
            cluster.resize()
        assert quiet(cluster, ASK).values == {0: (0, 1.0)}


# while stopping


@contextlib.contextmanager
def stopping(box, source=""):
    """A cluster whose stop, in the body, takes a bounded time and leaves nothing."""
    box.close()
    cluster = wb.Cluster(n=2).start()
    try:
        quiet(cluster, SETUP + source)
        pids = {info.pid for info in cluster.ranks}
        with bounded(8):
            yield cluster
        assert cluster.state == "stopped"
        assert within(4, lambda: not ours()), [(p, status(p)) for p in ours()]
        assert not any(map(alive, pids))
    finally:
        cluster.stop()


def agent_of(cluster):
    return psutil.Process(cluster.ranks[0].pid).ppid()


def child_lives_on(box):
    source = """
child = os.fork()
if not child:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True: time.sleep(1)
"""
    with stopping(box, source) as cluster:
        children = cluster["child"]
        assert all(map(psutil.pid_exists, children))
        cluster.stop()
    assert within(2, lambda: not any(map(alive, children)))


def raises_while_stopping(box):
    with stopping(box, "signal.signal(signal.SIGTERM, lambda *_: 1 / 0)") as cluster:
        cluster.stop()


def stopped_while_stopping(box):
    with stopping(box) as cluster:
        os.kill(cluster.ranks[1].pid, signal.SIGSTOP)
        cluster.stop()


def ignores_the_stop(box):
    with stopping(box, "signal.signal(signal.SIGTERM, signal.SIG_IGN)") as cluster:
        cluster.stop()


def agent_killed_while_stopping(box):
    with stopping(box, "signal.signal(signal.SIGTERM, signal.SIG_IGN)") as cluster:
        agent = agent_of(cluster)
        with later(0.2, lambda: os.kill(agent, signal.SIGKILL)):
            cluster.stop()
            time.sleep(0.3)


def agent_killed_rank_stopped(box):
    with stopping(box) as cluster:
        os.kill(cluster.ranks[1].pid, signal.SIGSTOP)
        os.kill(agent_of(cluster), signal.SIGKILL)
        cluster.stop()


def agent_stopped_while_stopping(box):
    with stopping(box) as cluster:
        os.kill(agent_of(cluster), signal.SIGSTOP)
        cluster.stop()


def controller_stopped_while_stopping(box):
    with stopping(box) as cluster:
        os.kill(leader("workbench.cluster.controller"), signal.SIGSTOP)
        cluster.stop()


def interrupted_while_stopping(box):
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    with stopping(box, deaf) as cluster, later(0.1, interrupt), pytest.raises(KeyboardInterrupt):
        cluster.stop()


def stopped_twice_at_once(box):
    with stopping(box) as cluster:
        threads = [threading.Thread(target=cluster.stop) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=8)
        assert not any(thread.is_alive() for thread in threads)


def vm_cut_while_stopping(box, machines):
    box.close()
    with across(machines) as cluster:
        machines.cut("vm2")
        with bounded(10):
            cluster.stop()
        assert cluster.state == "stopped"
