"""The cluster that tests share: a test finds ranks like new ones, whatever earlier tests did."""

import os
import signal

import clean_ranks
import psutil
import pytest
from clusters import SHARED_MODEL, quiet, training
from timers import FAR_S, eventually

CHANGES = """
import os, random, signal, subprocess, sys, threading, time, torch
os.environ["LEFT_BY_A_TEST"] = "1"
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
sys.setrecursionlimit(5000)
sys.path.insert(0, "/nowhere")
torch.set_default_dtype(torch.float64)
random.shuffle = print
get_ipython().events.register("post_run_cell", lambda *_: None)
"""
NOTICED = {
    "environment variables", "signal handlers", "child processes", "threads", "settings of Python",
    "hooks of Python", "settings of torch", "replaced functions", "IPython",
}  # fmt: skip


@pytest.mark.parametrize("turn", [1, 2])
def test_a_broken_cluster_is_replaced(cluster, turn):
    """Each turn finds two ranks that compute together, and loses one."""
    source = "import torch\nfloat(hvd.allreduce(torch.ones(1), op=hvd.Sum))"
    assert quiet(cluster, source, timeout=FAR_S).values == {0: 2.0, 1: 2.0}
    os.kill(cluster.ranks[1].pid, signal.SIGKILL)
    assert eventually(lambda: cluster.ranks[1].state == "dead")


def test_variables_are_cleared_and_processes_stay(cluster):
    """What a training, a failed cell and a process group leave is no reason for new ranks."""
    pids = [info.pid for info in cluster.ranks]
    folder = quiet(cluster, "import os; os.getcwd()").values
    quiet(cluster, training(2) + SHARED_MODEL + "kept = rank\nos.chdir('/')")
    quiet(cluster, "hvd = None\ndel world_size")
    assert clean_ranks.clear(cluster) == []
    source = "[name in globals() for name in ('kept', 'model', 'dist')], hvd.__name__, world_size"
    expected = [False, False, False], "horovod.torch", 2
    assert quiet(cluster, source).values == {0: expected, 1: expected}
    assert quiet(cluster, "import os; os.getcwd()").values == folder
    assert [info.pid for info in cluster.ranks] == pids


def test_what_else_a_test_changes_is_noticed(cluster):
    """Each change is reported for each rank, so that the ranks are replaced."""
    quiet(cluster, CHANGES)
    differences = clean_ranks.clear(cluster)
    for info in cluster.ranks:
        for process in psutil.Process(info.pid).children():
            process.kill()
    for rank in range(2):
        found = {line.split(": ")[1] for line in differences if line.startswith(f"rank {rank}: ")}
        assert found == NOTICED
    cluster.restart(range(2))
    assert clean_ranks.clear(cluster) == ["the ranks are not those that the tests have begun with"]
