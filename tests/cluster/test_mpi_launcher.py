"""Clusters whose agents are started by mpiexec of a real Open MPI, on this machine."""

import os
import signal
import socket
import threading
import time
from pathlib import Path

import psutil
import pytest
from clusters import gone, quiet
from kept_clusters import kernel
from mpi import mpi_leftovers, mpi_processes, needs_mpi
from timers import FAR_S, eventually

import workbench as wb
from workbench.cluster.launchers import AgentStart
from workbench.cluster.launchers.mpi import MpiLauncher
from workbench.errors import StartFailed, UsageError
from workbench.hosts import Host
from workbench.widgets.clusters import cluster_table

pytestmark = needs_mpi
SUM = "import torch; hvd.allreduce(torch.ones(1), op=hvd.Sum).item()"


@pytest.fixture
def gloo(monkeypatch):
    """Ranks are joined over Gloo even where this Horovod was built with MPI."""
    monkeypatch.setenv("HOROVOD_CONTROLLER", "gloo")


def test_ranks_under_mpiexec(gloo):
    """The ranks form a ring, the status names what connects them, and a stop leaves nothing."""
    before = mpi_leftovers()
    with wb.Cluster(launcher="mpi", n=3) as cluster:
        assert quiet(cluster, SUM).values == dict.fromkeys(range(3), 3.0)
        assert len(mpi_processes("workbench.agent.mpi_slot")) >= 3
        assert "Gloo connects Horovod's ranks" in repr(cluster_table(cluster))
    assert eventually(lambda: mpi_leftovers() <= before)


def test_a_rank_is_lost_and_replaced(gloo):
    """The loss of one rank ends no other; it is replaced, and the number of ranks can change."""
    with wb.Cluster(launcher="mpi", n=2) as cluster:
        quiet(cluster, "kept = rank")
        os.kill(cluster.ranks[1].pid, signal.SIGKILL)
        assert eventually(lambda: cluster.state == "failed")
        cluster.restart()
        assert quiet(cluster, SUM).values == {0: 2.0, 1: 2.0}
        assert quiet(cluster, "kept", ranks="0").values == {0: 0}
        cluster.resize(3)
        assert quiet(cluster, SUM).values == dict.fromkeys(range(3), 3.0)


@pytest.mark.soak
def test_mpiexec_is_killed(gloo):
    """Agents and ranks do not depend on mpiexec; its folders are removed all the same."""
    before = mpi_leftovers()
    with wb.Cluster(launcher="mpi", n=2) as cluster:
        ours = [one for one in mpi_processes() if one.pid not in before and one.name() == "mpiexec"]
        for process in ours:
            process.kill()
        assert gone([process.pid for process in ours])
        assert quiet(cluster, SUM).values == {0: 2.0, 1: 2.0}
    assert eventually(lambda: mpi_leftovers() <= before)


@pytest.mark.soak
def test_the_next_kernel_attaches(gloo, tmp_path, monkeypatch):
    """A kept cluster outlives its kernel; mpiexec ends with it."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    before = mpi_leftovers()
    name, pids = kernel("", "launcher='mpi', n=2, keep='600s'")
    cluster = wb.Cluster.attach(name)
    try:
        assert cluster.description == "Gloo connects Horovod's ranks."
        assert quiet(cluster, "kept").values == {0: 0, 1: 10}
    finally:
        cluster.stop()
    assert gone(pids)
    assert eventually(lambda: mpi_leftovers() <= before)


@pytest.mark.soak
def test_the_users_binding_is_kept(gloo):
    """Ranks have the cores to which the user's arguments of mpiexec bind their slots."""
    with wb.Cluster(launcher="mpi", n=1, mpi_args="--bind-to core") as cluster:
        (cores,) = quiet(cluster, "import os; len(os.sched_getaffinity(0))").values.values()
        per_core = psutil.cpu_count() // (psutil.cpu_count(logical=False) or 1)
        assert cores <= max(1, per_core)


def refused(match, **options):
    """The start fails with this message, and leaves nothing."""
    before = mpi_leftovers()
    with pytest.raises(StartFailed, match=match):
        wb.Cluster(launcher="mpi", n=2, **options).start()
    assert eventually(lambda: mpi_leftovers() <= before)


def test_there_is_no_mpiexec(monkeypatch, tmp_path):
    """The error names the package."""
    monkeypatch.setenv("PATH", str(tmp_path))
    refused("there is no mpiexec on this machine's PATH: install Open MPI .*openmpi-bin")


def test_another_mpi(monkeypatch, tmp_path):
    """The mpiexec of MPICH is named, which has other options."""
    program = tmp_path / "mpiexec"
    program.write_text("#!/bin/sh\necho 'HYDRA build details:'\necho '    Version: 4.0.2'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    refused(r"mpiexec is not that of Open MPI \(HYDRA build details:\): install Open MPI")


def test_an_option_that_mpiexec_does_not_know():
    """Its own words are in the error."""
    refused(
        r'does not know an option .*unknown option "--foo"\): correct mpi_args', mpi_args="--foo"
    )


def test_mpiexec_ends_before_one_vm_has_started(monkeypatch, tmp_path):
    """Its exit status and last words are in the error about that VM, and none about the other."""
    program = tmp_path / "mpiexec"
    program.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo 'mpiexec (OpenRTE) 4.1' && exit\n"
        "printf 'first\\nworkbench-slot-ready /a 0\\nthe\\nlast\\nwords\\n'\nexit 3\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    launcher, vms = MpiLauncher(), [Host("a", 1), Host("b", 1)]
    starts = [AgentStart(host, 1, Path("/") / host.name) for host in vms]
    try:
        launcher.launch(starts, 1.0, time.monotonic() + FAR_S, threading.Event())
        error = str(launcher.failure(vms[1], None, ""))
        assert "b: mpiexec ended with exit status 3 (the last words)" in error
        assert "mpiexec" not in str(launcher.failure(vms[0], 1, "boom"))
    finally:
        launcher.release()


@pytest.fixture
def allocation(monkeypatch):
    """An mpiexec finds an allocation of one slot, on this machine."""
    values = {"SLURM_JOBID": "1", "SLURM_JOB_ID": "1", "SLURM_TASKS_PER_NODE": "1"}
    values |= {"SLURM_NODELIST": socket.gethostname(), "OMPI_MCA_plm": "isolated"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_too_many_ranks(allocation):
    """More ranks than mpiexec has slots are refused."""
    refused("no place for so many ranks .*: request fewer")


def test_a_host_outside_the_allocation(allocation):
    """A host that mpiexec may not use is refused."""
    with pytest.raises(StartFailed, match=r"elsewhere: not among the hosts .*\(All nodes"):
        wb.Cluster(launcher="mpi", hosts="elsewhere:1").start()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mpi_args": "--x"}, "only for launcher='mpi'"),
        ({"launcher": "mpi", "mpi_args": "'"}, "Close the quote"),
        ({"launcher": "mpi", "mpi_args": [1]}, "not text"),
    ],
)
def test_arguments_that_are_refused(options, match):
    """Arguments for mpiexec are text, and for this launcher only."""
    with pytest.raises(UsageError, match=match):
        wb.Cluster(**options)
