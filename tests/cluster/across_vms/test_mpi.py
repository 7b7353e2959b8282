"""Clusters over VMs whose agents one mpiexec has started, through real sshd and orted."""

import os
import signal

import pytest
from clusters import quiet
from mpi import mpi_leftovers, mpi_processes, needs_mpi
from timers import eventually

import workbench as wb
from workbench.errors import StartFailed

pytestmark = needs_mpi
SUM = (
    "import socket, torch; (socket.gethostname(), hvd.allreduce(torch.ones(1), op=hvd.Sum).item())"
)


@pytest.fixture(autouse=True)
def gloo(monkeypatch):
    """Ranks are joined over Gloo even where this Horovod was built with MPI."""
    monkeypatch.setenv("HOROVOD_CONTROLLER", "gloo")


@pytest.mark.soak
def test_one_mpiexec_for_all_vms(machines, tmp_path):
    """Ranks of a host file form a ring; a VM whose agent is lost returns by its own mpiexec."""
    before = mpi_leftovers()
    hosts = tmp_path / "hosts"
    hosts.write_text("vm1 slots=2\nvm2 slots=1\n")
    with wb.Cluster(launcher="mpi", hosts=hosts, ssh_config=machines.ssh_config) as cluster:
        assert quiet(cluster, SUM).values == {0: ("vm1", 3.0), 1: ("vm1", 3.0), 2: ("vm2", 3.0)}
        started = [one for one in mpi_processes() if one.pid not in before]
        assert len([one for one in started if one.name() == "mpiexec"]) == 1
        os.kill(cluster.agents[1].hello.pid, signal.SIGKILL)
        assert eventually(lambda: cluster.state == "failed")
        cluster.restart()
        assert quiet(cluster, SUM).values == {0: ("vm1", 3.0), 1: ("vm1", 3.0), 2: ("vm2", 3.0)}
    assert eventually(lambda: mpi_leftovers() <= before)


def refused(machines, hosts, match):
    """The start fails with this message, and leaves nothing."""
    before = mpi_leftovers()
    with pytest.raises(StartFailed, match=match):
        wb.Cluster(launcher="mpi", hosts=hosts, ssh_config=machines.ssh_config).start()
    assert eventually(lambda: mpi_leftovers() <= before)


@pytest.mark.soak
def test_a_vm_that_is_not_known(machines):
    """An unknown host is named with what to do."""
    refused(machines, "vm1:1,nowhere.invalid:1", "nowhere.invalid: its name is not known here")


@pytest.mark.soak
def test_a_python_that_is_not_there(machines):
    """A missing interpreter is named with its VM."""
    hosts = ["vm1", {"name": "vm2", "python": "/opt/none/bin/python"}]
    refused(machines, hosts, "vm2: there is no such Python: /opt/none/bin/python")


@pytest.mark.soak
def test_a_python_without_the_package(machines):
    """The error for an interpreter without this package says how to install it."""
    hosts = ["vm2", {"name": "vm1", "python": "/usr/bin/python3"}]
    refused(machines, hosts, "vm1: gradient-workbench is not installed for /usr/bin/python3")
