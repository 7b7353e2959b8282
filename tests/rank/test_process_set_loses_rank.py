"""A rank that is killed while process sets exist: the others live on, without those sets."""

import os
import signal
import time

import pytest
from clusters import BeginSink, quiet
from timers import FAR_S, eventually, when

import workbench as wb
from workbench.errors import RanksFailed

SUM = "float(hvd.allreduce(torch.ones(1), op=hvd.Sum, name='{0}', process_set={0}))"
ALL = "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))"
MID = """
import time
while rank < 2:
    hvd.allreduce(torch.ones(1 << 16), name='mid', process_set=pair)
time.sleep(3)
"""
"""Members of the set are in its collectives, again and again; the others sleep."""


@pytest.fixture(scope="module")
def shared():
    """Three ranks in a ring to which process sets can be added."""
    running = wb.Cluster(n=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        running.start()
    yield running
    running.stop()


@pytest.fixture
def dynamic(shared):
    """The same cluster; each rank has a variable."""
    if shared.state != "ready":
        shared.restart()
    quiet(shared, "import torch\nkept = rank * 10\nsets = []")
    return shared


def kill(cluster, rank):
    os.kill(cluster.ranks[rank].pid, signal.SIGKILL)


def kill_in_cell(cluster, rank, source, after_s=0.7):
    """Kill a rank some time after all have begun a cell."""
    sink = BeginSink()
    waiter = when(lambda: sink.begun(3), lambda: (time.sleep(after_s), kill(cluster, rank)))
    with pytest.raises(RanksFailed, match="SIGKILL"):
        cluster.run(sink.PRINT + source, sink=sink, timeout=FAR_S)
    waiter.join()


def survives(cluster, lost):
    """One rank is lost, and no other; after a restart all works, new process sets too."""
    assert eventually(lambda: cluster.state == "failed" or cluster.ranks[lost].state == "dead")
    assert [r.rank for r in cluster.ranks if r.state == "dead"] == [lost]
    cluster.restart()
    kept = quiet(cluster, "globals().get('kept')").values
    assert kept == {r: None if r == lost else r * 10 for r in range(3)}
    assert quiet(cluster, f"import torch\n{ALL}", timeout=FAR_S).values == dict.fromkeys(
        range(3), 3.0
    )
    quiet(cluster, "new = hvd.add_process_set([0, 2])", timeout=FAR_S)
    asked = f"{SUM.format('new')} if rank != 1 else None"
    assert quiet(cluster, asked, timeout=FAR_S).values == {0: 2.0, 1: None, 2: 2.0}
    quiet(cluster, "hvd.remove_process_set(new)", timeout=FAR_S)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_between_cells(dynamic, lost):
    """Whether the rank that is killed is in the set or not."""
    quiet(dynamic, "pair = hvd.add_process_set([0, 1])")
    kill(dynamic, lost)
    survives(dynamic, lost)


def test_with_two_sets(dynamic):
    """Each set of a lost ring is removed."""
    quiet(dynamic, "pair = hvd.add_process_set([0, 1])\nother = hvd.add_process_set([1, 2])")
    kill(dynamic, 2)
    survives(dynamic, 2)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_in_a_collective_of_the_set(dynamic, lost):
    """A member dies that another waits for, or a rank that is in none of its collectives."""
    quiet(dynamic, "pair = hvd.add_process_set([0, 1])")
    kill_in_cell(dynamic, lost, MID)
    survives(dynamic, lost)


def test_while_a_set_is_added(dynamic):
    """Those that wait in add_process_set() for a rank that is killed are freed."""
    source = "import time\nif rank == 2: time.sleep(600)\npair = hvd.add_process_set([0, 1])"
    kill_in_cell(dynamic, 2, source)
    survives(dynamic, 2)


def test_while_a_set_is_removed(dynamic):
    """The same in remove_process_set()."""
    quiet(dynamic, "pair = hvd.add_process_set([0, 1])")
    source = "import time\nif rank == 2: time.sleep(600)\nhvd.remove_process_set(pair)"
    kill_in_cell(dynamic, 2, source)
    survives(dynamic, 2)


def test_a_set_of_an_earlier_ring_says_that_it_is_gone(dynamic):
    """Even where another set has its number now; and it can be added again."""
    quiet(dynamic, "pair = hvd.add_process_set([0, 1])")
    quiet(dynamic, "hvd.shutdown()")  # in the same cell it can overtake the slowest rank's call
    quiet(dynamic, "other = hvd.add_process_set([1, 2])")
    said = r"process set of ranks \[0, 1\]: .*Add it again .*hvd\.add_process_set\(\[0, 1\]\)"
    for use in (SUM.format("pair"), "hvd.remove_process_set(pair)", "pair.size()", "pair.rank()"):
        with pytest.raises(RanksFailed, match=said):
            quiet(dynamic, f"{use}", ranks=[0], timeout=FAR_S)
    assert "ended" in quiet(dynamic, "str(pair)").values[0]
    quiet(dynamic, "hvd.add_process_set(pair)", timeout=FAR_S)
    asked = f"{SUM.format('pair')} if rank < 2 else None"
    assert quiet(dynamic, asked, timeout=FAR_S).values == {0: 2.0, 1: 2.0, 2: None}
    quiet(dynamic, "hvd.remove_process_set(pair), hvd.remove_process_set(other)", timeout=FAR_S)


@pytest.mark.parametrize("where", ["True", "rank == 0"])
def test_process_sets_that_a_cell_has_switched_on(where):
    """A rank that is replaced or added gets the setting too: else it is in no ring with them."""
    with wb.Cluster(n=2) as cluster:
        switch = f"if {where}: os.environ['HOROVOD_DYNAMIC_PROCESS_SETS'] = '1'"
        quiet(cluster, f"import os, torch\nkept = rank * 10\n{switch}\nhvd.shutdown()")
        for n in (2, 3):
            if n == 2:
                kill(cluster, 1)
                assert eventually(lambda: cluster.ranks[1].state == "dead")
                cluster.restart()
            else:
                cluster.resize(3)
            pair = f"pair = hvd.add_process_set([0, {n - 1}])"
            quiet(cluster, f"import torch\n{pair}" if n == 3 else "import torch", timeout=FAR_S)
            assert quiet(cluster, ALL, timeout=FAR_S).values == dict.fromkeys(range(n), float(n))
            assert quiet(cluster, "globals().get('kept')").values[0] == 0
