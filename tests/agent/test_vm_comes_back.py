"""A VM that was lost and answers again is taken in again; no agent of before stays there."""

import contextlib

import psutil
import pytest
from clusters import quiet
from timers import FAR_S

import workbench as wb
from workbench.errors import ClusterStopped, RanksFailed, StartFailed, UsageError
from workbench.testbed import vms, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
TOTAL = "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))"


@pytest.fixture(scope="module")
def three():
    """Three VMs with a rank each."""
    with vms(3) as machines:
        options = {"ssh_config": machines.ssh_config, "start_timeout_s": 120}
        with wb.Cluster(hosts=machines.hosts(1), **options) as cluster:
            yield machines, cluster


@pytest.fixture
def lost(three):
    """The same; the second VM is lost, and can be mended."""
    machines, cluster = three
    if cluster.state != "ready":
        cluster.stop()
        cluster.start()
    quiet(cluster, "import torch\nkept = rank * 10")
    machines.cut("vm2")
    with contextlib.suppress(RanksFailed, ClusterStopped):
        quiet(cluster, f"while True: {TOTAL}", timeout=FAR_S)
    assert [info.state for info in cluster.ranks] == ["ready", "dead", "ready"]
    yield machines, cluster
    machines.mend("vm2")


def agents(cluster):
    """The agent of each rank; VMs share this machine's process ids."""
    return [psutil.Process(info.pid).ppid() for info in cluster.ranks]


@pytest.mark.soak
def test_it_is_lost_still(lost):
    """If it does not answer, a restart reports that and changes nothing; later it works."""
    machines, cluster = lost
    with pytest.raises(
        StartFailed, match=r"(?s)Cannot restart rank 1: vm2 does not answer .* resize"
    ):
        cluster.restart()
    assert cluster.state == "failed"
    machines.mend("vm2")
    cluster.restart(ranks="1")
    assert cluster.state == "ready"


@pytest.mark.soak
def test_a_resize_uses_its_slots_again(lost):
    """After going on without it, more ranks are not to be had until it answers."""
    machines, cluster = lost
    cluster.resize()
    assert [info.vm for info in cluster.ranks] == ["vm1", "vm3"]
    with pytest.raises(UsageError, match=r"3 ranks: .* have 2 slots"):
        cluster.resize(3)
    assert cluster.state == "ready"
    machines.mend("vm2")
    cluster.resize(3)
    assert [info.vm for info in cluster.ranks] == ["vm1", "vm2", "vm3"]
    assert quiet(cluster, "globals().get('kept')").values == {0: 0, 1: None, 2: 20}
    quiet(cluster, "import torch")
    assert set(quiet(cluster, TOTAL).values.values()) == {3.0}


@pytest.mark.soak
def test_a_restart_takes_it_in_again(lost):
    """A new agent and a new rank; the others keep their variables; the old ones are gone."""
    machines, cluster = lost
    before, old = agents(cluster), cluster.ranks[1].pid
    machines.mend("vm2")
    cluster.restart()
    assert cluster.state == "ready"
    assert [info.vm for info in cluster.ranks] == ["vm1", "vm2", "vm3"]
    quiet(cluster, "import torch")
    assert set(quiet(cluster, TOTAL).values.values()) == {3.0}
    found = quiet(cluster, "globals().get('kept')").values
    assert found == {0: 0, 1: None, 2: 20}
    assert not psutil.pid_exists(old)
    assert not psutil.pid_exists(before[1])
    after = agents(cluster)
    assert after[::2] == before[::2]
    cluster.stop()
    assert not any(map(psutil.pid_exists, after))
