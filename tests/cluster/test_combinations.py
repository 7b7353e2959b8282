"""The same behaviours over each backend and each launcher.

`make test` runs all of them over both backends on this machine, and those that are `over_ssh`
over ssh too; `make soak` runs all over every launcher.
"""

import contextlib
import os
import re
import signal
import threading

import pytest
from clusters import CELL_S, Cell, quiet
from combinations import BYTES, over_ssh, parametrize
from timers import eventually

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import CellInterrupted, CellTimeout, ClusterStopped, RanksFailed

KEPT = [0, 10, 20]


def interrupt():
    """Do as Ctrl-C in the kernel does."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def pytest_generate_tests(metafunc):
    """Run each test over the combinations."""
    parametrize(metafunc)


@pytest.fixture(scope="module")
def case(request):
    """A backend and a launcher."""
    return request.param


@pytest.fixture(scope="module")
def started(case):
    """Three ranks, for all tests of a combination."""
    with case.options() as options, wb.Cluster(hang_after_s=1, **options) as found:
        quiet(found, case.backend.cells + case.backend.groups)
        yield found


@pytest.fixture
def ranks(started, case):
    """The same, with `kept` on each rank; all ranks form a ring afterwards."""
    if started.state != "ready":
        started.restart()
    quiet(started, case.backend.cells + "kept = rank * 10")
    yield started
    assert eventually(lambda: started.state == "ready"), started.message
    n = started.n
    assert quiet(started, "total()", timeout=CELL_S).values == dict.fromkeys(range(n), float(n))


@over_ssh
def test_the_namespace(ranks, case):
    """A cell has its rank, the number of ranks, a device and the library, and no other library."""
    source = "(rank, world_size, str(device), type({}).__name__, 'horovod' in sys.modules)"
    found = quiet(ranks, source.format(case.backend.variable)).values
    loaded = case.backend.name == "horovod"
    assert found == {rank: (rank, 3, "cpu", "module", loaded) for rank in range(3)}
    local = quiet(ranks, "local_rank").values
    assert list(local.values()) == ([0, 1, 2] if case.launcher == "local" else [0, 1, 0])


def test_values(ranks):
    """They are pushed and pulled."""
    ranks["sent"] = [1, 2]
    assert quiet(ranks, "sent").values == {0: [1, 2], 1: [1, 2], 2: [1, 2]}
    ranks.push({"some": "x"}, ranks=[1])
    assert ranks.pull(["kept", "some"], ranks="1") == {1: {"kept": 10, "some": "x"}}
    assert ranks["kept"] == KEPT


@over_ssh
def test_a_training_is_recorded(ranks, case):
    """All ranks have equal weights; each iteration has its phases, and each rank its gradients."""
    iterations = ranks.timings.to_frame()["iteration"]
    before = iterations.max() if len(iterations) else -1
    values = quiet(ranks, "make(); train(5)").values
    assert values[0] == values[1] == values[2]
    rows = ranks.timings.to_frame()
    rows = rows[rows["iteration"] > before]
    assert len(rows) == 3 * 5
    assert set(rows["bytes"]) == {BYTES}
    assert (rows["communication_us"] > 0).all()
    table = ranks.timings.collectives()
    own = (table["cell"] == table["cell"].max()) & (table["by"] == case.backend.by)
    table = table[own & (table["kind"] == "allreduce")]
    assert table.groupby(["iteration", "rank"])["bytes"].sum().tolist() == [BYTES] * 15
    assert set(table["ranks"]) == {3}


def test_a_late_rank_is_named(ranks):
    """The one for which the others wait in their backward."""
    quiet(ranks, "make(); train(3); train(8, late=1)")
    found = ranks.timings.stragglers().iloc[-1]
    assert (found["rank"], found["kind"]) == (1, "slow compute")
    assert found["late_us"] > 100e3


def test_collectives_of_a_cell_are_recorded(ranks):
    """With their bytes and ranks, and those of a group."""
    source = "total(tensor=torch.ones(256)); broadcast(); group_total([0, 1])"
    assert quiet(ranks, source).values == {0: 2.0, 1: 2.0, 2: None}
    table = ranks.timings.collectives()
    table = table[(table["cell"] == table["cell"].max()) & (table["rank"] == 0)]
    found = set(zip(table["kind"], table["bytes"], table["ranks"], strict=True))
    assert found >= {("allreduce", 1024, 3), ("broadcast", 4, 3), ("allreduce", 32, 2)}


def test_an_error_frees_the_others(ranks):
    """It is named once; the others leave their collective and keep their variables."""
    with pytest.raises(RanksFailed, match="ValueError: boom") as caught:
        quiet(ranks, "if rank == 1: raise ValueError('boom')\ntotal()", timeout=CELL_S)
    assert list(caught.value.errors) == [1]
    assert "[ranks 0,2] freed from a collective; variables are kept" in str(caught.value)
    assert ranks["kept"] == KEPT


def test_an_error_in_a_training_frees_the_others(ranks):
    """Also those that wait for gradients in a backward; the training goes on in the next cell."""
    quiet(ranks, "make(); train(2)")
    with pytest.raises(RanksFailed, match="ZeroDivisionError") as caught:
        quiet(ranks, "if rank == 2: 1 / 0\ntrain(2)", timeout=CELL_S)
    assert list(caught.value.errors) == [2]
    values = quiet(ranks, "train(2)", timeout=CELL_S).values
    assert values[0] == values[1] == values[2]


@over_ssh
def test_an_interrupt_frees_ranks(ranks, case):
    """Those that compute, and those that wait in a collective."""
    source = "if rank: total('met')\nelse: time.sleep(600)"
    cell = Cell(ranks, source, rf"\] in {case.backend.total}", interrupt)
    assert "variables are kept" in cell.error
    assert ranks["kept"] == KEPT


def test_the_stop_button(ranks, case):
    """`Cluster.interrupt`, of a cell in the background."""
    sink = TextSink()
    cell = ranks.run_in_background("if rank: total('met')\nelse: time.sleep(600)", sink=sink)
    assert eventually(lambda: re.search(rf"in {case.backend.total}", sink.text))
    ranks.interrupt()
    with pytest.raises(CellInterrupted, match="variables are kept"):
        cell.result()
    assert ranks["kept"] == KEPT


def test_a_time_limit_frees_ranks(ranks):
    """It says which ranks were where."""
    with pytest.raises(CellTimeout, match=r"ranks 0-2.*variables are kept"):
        quiet(ranks, "if rank: total()\nelse: time.sleep(600)", timeout=2)
    assert ranks["kept"] == KEPT


@pytest.mark.parametrize("recording", [True, False])
def test_a_wait_is_explained(ranks, case, recording):
    """Which ranks wait, in which collective, and where the missing one is; the cell goes on."""
    ranks.recording = recording
    try:
        source = "if rank == 1:\n    held()  # late\ntotal('met')"
        cell = Cell(ranks, source, "Rank 1 is missing; it is at:")
    finally:
        ranks.recording = True
    assert re.search(rf"waiting for other ranks: .*\] in {case.backend.total}", cell.output)
    assert "held()  # late" in cell.output
    assert cell.error == ""


def test_different_collectives_are_explained(ranks, case):
    """No rank goes on: who waits where is reported, and an interrupt frees all."""
    source = "if rank == 0: broadcast('other')\nelse: total('met')\ntotal('last')"
    cell = Cell(ranks, source, "All ranks wait, in different collectives", interrupt)
    other = case.backend.broadcast.replace("met", "other")
    assert re.search(rf"\[rank 0\] in {other}; \[ranks 1-2\] in {case.backend.total}", cell.output)


def test_batch_counts_differ(ranks, case):
    """The ranks that wait for one that has ended the cell are freed, with what to do."""
    source = "for batch in range(4 + rank): total('met')"
    says = rf"rank 0 ended the cell while ranks 1-2 wait in {case.backend.total}.*all ranks"
    with pytest.raises(RanksFailed, match=says):
        quiet(ranks, source, timeout=CELL_S)


def test_a_cell_of_some_ranks_that_needs_all(ranks, case):
    """It ends with what to do; a group of its own ranks is waited for."""
    says = rf"ranks 1-2 do not run this cell, but rank 0 waits in {case.backend.total}.*--ranks"
    with pytest.raises(RanksFailed, match=says):
        quiet(ranks, "total('met')", ranks=[0], timeout=CELL_S)


def test_a_stopped_rank(ranks):
    """A process that was stopped (SIGSTOP) is named, and goes on."""
    pid = ranks.ranks[1].pid
    source = "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ntotal('met')"
    said = "Rank 1 is missing and does not answer: its process is stopped"
    try:
        cell = Cell(ranks, source, said, lambda: os.kill(pid, signal.SIGCONT))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert cell.error == ""


@over_ssh
def test_a_killed_rank_is_replaced(ranks, case):
    """It is named with its signal; the others are freed and keep their variables."""
    kill_and_replace(ranks, case, 2)


def test_a_killed_first_rank_is_replaced(ranks, case):
    """The same for rank 0."""
    kill_and_replace(ranks, case, 0)


def kill_and_replace(ranks, case, rank):
    with pytest.raises(RanksFailed, match="killed by SIGKILL") as caught:
        quiet(ranks, f"if rank == {rank}: os.kill(os.getpid(), 9)\ntotal()", timeout=CELL_S)
    assert list(caught.value.errors) == [rank]
    assert [info.rank for info in ranks.ranks if info.state == "dead"] == [rank]
    with pytest.raises(ClusterStopped, match=f"%cluster restart --ranks {rank}"):
        quiet(ranks, "1")
    ranks.restart()
    kept = KEPT.copy()
    kept[rank] = None
    assert list(quiet(ranks, "globals().get('kept')").values.values()) == kept
    quiet(ranks, case.backend.cells, ranks=[rank])


def test_a_rank_that_leaves_the_ring(ranks):
    """The next cell has a ring again, without a restart."""
    quiet(ranks, "leave()")
    assert quiet(ranks, "total()", timeout=CELL_S).values == {0: 3.0, 1: 3.0, 2: 3.0}
    assert ranks["kept"] == KEPT


def test_resize(ranks, case):
    """Variables and models are kept; the training goes on with another number of ranks."""
    quiet(ranks, "make(); train(2)")
    ranks.resize(2)
    assert ranks["kept"] == KEPT[:2]
    values = quiet(ranks, "world_size, train(2), total()", timeout=CELL_S).values
    assert values[0] == values[1]
    assert (values[0][0], values[0][2]) == (2, 2.0)
    ranks.resize(3)
    found = quiet(ranks, "world_size, 'model' in globals(), globals().get('kept')").values
    assert found == {0: (3, True, 0), 1: (3, True, 10), 2: (3, False, None)}
    quiet(ranks, case.backend.cells, ranks=[2])
