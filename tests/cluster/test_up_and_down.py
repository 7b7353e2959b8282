"""Clusters on this machine, up and down: nothing of them is left."""

import contextlib
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import psutil
import pytest
from clusters import gone, own_processes, quiet
from disks import fill, small_disk
from timers import FAR_S, PROCESS_S, later

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import (
    ClusterError,
    ClusterStopped,
    RanksFailed,
    StartFailed,
    UsageError,
)


def folders(pids):
    """The run folders that processes were started with."""
    words = [word for pid in pids for word in psutil.Process(pid).cmdline()]
    values = [word.removeprefix("--profile-dir=") for word in words]
    return {Path(value) for value in values if re.fullmatch(r"/.*/workbench-\w+", value)}


def listening():
    """The TCP ports that this process listens on."""
    connections = psutil.Process().net_connections("tcp")
    return {found.laddr.port for found in connections if found.status == psutil.CONN_LISTEN}


@pytest.mark.soak
def test_a_runtime_folder_that_cannot_be_made(tmp_path, monkeypatch):
    """It is an error of ours, with the fix; the same cluster can be started afterwards."""
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
    """After stop there is no process, no listening port, no folder; timings are kept."""
    before, ports = own_processes(), listening()
    with wb.Cluster(n=1) as cluster:
        assert listening() != ports
        quiet(cluster, "import subprocess; child = subprocess.Popen(['sleep', '1000'])")
        started = own_processes() - before
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


def test_a_stopped_cluster_has_no_file_open():
    """A notebook keeps what a cell has shown, and with it clusters of the past."""
    before = open_files()
    stopped = [wb.Cluster(n=1).start() for _ in range(2)]
    for cluster in stopped:
        cluster.stop()
    assert not open_files() - before


def test_a_cell_that_a_stop_ends_asks_for_a_start():
    """Nothing of the cluster is left that could be replaced."""
    cluster = wb.Cluster(n=1).start()
    cell = cluster.run_in_background("import time; time.sleep(600)", sink=TextSink())
    cluster.stop()
    with pytest.raises((RanksFailed, ClusterStopped), match="cluster start") as caught:
        cell.result(timeout=FAR_S)
    assert "Replace what is lost" not in str(caught.value)


def open_files():
    """The regular files that this process has open, removed ones too."""
    found = set()
    for number in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(number.readlink()))
    return {name for name in found if name.startswith("/")}


@pytest.mark.soak
def test_a_home_that_cannot_be_written(tmp_path, monkeypatch):
    """What IPython keeps there is kept elsewhere, and removed."""
    (tmp_path / "file").touch()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))  # of IPython in this process
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.delenv("IPYTHONDIR", raising=False)
    with wb.Cluster(n=2) as cluster:
        assert quiet(cluster, "rank").values == {0: 0, 1: 1}
        assert not list(temporary.glob("*/profile_default"))
    assert not list(temporary.glob("workbench-*"))


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


FORKS = """
import os, sys
from workbench import Cluster, ClusterStopped
with Cluster(2) as cluster:
    cluster.run("kept = 1")
    child = os.fork()
    if child == 0:
        try:
            cluster.run("kept")
        except ClusterStopped as error:
            print("says:", error, flush=True)
        sys.exit()  # leaves the block, which stops the cluster
    print("child:", os.waitpid(child, 0)[1], flush=True)
    print(cluster.run("kept").values, flush=True)
"""


@pytest.mark.soak
def test_a_forked_process_does_not_stop_the_cluster():
    """Neither by the end of its block nor as it exits; a cell is refused with the reason."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=PROCESS_S, check=True
    )
    assert "child: 0" in done.stdout
    assert "{0: 1, 1: 1}" in done.stdout
    assert "a fork. Use it there" in done.stdout


def test_a_start_that_fails_takes_everything_down(monkeypatch):
    """If Horovod cannot be loaded, the error says what to do, and nothing keeps running."""
    before = own_processes()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support/without_horovod"))
    cluster = wb.Cluster(n=1)
    with pytest.raises(wb.errors.HorovodMissing, match="build-horovod"):
        cluster.start()
    assert own_processes() <= before
    assert cluster.state == "stopped"


def test_stopping_while_it_starts():
    """Another thread stops a cluster that is still starting: said so, and nothing is left."""
    before = own_processes()
    cluster = wb.Cluster(n=1, cold=True)  # takes seconds, so that the stop comes before its end
    with later(1.0, cluster.stop), pytest.raises(ClusterStopped, match="stopped while it started"):
        cluster.start()
    assert cluster.state == "stopped"
    assert own_processes() <= before


def test_a_start_on_a_full_disk(tmp_path, monkeypatch):
    """A runtime folder that takes no more is named, without anybody's traceback."""
    before = own_processes()
    with small_disk(tmp_path / "disk") as folder:
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder))
        full = fill(folder)
        cluster = wb.Cluster(n=1)
        with pytest.raises(StartFailed) as raised:
            cluster.start()
        said = str(raised.value)
        assert said.startswith(f"{folder}: ")
        assert "No space left on device" in said
        assert "JUPYTER_RUNTIME_DIR" in said
        assert "File " not in said
        full.unlink()
        assert not list(folder.glob("workbench-*"))
    assert cluster.state == "stopped"
    assert own_processes() <= before


def test_a_start_without_descriptors():
    """A limit on open files that is too low is named."""
    script = """
        import resource, workbench as wb
        import ipyparallel, workbench.wire
        cluster = wb.Cluster(n=1)
        used = len(__import__("os").listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 3, used + 3))
        try:
            cluster.start()
        except wb.StartFailed as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=FAR_S,
        check=False,
    )
    assert re.search(r"may open \d+ files.* Raise the limit with `ulimit -n", done.stdout), done
