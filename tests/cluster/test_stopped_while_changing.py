"""A cluster that another thread stops during a start or a change of the ranks stays stopped."""

import pytest
from clusters import children, quiet
from timers import eventually

import workbench as wb
from workbench.errors import ClusterStopped, RanksFailed


def stop_once(cluster, state, message=""):
    """Stop the cluster as soon as it gets into `state`, within the call that changes the state."""

    def stop():
        if cluster.state == state and message in cluster.message:
            unsubscribe()
            cluster.stop()

    unsubscribe = cluster.subscribe(stop)


def has_no_processes():
    """Whether all agents and controllers that this process has started have ended."""
    return not children("workbench.agent.program") and not children("workbench.cluster.controller")


def test_a_stop_at_the_beginning_of_a_start():
    """Processes that are started after the stop are ended too, and the next start succeeds."""
    cluster = wb.Cluster(n=1, cold=True)
    stop_once(cluster, "starting")
    with pytest.raises(ClusterStopped, match="was stopped while it started"):
        cluster.start()
    assert cluster.state == "stopped"
    assert eventually(has_no_processes)
    with cluster:
        assert quiet(cluster, "rank").values == {0: 0}


@pytest.mark.parametrize(
    "change",
    [lambda cluster: cluster.restart("1"), lambda cluster: cluster.resize(1)],
    ids=["restart", "resize"],
)
def test_a_stop_during_a_change(change):
    """The cluster stays stopped, and an agent that the change has started again is ended."""
    cluster = wb.Cluster(n=2, cold=True).start()
    stop_once(cluster, "starting")
    with pytest.raises(ClusterStopped, match="was stopped while its ranks were changed"):
        change(cluster)
    assert cluster.state == "stopped"
    assert eventually(has_no_processes)
    with cluster:
        assert quiet(cluster, "rank").values == {0: 0, 1: 1}


def test_a_stop_while_the_ring_is_rebuilt():
    """The end of the cell does not change the state of the stopped cluster."""
    cluster = wb.Cluster(n=2, cold=True).start()
    source = "import torch\nif rank == 0: raise ValueError\nhvd.allreduce(torch.ones(1))"
    stop_once(cluster, "running", "rebuilding the ring")
    with pytest.raises(RanksFailed):
        quiet(cluster, source)
    assert cluster.state == "stopped"
    assert eventually(has_no_processes)
