"""Waits for process sets and in them: who is freed, when, and with which message."""

import textwrap
import time

import psutil
import pytest
from clusters import quiet
from timers import FAR_S, eventually, when

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import CellInterrupted, CellTimeout, RanksFailed

SUM = """
if rank in {1}: met = hvd.allreduce(torch.ones(1), op=hvd.Sum, name='sum', process_set={0}).item()
met if rank in {1} else None
"""


@pytest.fixture(scope="module")
def shared():
    """Three ranks in a ring to which process sets can be added."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        with wb.Cluster(n=3) as running:
            yield running


@pytest.fixture
def pair(shared):
    """The same cluster; each rank has a variable, and ranks 1 and 2 are a process set."""
    quiet(shared, "import os, signal, time, torch\nkept = rank * 10\nhvd.shutdown()")
    quiet(shared, "pair = hvd.add_process_set([1, 2])")
    return shared


def works(cluster):
    """Variables are kept, and so is what process sets are for."""
    assert quiet(cluster, "kept").values == {0: 0, 1: 10, 2: 20}
    quiet(cluster, "new = hvd.add_process_set([0, 2])", timeout=FAR_S)
    summed = quiet(cluster, SUM.format("new", "(0, 2)"), timeout=FAR_S)
    assert summed.values == {0: 2.0, 1: None, 2: 2.0}
    quiet(cluster, "hvd.remove_process_set(new)", timeout=FAR_S)


CHANGES = ["hvd.add_process_set([0, 1])", "hvd.remove_process_set(pair)"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_rank_that_fails_frees_those_that_change_process_sets(pair, change):
    """It has called neither, and its error is the one that is shown."""
    with pytest.raises(RanksFailed, match=r"\[rank 0\] ValueError: boom") as caught:
        quiet(pair, f"if rank == 0: raise ValueError('boom')\n{change}", timeout=FAR_S)
    assert list(caught.value.errors) == [0]
    works(pair)


@pytest.mark.parametrize("change", CHANGES)
def test_a_rank_that_ends_frees_those_that_change_process_sets(pair, change):
    """The message says who did not call what."""
    called = change.partition("(")[0].removeprefix("hvd.")
    with pytest.raises(RanksFailed, match=rf"rank 0 ended .* ranks 1-2 wait in '{called}\(\)'"):
        quiet(pair, f"if rank: {change}", timeout=FAR_S)
    works(pair)


@pytest.mark.parametrize("change", CHANGES)
def test_an_interrupt_frees_those_that_change_process_sets(pair, change):
    """While another rank is in code of its own."""
    run = pair.run_in_background(f"if rank == 0: time.sleep(600)\n{change}", sink=TextSink())
    time.sleep(1)
    pair.interrupt()
    with pytest.raises(CellInterrupted):
        run.result(100)
    works(pair)


SLOW_TO_WAKE = """
if rank == 2:
    usual = signal.signal(signal.SIGUSR1, lambda *_: time.sleep(1.5))
if rank == 1:
    time.sleep(4)
    os.kill({pid}, signal.SIGUSR1)
if rank:
    {call}
if rank == 2:
    signal.signal(signal.SIGUSR1, usual)
"""
"""Rank 2 has waited for long, and is slow to find out that what it waits for is complete."""


@pytest.mark.parametrize(
    "call",
    [
        "hvd.allreduce(torch.ones(1), name='met', process_set=pair)",
        "hvd.barrier(process_set=pair)",
        "hvd.broadcast_object(rank, root_rank=1, process_set=pair)",
    ],
)
def test_a_rank_that_has_joined_is_not_cut_off(pair, call):
    """Though it has waited for seconds when the other ends: the ring and its sets are kept."""
    quiet(pair, SLOW_TO_WAKE.format(call=call, pid=pair.ranks[2].pid), timeout=FAR_S)
    summed = quiet(pair, SUM.format("pair", "(1, 2)"), timeout=FAR_S)
    assert summed.values == {0: None, 1: 2.0, 2: 2.0}


def test_counts_of_one_process_set_say_nothing_of_another(pair):
    """Rank 2 has called more collectives than rank 1, but not more of the set they share."""
    quiet(pair, "alone = hvd.add_process_set([2])")
    call = "hvd.allreduce(torch.ones(1), name='met', process_set=pair)"
    more = "if rank == 2: hvd.allreduce(torch.ones(1), name='alone', process_set=alone)\n"
    source = SLOW_TO_WAKE.format(call=call, pid=pair.ranks[2].pid)
    quiet(pair, more + source, timeout=FAR_S)
    summed = quiet(pair, SUM.format("pair", "(1, 2)"), timeout=FAR_S)
    assert summed.values == {0: None, 1: 2.0, 2: 2.0}


def test_a_rank_that_fails_leaves_a_set_without_it_alone(pair):
    """What the others are in is completed; they are not freed, and the ring is kept."""
    source = """
    if rank == 0:
        raise ValueError("boom")
    moved = hvd.allreduce(torch.ones(60_000_000), op=hvd.Sum, process_set=pair)[-1].item()
    """
    with pytest.raises(RanksFailed, match=r"\[rank 0\] ValueError: boom") as caught:
        quiet(pair, textwrap.dedent(source), timeout=FAR_S)
    assert "freed" not in str(caught.value)
    assert quiet(pair, "globals().get('moved')").values == {0: None, 1: 2.0, 2: 2.0}
    summed = quiet(pair, SUM.format("pair", "(1, 2)"), timeout=FAR_S)
    assert summed.values == {0: None, 1: 2.0, 2: 2.0}


def test_who_waits_for_a_rank_that_waits_in_vain_is_freed_with_it(pair):
    """Rank 2 needs rank 1, which needs rank 0, which has ended the cell."""
    source = """
    if rank == 1: hvd.allreduce(torch.ones(1), name="all")
    if rank == 2: hvd.allreduce(torch.ones(1), name="two", process_set=pair)
    """
    says = "rank 0 ended .* rank 1 waits in 'all', rank 2 waits in 'two'"
    with pytest.raises(RanksFailed, match=says):
        quiet(pair, textwrap.dedent(source), timeout=FAR_S)
    works(pair)


def test_a_rank_answers_while_horovod_waits_for_one_that_is_stopped(pair):
    """Nothing of Horovod's keeps the GIL then; the kernel hears where both of the others are."""
    source = """
    if rank == 0: os.kill(os.getpid(), signal.SIGSTOP)
    while rank: hvd.allreduce(torch.ones(1), name="on", process_set=pair)
    """
    rank = psutil.Process(pair.ranks[0].pid)
    waiter = when(
        lambda: rank.status() == psutil.STATUS_STOPPED, lambda: (time.sleep(6), rank.resume())
    )
    with pytest.raises(CellTimeout, match=r"ranks? 1(-2)? w.*at:\n.*\n.*name=\"on\""):
        quiet(pair, textwrap.dedent(source), timeout=2)
    waiter.join()
    assert eventually(lambda: pair.state == "ready")
    works(pair)


@pytest.mark.parametrize("end", ["raise ValueError('boom')", "pass"])
@pytest.mark.parametrize("joins", [[0], [1, 2]])
def test_ranks_that_were_freed_from_join_take_part_in_the_next_ring(pair, end, joins):
    """Horovod remembers who has joined, and that rank would end of SIGSEGV in the next ring."""
    said = "boom" if "boom" in end else "wait"
    for _ in range(2):
        with pytest.raises(RanksFailed, match=said):
            quiet(pair, f"if rank in {joins}: hvd.join()\nelse: {end}", timeout=FAR_S)
        assert [info.state for info in pair.ranks] == ["ready"] * 3
        asked = "[float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) for _ in range(3)]"
        assert quiet(pair, asked, timeout=FAR_S).values == dict.fromkeys(range(3), [3.0] * 3)
    works(pair)
