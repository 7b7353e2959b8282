"""Clusters that outlive their kernel: kept, met again, and given up when nobody comes."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import NoCluster, UsageError
from workbench.vms import vms, why_not

KERNEL = """
import os, sys, time
import workbench as wb
from workbench.cluster import TextSink
cluster = wb.Cluster({arguments}).start()
cluster.run('''
import torch, time
kept = rank * 10
model = torch.nn.Linear(8, 8)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
def train(n):
    for _ in range(n):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
train(5)
''', sink=TextSink())
print(cluster.name, *[info.pid for info in cluster.ranks], flush=True)
{then}
"""
KILLED = "os.kill(os.getpid(), 9)"
IN_A_CELL = """
cluster.run_in_background({source!r}, sink=TextSink())
time.sleep(0.5)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A place of its own for what kernels write down."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def attach(runtime):
    """Attach to clusters, and stop them after the test."""
    met = []

    def meet(name=None):
        met.append(wb.Cluster.attach(name))
        return met[-1]

    yield meet
    for cluster in met:
        cluster.stop()
    with contextlib.suppress(NoCluster):  # the test failed before it met its own
        wb.Cluster.attach().stop()


def kernel(then, arguments="n=2, keep='60s'"):
    """Run a kernel to its end; return the cluster's name and the ranks' processes."""
    source = KERNEL.format(arguments=arguments, then=then)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout, done.stderr
    name, *pids = done.stdout.split()
    return name, [int(pid) for pid in pids]


def quiet(cluster, source, **options):
    return cluster.run(source, sink=TextSink(), **options)


def gone(pids, seconds=5.0):
    deadline = time.monotonic() + seconds
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(psutil.pid_exists, pids))


@pytest.mark.parametrize("then", ["", KILLED], ids=["ended", "killed"])
def test_the_next_kernel_finds_it(runtime, attach, then):
    """Ranks, variables, optimizers and timings are as the earlier kernel left them."""
    name, pids = kernel(then)
    cluster = attach()
    assert (cluster.name, cluster.state) == (name, "ready")
    assert [info.pid for info in cluster.ranks] == pids
    assert cluster["kept"] == [0, 10]
    assert len(cluster.timings) == 10
    assert len(cluster.timings.collectives()) == 20
    quiet(cluster, "train(3)")
    frame = cluster.timings.to_frame()
    assert sorted(frame["iteration"].unique()) == list(range(8))
    assert not cluster.timings.collectives().empty
    cluster.stop()
    assert gone(pids)
    assert not list(runtime.glob("workbench-*"))


def test_a_cell_that_still_runs_is_waited_for(attach):
    """What the ranks were doing when the kernel died is done to its end, and timed."""
    _, _ = kernel(IN_A_CELL.format(source="time.sleep(2); train(4); late = rank"))
    cluster = attach()
    assert cluster["late"] == [0, 1]
    quiet(cluster, "1")
    assert len(cluster.timings) == 18


def test_a_cell_that_is_stuck_can_be_interrupted(attach):
    """Ctrl-C while attaching frees the ranks; they are usable, and keep their variables."""
    source = "if rank: time.sleep(100)\nhvd.allreduce(torch.ones(1), name='stuck')"
    kernel(IN_A_CELL.format(source=source))
    main = threading.main_thread().ident
    timer = threading.Timer(3.0, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    cluster = attach()
    timer.join()
    assert cluster["kept"] == [0, 10]
    total = quiet(cluster, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))", timeout=20)
    assert total.values == {0: 2.0, 1: 2.0}


def test_a_rank_is_replaced_after_attaching(attach):
    """The new kernel guards the ranks as the one before did."""
    _, pids = kernel("")
    cluster = attach()
    os.kill(pids[1], signal.SIGKILL)
    time.sleep(0.3)
    cluster.restart()
    assert quiet(cluster, "globals().get('kept')").values == {0: 0, 1: None}


def test_it_is_given_up_when_nobody_comes(runtime):
    """After the time that it was to be kept, no process, no port and no key is left."""
    _, pids = kernel(KILLED, "n=2, keep='3s'")
    assert gone(pids, 20)
    deadline = time.monotonic() + 10
    while list(runtime.glob("workbench-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list(runtime.glob("workbench-*"))
    with pytest.raises(NoCluster, match="--keep"):
        wb.Cluster.attach()


def test_there_is_none_or_there_are_several(attach):
    """Which cluster is meant must be said where it is not clear; a wrong name tells the others."""
    with pytest.raises(NoCluster, match=r"a cluster was asked for; .* there runs none"):
        attach()
    (first, _), (second, _) = kernel("", "n=1, keep=60"), kernel("", "n=1, keep=60")
    with pytest.raises(UsageError, match="name one of"):
        attach()
    with pytest.raises(NoCluster, match="cluster 'other' was asked for"):
        attach("other")
    assert {attach(first).name, attach(second).name} == {first, second}


def test_keys_are_for_this_user_only(runtime, attach):
    """What the next kernel needs lies where nobody else can read it."""
    kernel("")
    (folder,) = Path(runtime).glob("workbench-*")
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "cluster.json").stat().st_mode & 0o077 == 0
    attach()


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_ranks_on_vms_are_met_again(attach):
    """The same over ssh: the connections outlive the kernel too."""
    with vms(2) as machines:
        arguments = f"hosts={machines.hosts(1)!r}, ssh_config={str(machines.ssh_config)!r}, keep=60"
        _, pids = kernel(KILLED, arguments)
        cluster = attach()
        assert [info.vm for info in cluster.ranks] == ["vm1", "vm2"]
        assert cluster["kept"] == [0, 10]
        cluster.stop()
        assert gone(pids)
