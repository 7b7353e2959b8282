"""Ranks as the subject of a sentence: one and several, and those that do the same together."""

import os
import signal

import pytest
from clusters import quiet
from rank_states import rank_state
from test_stop_button import STUBBORN
from timers import eventually

import workbench as wb
from workbench.cluster.stalls import StallReport
from workbench.errors import CellTimeout, ClusterStopped, UsageError
from workbench.ranks import grouped, phrase


def test_the_verb_agrees():
    """`rank 1 is`, `ranks 0-1 are`; without a verb only who they are."""
    assert phrase([1], "is", "are") == "rank 1 is"
    assert phrase((0, 1), "is", "are") == "ranks 0-1 are"
    assert phrase(iter([0, 2])) == "ranks 0,2"
    assert grouped({2: "b", 0: "a", 1: "b"}) == [("a", [0]), ("b", [1, 2])]


def report(waiting, **others):
    """Return the report on a collective of 6 ranks; `others` are at code of theirs."""
    ranks = range(6)
    watch = StallReport(ranks, 1.0, lambda rank, message: None)
    unfinished = {*waiting, *others.get("absent", {}), *others.get("silent", ())}
    watch.check(unfinished, 0.0)
    watch.check(unfinished, 10.0)
    for rank in waiting:
        watch.answer(rank, rank_state(collective="grad", blocked_s=9.0))
    for rank, stack in others.get("absent", {}).items():
        watch.answer(rank, rank_state(stack=stack))
    return watch.check(unfinished, 20.0)


def test_a_stall_names_ranks_once():
    """Ranks at one place are one line; each number has its verb."""
    one = report([0], absent={1: "  line 1\n"}, silent=[2])
    assert "Rank 1 is missing; it is at:\n  line 1\n" in one
    assert "Rank 2 is missing and does not answer: its process is stopped" in one
    assert "Ranks 3-5 have ended the cell already" in one
    several = report([5], absent={0: "  same", 1: "  same", 4: "  other"}, silent=[2, 3])
    assert "Ranks 0-1 are missing; they are at:\n  same\n" in several
    assert "Rank 4 is missing; it is at:\n  other\n" in several
    assert "Ranks 2-3 are missing and do not answer: their processes are stopped" in several
    assert several.count("  same") == 1
    assert "Rank 5 has ended" in report([0, 1], absent={2: "a", 3: "a", 4: "a"})


def test_a_report_keeps_the_names_of_tensors():
    """A sentence begins with a capital; no name in it is made lower case."""
    watch = StallReport((0, 1), 1.0, lambda rank, message: None)
    watch.check({0, 1}, 0.0)
    watch.check({0, 1}, 10.0)
    watch.answer(0, rank_state(collective="DistributedOptimizer.X", blocked_s=9.0))
    watch.answer(1, rank_state(prompt="breakpoint"))
    assert watch.check({0, 1}, 20.0).startswith("Rank 0 waits in 'DistributedOptimizer.X' for ")


def test_a_collective_in_a_cell_of_some_ranks():
    """The other ranks never come: the message says neither that all are in it nor that it runs."""
    watch = StallReport([1, 2], 1.0, lambda rank, message: None, range(4))
    watch.check({1, 2}, 0.0)
    watch.check({1, 2}, 10.0)
    for rank in (1, 2):
        watch.answer(rank, rank_state(collective="grad", blocked_s=9.0))
    said = watch.check({1, 2}, 20.0)
    assert "Ranks 0,3 do not run this cell" in said
    assert "without --ranks" in said
    assert "All ranks are in it" not in said
    assert "It goes on" not in said
    watch.check({1, 2}, 30.0)
    for rank in (1, 2):
        watch.answer(rank, rank_state(collective="set", blocked_s=9.0, members=(1, 2)))
    assert "do not run" not in watch.check({1, 2}, 40.0)


def test_all_ranks_that_wait_are_named():
    """One that came last, too: it says that all wait."""
    watch = StallReport(range(3), 1.0, lambda rank, message: None)
    watch.check({0, 1, 2}, 0.0)
    watch.check({0, 1, 2}, 10.0)
    watch.answer(0, rank_state(collective="other", blocked_s=0.4))
    for rank in (1, 2):
        watch.answer(rank, rank_state(collective="grad", blocked_s=1.2))
    text = watch.check({0, 1, 2}, 20.0)
    assert "[rank 0] in 'other'; [ranks 1-2] in 'grad'" in text
    assert "All ranks wait, in different collectives" in text


@pytest.mark.soak
def test_ranks_that_still_run_a_cell(tmp_path):
    """A reason that several ranks share is one clause; restarting one rank alone is refused."""
    source = STUBBORN.format(end=str(tmp_path / "end"))
    source = source.replace("rank == 1", "True").replace("rank != 1", "False")
    with wb.Cluster(n=3) as cluster:
        with pytest.raises(CellTimeout, match="ranks 0-2 have caught the interrupt"):
            quiet(cluster, source, timeout=0.5)
        with pytest.raises(ClusterStopped) as caught:
            quiet(cluster, "1")
        assert "ranks 0-2 still run a cell that was stopped." in str(caught.value)
        with pytest.raises(UsageError) as caught:
            cluster.restart("1")
        assert "Cannot restart rank 1: ranks 0,2 still run a cell" in str(caught.value)
        assert "%cluster restart --ranks 1,0,2" not in str(caught.value)
        os.kill(cluster.ranks[1].pid, signal.SIGKILL)
        assert eventually(lambda: cluster.ranks[1].state == "dead")
        with pytest.raises(ClusterStopped) as caught:
            quiet(cluster, "1")
        assert "ranks 0,2 still run a cell" in str(caught.value)
        assert "rank 1: its process" in str(caught.value)
