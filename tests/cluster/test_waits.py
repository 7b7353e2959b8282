"""Waits that can never end are distinguished from long ones, and reported in time."""

import textwrap

import pytest
from clusters import quiet
from timers import FAR_S

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import CellTimeout, RanksFailed

TRAIN = """
import time, torch
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)])
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
for _ in range({batches}[rank]):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""
ASYNC = """
h = hvd.allreduce_async(torch.ones(9), name='one')
if rank: hvd.allreduce(torch.ones(2), name='two')
"""


@pytest.fixture(scope="module")
def three():
    with wb.Cluster(n=3, hang_after_s=1.0) as running:
        quiet(running, TRAIN.format(batches=[1, 1, 1]))
        yield running


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (TRAIN.format(batches=[4, 6, 6]), r"rank 0 ended .* ranks 1-2 wait in '\d\.(weight|bias)'"),
        (TRAIN.format(batches=[6, 4, 4]), r"ranks 1-2 ended the cell while rank 0 waits in '\d\."),
        ("if rank == 1: hvd.barrier()", r"ranks 0,2 ended .* rank 1 waits in 'barrier\(\)'"),
        ("if rank: hvd.allreduce(torch.ones(2), name='n')", r"rank 0 ended .* 1-2 wait in 'n'"),
        ("if rank: hvd.allreduce(torch.ones(2))", "rank 0 ended .* 1-2 wait in 'allreduce without"),
        (
            ASYNC,
            "rank 0 ended the cell while ranks 1-2 wait in 'two'",
        ),
    ],
    ids=["few", "most", "barrier", "named", "unnamed", "async"],
)
def test_ranks_that_have_ended_are_not_waited_for(three, source, says):
    """A line says who ended, who waits where, and what to do; the ranks continue."""
    quiet(three, "import torch")
    with pytest.raises(RanksFailed, match=says) as caught:
        quiet(three, source, timeout=FAR_S)
    text = str(caught.value)
    assert "Call every collective on all ranks" in text
    assert "hvd.join()" in text
    assert len(text.splitlines()) <= 4  # the last names the evidence bundle
    assert "Traceback" not in text
    assert quiet(three, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))").values[0] == 3


def test_join_is_no_hang(three):
    """A rank may wait in it for as long as others train."""
    source = TRAIN.format(batches=[4, 6, 8]) + "if rank == 2: time.sleep(2.5)\nhvd.join()"
    result = quiet(three, source, timeout=FAR_S)
    assert set(result.values.values()) == {2}
    assert "No progress" not in result.output
    assert "Missing" not in result.output


def test_a_large_tensor_that_an_ended_rank_left_under_way_arrives(three):
    """The ended rank is asked whether it still takes part; the others are not cut off."""
    source = """
    import torch
    left = hvd.allreduce_async(torch.ones(40_000_000), name='large')
    float(hvd.synchronize(left)[0]) if rank else None
    """
    result = quiet(three, textwrap.dedent(source), timeout=FAR_S)
    assert result.values == {0: None, 1: 1.0, 2: 1.0}
    quiet(three, "hvd.synchronize(left) if rank == 0 else None;")


def test_a_process_set_waits_for_its_own_members_only():
    """A rank outside it may have ended the cell long before."""
    with wb.Cluster(n=3) as cluster:
        source = """
        import os, time, torch
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        hvd.shutdown()
        """
        quiet(cluster, textwrap.dedent(source))
        quiet(cluster, "pair = hvd.add_process_set([1, 2])")
        waits = (
            "if rank == 1: time.sleep(5)\n"
            "if rank: total = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=pair)\n"
            "float(total) if rank else None"
        )
        assert quiet(cluster, waits, timeout=FAR_S).values == {0: None, 1: 2.0, 2: 2.0}
        with pytest.raises(RanksFailed, match=r"rank 1 ended .* rank 2 waits"):
            quiet(cluster, "if rank == 2: hvd.barrier(process_set=pair)", timeout=FAR_S)


@pytest.mark.soak
def test_unnamed_collectives_that_never_match_are_explained():
    """Horovod matches them by a number, which differs once a process set has been used."""
    said = []
    written = TextSink()
    written.note = said.append
    with wb.Cluster(n=3, hang_after_s=1.0) as cluster:
        source = """
        import os, torch
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        hvd.shutdown()
        """
        quiet(cluster, textwrap.dedent(source))
        quiet(cluster, "pair = hvd.add_process_set([1, 2])\nalone = hvd.add_process_set([2])")
        quiet(cluster, "if rank == 2: hvd.allreduce(torch.ones(1), process_set=alone)")
        waits = "if rank: hvd.allreduce(torch.ones(1), process_set=pair)"
        with pytest.raises(CellTimeout):
            cluster.run(waits, timeout=8, sink=written)
        assert "Rank 0 has ended" not in "".join(said)
        assert "give the collective a name" in "".join(said)
        assert "It goes on" not in "".join(said)
        named = "float(hvd.allreduce(torch.ones(1), name='n', process_set=pair)) if rank else 0"
        assert quiet(cluster, "pair = hvd.add_process_set([1, 2])").values.keys() == {0, 1, 2}
        assert quiet(cluster, named, timeout=FAR_S).values == {0: 0, 1: 1.0, 2: 1.0}


def test_a_rank_that_waits_again_after_it_was_freed_is_freed_again(three):
    """Code that swallows Horovod's error and calls the next collective."""
    source = """
    import torch
    if rank == 0:
        raise ValueError("boom")
    for _ in range(3):
        try:
            hvd.allreduce(torch.ones(1), name="met")
        except Exception:
            pass
    """
    with pytest.raises(RanksFailed, match="boom"):
        quiet(three, textwrap.dedent(source), timeout=FAR_S)
    assert quiet(three, "rank").values == {0: 0, 1: 1, 2: 2}
