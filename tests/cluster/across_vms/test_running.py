"""A cluster that runs: what is there, what its guard does, and how it ends."""

import os
import re
import subprocess
import time

import pytest
import traces
from clusters import gone, quiet, training
from timers import FAR_S, eventually, later

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import (
    CellInterrupted,
    ClusterStopped,
    RanksFailed,
    UsageError,
)
from workbench.testbed import vms

HANG_S = 2.0


@pytest.fixture(scope="module")
def running(machines):
    """Two ranks on the first VM, one on each other."""
    options = {"ssh_config": machines.ssh_config, "hang_after_s": HANG_S}
    with wb.Cluster(hosts=machines.hosts((2, 1, 1)), launcher="ssh", **options) as cluster:
        quiet(cluster, "import torch, time, os, socket\nkept = rank * 10")
        yield cluster


@pytest.fixture
def cluster(running):
    """The same cluster, repaired after whatever the previous test did to it."""
    yield running
    if [info for info in running.ranks if info.state == "dead"]:
        running.restart()


# up, and what is there


def test_ranks_are_where_they_were_asked_for(cluster):
    """Each rank runs on its VM, over the interface of that VM's own name."""
    assert [info.vm for info in cluster.ranks] == ["vm1", "vm1", "vm2", "vm3"]
    assert [info.nic for info in cluster.ranks] == ["eth0", "eth0", "ens192", "eth0"]
    names = quiet(cluster, "socket.gethostname(), hvd.local_rank(), hvd.cross_rank()").values
    assert names == {0: ("vm1", 0, 0), 1: ("vm1", 1, 0), 2: ("vm2", 0, 1), 3: ("vm3", 0, 2)}


def test_preflight_has_a_row_for_each_vm(cluster):
    """Every VM was checked before the start, and nothing was found wrong."""
    assert [row["VM"] for row in cluster.preflight.rows] == ["vm1", "vm2", "vm3"]
    assert {row["Horovod"] for row in cluster.preflight.rows} == {"0.28.1"}
    assert cluster.preflight.fatal == []


def test_training_is_timed_on_every_vm(cluster):
    """A plain Horovod script gives a row per iteration and rank, its phases adding up."""
    before = len(cluster.timings)
    quiet(cluster, training(10, width=512))
    frame = cluster.timings.to_frame().tail(40)
    assert len(cluster.timings) - before == 40
    assert sorted(frame["rank"].unique()) == [0, 1, 2, 3]
    phases = ["data", "forward", "backward", "exposed", "optimizer", "other"]
    total = frame[[f"{name}_us" for name in phases]].sum(axis=1)
    assert ((total - frame["iteration_us"]).abs() <= 0.02 * frame["iteration_us"]).all()


def test_nothing_listens_where_it_need_not(cluster, machines):
    """The kernel's ports are on its address towards the VMs only, and none is Horovod's."""
    listed = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    own = [line.split() for line in listed.splitlines() if f"pid={os.getpid()}," in line]
    addresses = {line[3].rsplit(":", 1)[0] for line in own}
    assert machines.kernel_address in addresses
    assert not {address for address in addresses if address in {"0.0.0.0", "*", "[::]"}}


def command_lines():
    """Return the command line of each process, whole, however narrow the terminal is."""
    listed = ["ps", "-ww", "-eo", "args"]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()


def test_no_key_is_on_a_command_line(cluster):
    """The keys that let a rank into the cluster travel on ssh's standard input."""
    ours = [line for line in command_lines() if "workbench" in line]
    assert any("workbench.agent.program" in line for line in ours)
    names = r"IdentityFile|--IPController\.enable_curve=True"
    assert not [line for line in ours if re.search("curve|key", re.sub(names, "", line))]


# the guard


def test_a_rank_that_leaves_is_named(cluster):
    """`os._exit` in a cell is reported with its exit status; the rank can be replaced."""
    with pytest.raises(RanksFailed, match="ended with exit status 7"):
        quiet(cluster, "if rank == 2: os._exit(7)\nhvd.allreduce(torch.ones(1), name='left')")
    cluster.restart("2")
    quiet(cluster, "import torch, time, os, socket\nkept = rank * 10")
    assert cluster["kept"] == [0, 10, 20, 30]


def test_more_ranks_than_slots(cluster):
    """A size that the VMs have no slots for changes nothing."""
    with pytest.raises(UsageError, match="have 4 slots"):
        cluster.resize(5)
    assert cluster.state == "ready"
    assert cluster["kept"] == [0, 10, 20, 30]


def test_an_optimizer_made_before_is_timed_after_a_resize(cluster):
    """Optimizers that survive a change of ranks train on, and are timed as before."""
    quiet(cluster, training(5, width=64))
    cluster.resize(3)
    before = len(cluster.timings)
    quiet(cluster, "train(5)")
    frame = cluster.timings.to_frame().tail(15)
    assert len(cluster.timings) - before == 15
    assert (frame["exposed_us"] > 0).all()
    assert (frame["tensors"] == 2).all()
    cluster.resize(4)
    quiet(cluster, "import torch, time, os, socket\nkept = rank * 10")


def test_a_cluster_has_a_snapshot_of_each_vm(cluster):
    """`snapshot` asks every VM for what it has now."""
    found = cluster.snapshot()
    assert list(found) == ["vm1", "vm2", "vm3"]
    assert found["vm3"].host.hostname == "vm3"


def test_a_cluster_has_a_sample_of_each_vm(cluster):
    """`samples` asks every VM, while a cell runs as well; the second time it has rates."""
    cell = cluster.run_in_background("time.sleep(600)", sink=TextSink())
    first = cluster.samples()
    assert list(first) == ["vm1", "vm2", "vm3"]
    time.sleep(0.7)
    second = cluster.samples()
    assert not cell.done()
    assert [nic.name for nic in second["vm2"].nics] == ["ens192"]
    assert all(0 <= sample.cpu.percent <= 100 for sample in second.values())
    cell.interrupt()
    with pytest.raises(CellInterrupted):
        cell.result()


def test_a_profile_has_the_ranks_of_all_vms(cluster):
    """One trace with the operators of all ranks, on one clock; profiled iterations are marked."""
    ended = cluster.profile(iterations=8)
    quiet(cluster, training(40))
    profile = ended.result(FAR_S)
    summary = cluster.timings.summary(40)
    assert profile.ranks == (0, 1, 2, 3)
    assert profile.notes == ()
    assert profile.uncertainty_us < 5000
    assert summary.profiled >= 9
    trace = traces.read(profile.path)
    traces.check_format(trace)
    names = {
        event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"
    }
    assert names == {"rank 0 on vm1", "rank 1 on vm1", "rank 2 on vm2", "rank 3 on vm3"}
    assert {event["pid"] for event in traces.slices(trace, "cpu_op")} == {0, 1, 2, 3}


# a VM fails: in a separate cluster, because it stays incomplete


@pytest.mark.soak
def test_a_lost_vm_is_named_and_the_rest_goes_on():
    """The network of a VM goes: it is named within ten seconds, the rest resizes and trains."""
    # VMs of its own: other clusters would lose theirs too
    with (
        vms(3) as machines,
        wb.Cluster(hosts=machines.hosts(1), ssh_config=machines.ssh_config) as cluster,
    ):
        quiet(cluster, "import torch, time\nkept = rank")

        def cut():
            machines.cut("vm2")

        with later(0.5, cut), pytest.raises(RanksFailed, match="vm2 does not answer"):
            quiet(
                cluster,
                "if rank == 1: time.sleep(600)\nhvd.allreduce(torch.ones(1), name='cut')",
            )
        cluster.resize()
        assert [info.vm for info in cluster.ranks] == ["vm1", "vm3"]
        assert cluster["kept"] == [0, 2]
        total = quiet(cluster, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))")
        assert total.values == {0: 2.0, 1: 2.0}


# the end


def test_nothing_is_left(running):
    """The cluster's ranks end with it, and so do the processes that they have started."""
    sleep = f"sleep {10**6 + os.getpid()}"  # another run of these tests has one as well
    quiet(running, f"import subprocess; child = subprocess.Popen({sleep.split()})", ranks=[2])
    processes = {info.pid for info in running.ranks}
    processes |= {agent.hello.pid for agent in running.agents}
    running.stop()
    assert gone(processes)
    assert not [line for line in command_lines() if sleep in line]


@pytest.mark.soak
def test_an_idle_cluster_gives_its_vms_back(machines):
    """Without a cell for the given time the cluster stops, and the next cell reports that."""
    options = {"ssh_config": machines.ssh_config, "release_after": "3s"}
    cluster = wb.Cluster(hosts="vm1", **options).start()
    began = time.monotonic()
    while time.monotonic() - began < 4:  # in use, it stays
        time.sleep(0.5)
        quiet(cluster, "1")
    assert eventually(lambda: cluster.state == "stopped")
    with pytest.raises(ClusterStopped, match="released after 3s without a cell"):
        quiet(cluster, "1")
