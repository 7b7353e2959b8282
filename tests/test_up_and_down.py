"""Clusters on this machine, up and down: nothing of them is left."""

import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest
from clusters import gone, quiet

import workbench as wb
from workbench.errors import (
    ClusterError,
    ClusterStopped,
    StartFailed,
    UsageError,
)


def folders(pids):
    """The run folders that processes were started with."""
    words = [word for pid in pids for word in psutil.Process(pid).cmdline()]
    return {Path(word) for word in words if re.fullmatch(r"/.*/workbench-\w+", word)}


def children():
    return {process.pid for process in psutil.Process().children(recursive=True)}


def listening():
    """The TCP ports that this process listens on."""
    connections = psutil.Process().net_connections("tcp")
    return {found.laddr.port for found in connections if found.status == psutil.CONN_LISTEN}


def test_a_runtime_folder_that_cannot_be_made(tmp_path, monkeypatch):
    """It is an error of ours, with the cure; the same cluster can be started afterwards."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "file" / "runtime"))
    cluster = wb.Cluster(n=1)
    with pytest.raises(StartFailed, match=r"Not a directory\)\. .* set JUPYTER_RUNTIME_DIR"):
        cluster.start()
    assert cluster.state == "stopped"
    monkeypatch.delenv("JUPYTER_RUNTIME_DIR")
    with cluster:
        assert cluster.state == "ready"


def test_starting_twice(cluster):
    """A cluster that runs cannot be started again."""
    with pytest.raises(ClusterError, match="stop it first"):
        cluster.start()


@pytest.mark.parametrize("n", [0, -1, "2", 1.5, True])
def test_a_number_of_ranks_that_makes_no_sense(n):
    """A cluster has at least one rank."""
    with pytest.raises(UsageError, match="must be a positive integer"):
        wb.Cluster(n=n)


def test_stop_leaves_nothing():
    """After stop there is no process, no listening port, no folder; timings stand."""
    before, ports = children(), listening()
    with wb.Cluster(n=1) as cluster:
        assert listening() != ports
        quiet(cluster, "import subprocess; child = subprocess.Popen(['sleep', '1000'])")
        started = children() - before
        assert len(started) >= 3  # controller, engine, and what the cell started
        (folder,) = folders(started)
        assert folder.is_dir()
    assert gone(started)
    assert not folder.exists()
    assert listening() == ports
    assert len(cluster.timings.to_frame()) == 0
    with pytest.raises(ClusterStopped, match="stopped"):
        quiet(cluster, "1")
    cluster.stop()


def test_start_again_after_stop():
    """A stopped cluster starts again, with timings of its own."""
    cluster = wb.Cluster(n=1)
    for _ in range(2):
        cluster.start()
        assert quiet(cluster, "world_size").values == {0: 1}
        cluster.stop()


def test_a_kernel_that_crashes_leaves_nothing():
    """When the process that started a cluster is killed, its processes end and its folder goes."""
    script = """
        import time, psutil, workbench as wb
        cluster = wb.Cluster(n=2).start()
        print(*[p.pid for p in psutil.Process().children(recursive=True)], flush=True)
        time.sleep(1000)
    """
    kernel = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    pids = [int(word) for word in kernel.stdout.readline().split()]
    assert len(pids) >= 3
    (folder,) = folders(pids)
    assert folder.is_dir()
    kernel.kill()
    kernel.wait()
    assert gone(pids)
    assert not folder.exists()


def test_a_start_that_fails_takes_everything_down(monkeypatch):
    """Where Horovod cannot be loaded the error says what to do, and nothing is left running."""
    before = children()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "without_horovod"))
    cluster = wb.Cluster(n=1)
    with pytest.raises(wb.errors.HorovodMissing, match="build-horovod"):
        cluster.start()
    assert children() == before
    assert cluster.state == "stopped"


def test_stopping_while_it_starts():
    """Another thread stops a cluster that is still starting: said so, and nothing is left."""
    before = children()
    cluster = wb.Cluster(n=1)
    threading.Timer(1.0, cluster.stop).start()
    with pytest.raises(ClusterStopped, match="stopped while it started"):
        cluster.start()
    assert cluster.state == "stopped"
    assert children() == before
