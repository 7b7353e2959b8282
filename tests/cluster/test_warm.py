"""The warm process: later starts of a kernel on this machine are forked from it."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest
from clusters import WARM, children, gone, own_processes, quiet, with_support
from combinations import BACKENDS
from levels import in_soak
from timers import PROCESS_S, InThread, eventually, when

import workbench as wb
from workbench.cluster import warm
from workbench.errors import UsageError
from workbench.widgets.clusters import cluster_table

AGENT, CONTROLLER = "workbench.agent.program", "workbench.cluster.controller"


@pytest.fixture
def usual_patience(monkeypatch):
    """Let a start wait for a stuck warm process no longer than it does for users."""
    monkeypatch.setattr(warm, "_ANSWER_S", 3.0)


@pytest.fixture(autouse=True)
def no_warm_process():
    """Begin each test without a warm process, and end it without new processes."""
    warm.end()
    before = own_processes()  # such as the VMs that other tests of this process share
    yield
    warm.end()
    assert eventually(lambda: own_processes() <= before)


def start_and_stop(**options):
    """Return the process ids of the agent and of the warm process after a start of one rank."""
    with wb.Cluster(n=1, **options) as cluster:
        agent = psutil.Process(cluster.ranks[0].pid).ppid()
        return agent, psutil.Process(agent).ppid(), warm.pid()


def test_a_second_start_is_forked():
    """The first agent leaves the warm process, which forks the processes of the second start."""
    _, parent, pid = start_and_stop()
    assert parent == pid is not None
    assert psutil.Process(pid).ppid() == os.getpid()
    with wb.Cluster(n=1) as cluster:
        assert warm.pid() == pid
        (agent,) = children(AGENT)
        (controller,) = children(CONTROLLER)
        assert {agent.ppid(), controller.ppid()} == {pid}
        assert quiet(cluster, "rank, world_size").values == {0: (0, 1)}
        assert len(psutil.Process(pid).threads()) == 1
    assert gone([agent.pid, controller.pid])
    assert psutil.pid_exists(pid)


@pytest.mark.soak
def test_two_clusters_at_a_time():
    with wb.Cluster(n=1) as first, wb.Cluster(n=1) as second:
        assert quiet(first, "x = 1; x").values == quiet(second, "x = 1; x").values == {0: 1}
        assert len(children(AGENT)) == 2
        second.restart(ranks=[0])
        assert quiet(second, "'x' in globals()").values == {0: False}


def test_cold():
    """A cold start uses no warm process, does not end it, and leaves none."""
    assert start_and_stop(cold=True)[1:] == (os.getpid(), None)
    pid = start_and_stop()[2]
    assert start_and_stop(cold=True)[1:] == (os.getpid(), pid)
    assert start_and_stop()[1:] == (pid, pid)


@pytest.mark.parametrize(
    "options", [{"cold": 1}, {"cold": True, "hosts": "vm1"}, {"cold": True, "launcher": "mpi"}]
)
def test_a_cold_start_that_makes_no_sense(options):
    with pytest.raises(UsageError, match="cold="):
        wb.Cluster(**options)


# stale


def replaced(change):
    """Return whether the warm process is another one after a change and a start."""
    pid = start_and_stop()[2]
    change()
    after = start_and_stop()[2]
    assert after is not None
    assert not psutil.pid_exists(pid) or pid == after
    return pid != after


@pytest.mark.soak
def test_another_environment(monkeypatch):
    assert replaced(lambda: monkeypatch.setenv("LANG_OF_TEST", "1"))
    assert replaced(lambda: monkeypatch.delenv("LANG_OF_TEST"))


@pytest.mark.soak
@pytest.mark.parametrize("name", ["GRADIENT_WORKBENCH_OF_TEST", "JUPYTER_RUNTIME_DIR"])
def test_a_variable_that_nothing_reads_while_it_is_loaded(monkeypatch, tmp_path, name):
    """The warm process goes on; the ranks have the new value."""
    monkeypatch.delenv(name, raising=False)
    value = str(tmp_path)
    assert not replaced(lambda: monkeypatch.setenv(name, value))
    with wb.Cluster(n=1) as cluster:
        assert quiet(cluster, f"import os; os.environ[{name!r}]").values == {0: value}
    assert not replaced(lambda: monkeypatch.delenv(name))
    with wb.Cluster(n=1) as cluster:
        assert quiet(cluster, f"import os; {name!r} in os.environ").values == {0: False}


@pytest.mark.soak
def test_another_folder(tmp_path, monkeypatch):
    assert replaced(lambda: monkeypatch.chdir(tmp_path))
    with wb.Cluster(n=1) as cluster:
        assert quiet(cluster, "import os; os.getcwd()").values == {0: str(tmp_path)}


@pytest.mark.soak
def test_another_binding():
    """The ranks of a kernel that was bound to one core run there."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("this process has one core")
    try:
        assert replaced(lambda: os.sched_setaffinity(0, {min(cores)}))
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.soak
def test_another_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert replaced(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.soak
def test_another_backend():
    pid = start_and_stop(backend="ddp")[2]
    assert start_and_stop(backend="horovod")[2] not in {pid, None}


@pytest.mark.soak
@pytest.mark.usefixtures("usual_threads")
def test_another_number_of_threads():
    """Libraries have read it as they were loaded."""
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        pytest.skip("this process has one core")
    pid = start_and_stop()[2]
    with wb.Cluster(n=2) as cluster:
        assert warm.pid() not in {pid, None}
        assert quiet(cluster, "import torch; torch.get_num_threads()").values == dict.fromkeys(
            (0, 1), cores // 2
        )


@pytest.mark.soak
def test_a_changed_module(tmp_path, monkeypatch):
    """As when a package is installed in another version."""
    module = tmp_path / "sitecustomize.py"
    module.write_text("import os; os.environ['VERSION_OF_TEST'] = '1'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert not replaced(lambda: None)
    assert replaced(lambda: module.write_text("import os; os.environ['VERSION_OF_TEST'] = '22'"))
    with wb.Cluster(n=1) as cluster:
        assert quiet(cluster, "import os; os.environ['VERSION_OF_TEST']").values == {0: "22"}


# its end


@pytest.mark.soak
def test_it_ends_after_an_idle_time(monkeypatch):
    """The time begins when its last process has ended."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_WARM", "1s")
    with wb.Cluster(n=1) as cluster:
        pid = warm.pid()
        quiet(cluster, "import time; time.sleep(3)")
        assert psutil.pid_exists(pid)
    assert gone([pid])
    assert warm.pid() is None
    assert warm.memory_bytes() is None


@pytest.mark.soak
def test_no_warm_process(monkeypatch):
    pid = start_and_stop()[2]
    monkeypatch.setenv("GRADIENT_WORKBENCH_WARM", "off")
    assert start_and_stop()[2] is None
    assert gone([pid])
    monkeypatch.setenv("GRADIENT_WORKBENCH_WARM", "soon")
    with pytest.raises(UsageError, match="GRADIENT_WORKBENCH_WARM='soon': not a duration"):
        wb.Cluster(n=1).start()


KERNEL = """
import os, psutil, time
import workbench as wb
from workbench.cluster import warm
cluster = wb.Cluster(n=1, **{options}).start()
agent = psutil.Process(cluster.ranks[0].pid).ppid()
child = os.fork()  # it has all descriptors of the kernel
if child == 0:
    time.sleep(1000)
print(warm.pid(), agent, child, cluster.name, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("keep", [None, in_soak("1h")], ids=["", "kept"])
def test_it_ends_with_its_kernel(keep):
    """Also if the kernel is killed, and a fork of it goes on; a kept cluster goes on as well."""
    source = KERNEL.format(options={"keep": keep})
    kernel = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    *pids, name = kernel.stdout.readline().split()
    pid, agent, child = map(int, pids)
    kernel.kill()
    kernel.wait()
    try:
        assert gone([pid])
        if keep is None:
            assert gone([agent])
        else:
            assert psutil.Process(agent).status() != psutil.STATUS_ZOMBIE
            os.kill(child, signal.SIGKILL)
            assert gone([child])  # it has the ports of its parent
            wb.Cluster.attach(name).stop()
            assert gone([agent])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


@pytest.mark.soak
def test_a_kernel_that_exits():
    """Nothing of it is left, although its first cluster was stopped long before."""
    source = """
        import workbench as wb
        from workbench.cluster import warm
        with wb.Cluster(n=1):
            pass
        print(warm.pid())
    """
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(source)],
        capture_output=True, text=True, timeout=PROCESS_S, check=True,
    )  # fmt: skip
    assert gone([int(done.stdout)])
    assert "ResourceWarning" not in done.stderr


# faults


@pytest.mark.soak
@pytest.mark.usefixtures("usual_patience")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_it_is_gone_or_stuck_before_a_start(number):
    """The start is a cold one, which leaves another warm process."""
    pid = start_and_stop()[2]
    os.kill(pid, number)
    with wb.Cluster(n=1) as cluster:
        assert quiet(cluster, "rank").values == {0: 0}
        assert warm.pid() not in {pid, None}
    assert gone([pid])


@pytest.mark.soak
@pytest.mark.usefixtures("usual_patience")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("module", [AGENT, CONTROLLER])
def test_it_is_gone_or_stuck_during_a_start(module, number):
    """As soon as it has forked a process."""
    pid = start_and_stop()[2]
    waiter = when(lambda: children(module), lambda: os.kill(pid, number))
    with wb.Cluster(n=1) as cluster:
        waiter.join()
        assert quiet(cluster, "rank").values == {0: 0}
    assert not children(AGENT)
    assert not children(CONTROLLER)


@pytest.mark.soak
@pytest.mark.usefixtures("usual_patience")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_it_is_gone_or_stuck_while_a_cluster_runs(number):
    """The cluster goes on; the end of its agent is noticed as well."""
    with wb.Cluster(n=1) as cluster:
        agent = psutil.Process(cluster.ranks[0].pid).parent()
        os.kill(warm.pid(), number)
        assert quiet(cluster, "rank").values == {0: 0}
        agent.kill()
        assert eventually(lambda: cluster.state == "failed")
        assert "the agent of this machine is gone" in cluster.message


@pytest.mark.soak
def test_it_cannot_fork():
    """It lacks descriptors for it: the start is a cold one."""
    pid = start_and_stop()[2]
    process = psutil.Process(pid)
    limit = process.num_fds()
    process.rlimit(psutil.RLIMIT_NOFILE, (limit, limit))
    with wb.Cluster(n=1) as cluster:
        assert quiet(cluster, "rank").values == {0: 0}
        assert warm.pid() not in {pid, None}


@pytest.mark.soak
@pytest.mark.parametrize("first", [True, False], ids=["the first", "a forked one"])
def test_how_an_agent_has_ended(first):
    """The warm process reports it."""
    if not first:
        start_and_stop()
    with wb.Cluster(n=1) as cluster:
        psutil.Process(cluster.ranks[0].pid).parent().kill()
        assert eventually(lambda: cluster.state == "failed")
        assert "the agent of this machine was killed by SIGKILL" in cluster.message


@pytest.mark.soak
def test_it_is_never_used_by_a_fork_of_the_kernel():
    """A process that the kernel has forked starts clusters of its own."""
    source = """
        import os, sys
        import workbench as wb
        from workbench.cluster import warm
        with wb.Cluster(n=1):
            pid = warm.pid()
        child = os.fork()
        with wb.Cluster(n=1) as cluster:
            print(child == 0, warm.pid() == pid, cluster.run("rank").values, flush=True)
        if child:
            print("child:", os.waitpid(child, 0)[1])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True, text=True, timeout=PROCESS_S, check=True,
    )  # fmt: skip
    assert {"True False {0: 0}", "False True {0: 0}", "child: 0"} <= set(done.stdout.splitlines())


@pytest.mark.soak
def test_a_kernel_with_many_threads():
    """Threads that allocate memory and hold locks all the time do not disturb the forks."""
    ended = threading.Event()

    def work():
        while not ended.is_set():
            json.dumps({str(number): [number] * 10 for number in range(1000)})

    threads = [InThread(work) for _ in range(3)]
    try:
        for _ in range(3):
            with wb.Cluster(n=1) as cluster:
                assert quiet(
                    cluster, "import torch; (torch.ones(64, 64) @ torch.ones(64, 64)).sum().item()"
                )
    finally:
        ended.set()
        for thread in threads:
            thread.join()


# what users see


def test_its_memory_is_shown():
    with wb.Cluster(n=1) as cluster:
        shown = re.search(
            r"Warm process (\d+) .*: ([\d,]+) MiB \(PSS", repr(cluster_table(cluster))
        )
        assert int(shown[1]) == warm.pid()
        running = warm.memory_bytes()
        assert int(shown[2].replace(",", "")) == pytest.approx(running / 2**20, rel=0.2)
    stopped = warm.memory_bytes()
    assert running < stopped < psutil.Process(warm.pid()).memory_info().rss
    assert f"Warm process {warm.pid()} " in repr(cluster_table(cluster))


@pytest.mark.soak
def test_its_name_and_its_arguments():
    """``ps`` shows it and its forks for what they are."""
    start_and_stop()
    process = psutil.Process(warm.pid())
    assert process.name() == "workbench-warm"
    assert process.cmdline()[1:4] == ["-m", WARM, str(os.getpid())]
    with wb.Cluster(n=1):
        (agent,) = children(AGENT)
        assert agent.cmdline()[:3] == [sys.executable, "-m", AGENT]
        assert agent.name() == Path(sys.executable).name


# forked and fresh ranks

LOOK = """
import gc, json, locale, logging, multiprocessing, os, random, re
import resource, signal, sys, threading, uuid, warnings
import numpy
import torch

def names(one):
    return getattr(one, "__qualname__", None) or str(one)

def status(words):
    with open("/proc/self/status") as lines:
        return [line for line in lines if line.startswith(words)]

def descriptors():
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}").partition(":")[0])
        except OSError:
            pass
    return sorted(one if one.startswith("/dev") or "/" not in one else "file" for one in found)

def look():
    limits = {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if "RLIMIT" in n}
    return {
        "torch": (torch.get_num_threads(), torch.get_num_interop_threads(),
                  str(torch.get_default_dtype()), torch.__config__.parallel_info(),
                  torch.cuda.is_initialized()),
        "environment": dict(os.environ),
        "cores": sorted(os.sched_getaffinity(0)),
        "folder": os.getcwd(),
        "path": sys.path,
        "arguments": (sys.argv, sys.orig_argv, sys.flags, sys.executable),
        "handlers": [(n.name, names(signal.getsignal(n))) for n in signal.valid_signals()
                     if n in set(signal.Signals)],
        "signals": status(("SigBlk", "SigIgn", "Umask", "NoNewPrivs", "Seccomp", "Threads")),
        "limits": limits,
        "priority": (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)),
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 100_000),
        "group": (os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()),
        "session": os.getpgid(os.getppid()) == os.getppid(),
        "descriptors": descriptors(),
        "threads": sorted(re.sub(r"\\d+", "N", one.name) for one in threading.enumerate()),
        "streams": (type(sys.stdout).__name__, type(sys.stderr).__name__, sys.stdin.name,
                    sys.getdefaultencoding(), locale.getlocale()),
        "logging": (logging.root.level, len(logging.root.handlers)),
        "warnings": len(warnings.filters),
        "recursion": sys.getrecursionlimit(),
        "multiprocessing": multiprocessing.get_start_method(allow_none=True),
        "main": sys.modules["__main__"].__name__,
    }

seen = json.dumps([look(), {"random": random.random(), "numpy": float(numpy.random.rand()),
          "torch": torch.initial_seed(), "uuid": uuid.uuid4().hex}], default=str)
"""


@pytest.mark.soak
@pytest.mark.parametrize("backend", [one.name for one in BACKENDS.values()])
@pytest.mark.usefixtures("usual_threads")
def test_a_forked_rank_is_like_a_fresh_one(backend, tmp_path):
    """Threads, seeds, environment, binding, folder, signals, limits, descriptors."""
    script = tmp_path / "compare.py"
    script.write_text(
        f"import json\nimport workbench as wb\nfrom workbench.cluster import TextSink, warm\n"
        f"source, found = {LOOK!r}, []\n"
        "for cold in (True, False, False):\n"
        "    before = warm.pid()\n"
        f"    with wb.Cluster(n=2, backend={backend!r}, cold=cold) as cluster:\n"
        "        cluster.run(source, sink=TextSink())\n"
        "        ranks = [json.loads(row['seen']) for row in cluster.pull(['seen']).values()]\n"
        "        found.append([before is not None, *ranks])\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=PROCESS_S,
        check=True, env=with_support() | {"CUDA_VISIBLE_DEVICES": "1,0"},
    )  # fmt: skip
    fresh, first, forked = json.loads(done.stdout)
    assert [fresh[0], first[0], forked[0]] == [False, False, True]
    for rank in (0, 1):
        expected = normalized(fresh[1 + rank][0])
        assert normalized(first[1 + rank][0]) == expected
        assert normalized(forked[1 + rank][0]) == expected
    chances = [start[1 + rank][1] for start in (fresh, first, forked) for rank in (0, 1)]
    for name in chances[0]:
        assert len({chance[name] for chance in chances}) == len(chances), name


def normalized(look):
    """The same without what differs between any two starts: ids, ports and folders."""
    environment = {
        name: text
        for name, text in look["environment"].items()
        if not re.search("PORT|RENDEZVOUS|RECORDS|IPYTHONDIR", name)
    }
    return look | {"environment": environment}
