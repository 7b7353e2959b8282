"""``hvd.init()`` in a cell: it works, and a rank that does not call it costs no variables."""

import textwrap
import time

import psutil
import pytest
from clusters import quiet
from timers import FAR_S, eventually

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import CellInterrupted, CellTimeout, RanksFailed

CALLS = ["hvd.init()", "hvd.init(process_sets=[hvd.ProcessSet([0, 1])])"]
SUM = "float(hvd.allreduce(torch.ones(1), op=hvd.Sum, name='sum'))"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("0", id="usual"),
        pytest.param("1", id="dynamic", marks=pytest.mark.soak),
    ],
)
def shared(request):
    """Three ranks, without process sets and with those that can be added at any time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", request.param)
        with wb.Cluster(n=3) as running:
            yield running


@pytest.fixture
def three(shared):
    """The same cluster; each rank has a variable."""
    if shared.state != "ready":
        shared.restart()
    quiet(shared, "import os, signal, time, torch\nkept = rank * 10", timeout=FAR_S)
    return shared


def works(cluster, lost=None):
    """Variables are kept, and collectives, other process sets and another init work."""
    kept = {rank: None if rank == lost else rank * 10 for rank in range(3)}
    assert quiet(cluster, "globals().get('kept')", timeout=FAR_S).values == kept
    quiet(cluster, "import torch")
    assert quiet(cluster, SUM, timeout=FAR_S).values == dict.fromkeys(range(3), 3.0)
    source = f"hvd.shutdown()\nhvd.init(process_sets=[hvd.ProcessSet([1, 2])])\n{SUM}"
    assert quiet(cluster, source, timeout=FAR_S).values == dict.fromkeys(range(3), 3.0)


def fails(cluster, source, says):
    """Run a cell in which a rank does not call hvd.init(); return the error, which comes soon."""
    with pytest.raises(RanksFailed, match=says) as caught:
        quiet(cluster, source, timeout=FAR_S)
    return caught.value


@pytest.mark.soak
@pytest.mark.parametrize("call", CALLS)
def test_it_works_again_and_again(three, call):
    """Nothing of an earlier ring is taken for an address of the next."""
    for _ in range(4):
        result = quiet(three, f"hvd.shutdown()\n{call}\n{SUM}", timeout=FAR_S)
        assert result.values == dict.fromkeys(range(3), 3.0)
    works(three)


def test_a_process_set_that_it_makes_can_be_used(three):
    """In the same cell and in the next."""
    quiet(three, "pair = hvd.ProcessSet([0, 2])\nhvd.shutdown()\nhvd.init(process_sets=[pair])")
    asked = f"{SUM[:-2]}, process_set=pair)) if rank != 1 else None"
    assert quiet(three, asked, timeout=FAR_S).values == {0: 2.0, 1: None, 2: 2.0}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_fails_frees_those_that_wait(three, call, rank):
    """Its error is the one that is shown."""
    source = f"hvd.shutdown()\nif rank == {rank}: raise ValueError('boom')\n{call}"
    error = fails(three, source, rf"\[rank {rank}\] ValueError: boom")
    assert list(error.errors) == [rank]
    works(three)


def test_a_rank_that_fails_before_the_shutdown_frees_those_that_wait(three):
    """The others have left the ring without it."""
    source = "if rank == 1: raise ValueError('boom')\nhvd.shutdown()\nhvd.init()"
    assert list(fails(three, source, r"\[rank 1\] ValueError: boom").errors) == [1]
    works(three)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ("rank == 0", r"rank 0 ended the cell while ranks 1-2 wait in 'init\(\)'"),
        ("rank > 0", r"ranks 1-2 ended the cell while rank 0 waits in 'init\(\)'"),
    ],
)
def test_a_rank_that_ends_without_it_frees_those_that_wait(three, call, ends, says):
    """The error names the ranks that did not call it."""
    fails(three, f"hvd.shutdown()\nif not ({ends}): {call}", says)
    works(three)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_frees_those_that_wait(three, call, rank):
    """A restart replaces that rank, and no other."""
    source = f"""
    hvd.shutdown()
    if rank == {rank}:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    {call}
    """
    error = fails(three, textwrap.dedent(source), "SIGKILL")
    assert list(error.errors) == [rank]
    assert [info.rank for info in three.ranks if info.state == "dead"] == [rank]
    three.restart()
    works(three, lost=rank)


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_frees_those_that_wait(three, call):
    """While another rank is in code of its own."""
    source = f"hvd.shutdown()\nif rank == 0: time.sleep(600)\n{call}"
    run = three.run_in_background(source, sink=TextSink())
    time.sleep(1.5)
    run.interrupt()
    with pytest.raises(CellInterrupted):
        run.result(100)
    assert [info.state for info in three.ranks] == ["ready"] * 3
    works(three)


def test_a_time_limit_frees_those_that_wait(three):
    """The error says where they were."""
    with pytest.raises(CellTimeout, match=r"hvd\.init\(\)"):
        quiet(three, "hvd.shutdown()\nif rank == 1: time.sleep(600)\nhvd.init()", timeout=6)
    works(three)


def test_a_rank_that_does_not_react_to_an_interrupt_keeps_no_other(three):
    """The ranks that wait are freed although it continues; nothing is lost once it answers."""
    source = """
    hvd.shutdown()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    hvd.init()
    """
    rank = psutil.Process(three.ranks[1].pid)
    run = three.run_in_background(textwrap.dedent(source), sink=TextSink())
    assert eventually(lambda: rank.status() == psutil.STATUS_STOPPED)
    time.sleep(1)
    run.interrupt()
    try:
        with pytest.raises(CellInterrupted, match="rank 1 did not react"):
            run.result(100)
    finally:
        rank.resume()
    assert eventually(lambda: three.state == "ready"), three.message
    works(three)


def test_a_cell_may_catch_the_error_and_call_it_again(three):
    """The second call waits in vain too, and is ended like the first."""
    source = """
    from horovod.common.exceptions import HorovodInternalError
    hvd.shutdown()
    caught = 0
    if rank == 0:
        raise ValueError("boom")
    for _ in range(2):
        try:
            hvd.init()
        except HorovodInternalError:
            caught += 1
    """
    with pytest.raises(RanksFailed, match="boom"):
        quiet(three, textwrap.dedent(source), timeout=FAR_S)
    assert quiet(three, "globals().get('caught')", ranks=[1, 2]).values == {1: 2, 2: 2}
    works(three)


def test_ranks_that_do_not_agree_on_process_sets_are_freed(three):
    """Horovod itself notices that, in one of them."""
    source = f"hvd.shutdown()\nif rank: hvd.init()\nelse: {CALLS[1]}\nhvd.barrier()"
    with pytest.raises(RanksFailed, match="HorovodInternalError"):
        quiet(three, source, timeout=FAR_S)
    works(three)


def test_what_horovod_itself_refuses_is_raised_unchanged(three):
    """It is no fault of a rank that did not come."""
    with pytest.raises(RanksFailed, match="ValueError: Horovod has not been built with MPI"):
        quiet(three, "hvd.shutdown()\nhvd.init(comm=3)", timeout=FAR_S)
    works(three)


def test_an_init_that_is_not_needed_does_nothing(three):
    """Scripts begin with it."""
    assert quiet(three, f"hvd.init()\n{SUM}", timeout=FAR_S).values == dict.fromkeys(range(3), 3.0)
    works(three)
