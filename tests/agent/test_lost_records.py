"""Records that are lost between a rank and the kernel are counted, and the cell says so."""

import contextlib
import os
import signal

import psutil
import pytest
from clusters import quiet, training
from recorded_training import record
from timers import eventually

from workbench.agent.record_stream import NAME
from workbench.cluster import Cluster
from workbench.widgets.cluster_source import ClusterSource
from workbench.wire import Outbox
from workbench.wire.rank_messages import Records


def streams(cluster):
    """The processes that merge the records of the VM's ranks."""
    processes = []
    for child in psutil.Process(cluster.agents[0].hello.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends meanwhile
            if child.name() == NAME:
                processes.append(child)
    return processes


def test_records_inside_a_stream_that_is_killed():
    """What the ranks have sent and the kernel has not received is counted, by rank too."""
    with Cluster(n=3) as cluster:
        quiet(cluster, training(5))
        assert cluster.timings.dropped == 0
        assert cluster.timings.remark == ""
        (stream,) = streams(cluster)
        stream.suspend()  # what ranks send is kept in its socket
        quiet(cluster, "train(30)")
        assert cluster.timings.dropped == 90
        os.kill(stream.pid, signal.SIGKILL)
        assert eventually(lambda: [one.pid for one in streams(cluster)] not in ([], [stream.pid]))
        timings = cluster.timings
        assert len(timings) + timings.dropped == 3 * 35
        assert timings.dropped_by_rank == {0: 30, 1: 30, 2: 30}
        message = "90 of the 90 records of the last cell were lost on the way to this kernel"
        assert message in timings.remark
        assert message in ClusterSource(cluster).status().message
        quiet(cluster, "train(20)")
        assert timings.remark == ""
        assert len(timings) + timings.dropped == 3 * 55
        assert len(timings.collectives()) == 3 * 2 * 25  # with their names


@pytest.mark.soak
def test_records_that_only_arrive_late():
    """They are not counted any more when they have arrived."""
    with Cluster(n=3) as cluster:
        quiet(cluster, training(5))
        (stream,) = streams(cluster)
        stream.suspend()
        quiet(cluster, "train(30)")
        assert cluster.timings.dropped == 90
        stream.resume()
        assert eventually(lambda: len(cluster.timings) == 105)
        assert cluster.timings.dropped == 0
        assert cluster.timings.remark == ""


def test_a_loss_is_counted_while_its_cell_runs(timings):
    """The iterations are numbered; what a rank itself has dropped is not counted twice."""
    outbox = Outbox(timings.address_for(0))

    def send(*iterations, dropped=0):
        packed = [record(index, dropped=dropped).pack() for index in iterations]
        outbox.send(Records(tuple(packed)))
        assert eventually(lambda: timings.rows()["iteration"].tolist()[-1:] == [iterations[-1]])

    timings.begin_cell(1)
    send(3, 4)  # of a cell that began under an earlier kernel
    assert timings.dropped == 0
    send(7, 8)
    assert timings.dropped == 2
    send(12, dropped=3)
    assert timings.dropped == 5
    assert timings.dropped_by_rank == {0: 5}
    assert not timings.end_cell(1, {0: 8}, timeout_s=0.05)
    assert timings.dropped == 3 + 3
    outbox.close()
