"""`measure_overhead` after the ranks were changed, and after a stop."""

import pytest
from clusters import quiet, training
from timers import FAR_S

import workbench as wb
from workbench.errors import UsageError


@pytest.fixture(scope="module")
def changed():
    with wb.Cluster(n=2) as cluster:
        yield cluster


@pytest.fixture
def two(changed):
    """A cluster of two ranks, whatever the test before has done."""
    if changed.n != 2:
        changed.resize(2)
    return changed


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [None, "0-1"])
def test_a_cell_of_all_ranks_runs_on_all_of_them(two, ranks):
    """Also on those that a resize has added, without which its collectives would wait."""
    quiet(two, training(4), ranks=ranks)
    two.resize(3)
    before = len(two.timings)
    found = two.measure_overhead(pairs=3, timeout=FAR_S)
    assert (found.pairs, found.iterations) == (3, 4)
    assert set(two.timings.rows(before)["rank"].tolist()) == {0, 1, 2}
    two.resize(2)
    assert two.measure_overhead(pairs=3, timeout=60).pairs == 3


LOCAL = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad(); model(torch.ones(4, 8)).sum().backward(); optimizer.step()
"""


def test_a_cell_of_some_ranks_runs_on_those(two):
    """Ranks that are gone are named before anything runs."""
    two.resize(3)
    quiet(two, LOCAL + "count = 1", ranks="0,2")
    before = len(two.timings)
    two.measure_overhead(pairs=3)
    rows = two.timings.rows(before)
    assert set(rows["rank"].tolist()) == {0, 2}
    two.resize(2)
    before = len(two.timings)
    with pytest.raises(UsageError, match=r"there is no rank 2\. This cluster has 2, numbered 0-1"):
        two.measure_overhead()
    assert len(two.timings) == before
    assert two.measure_overhead(ranks="0", pairs=3).pairs == 3


def test_after_a_stop_and_a_start(two):
    """Cells of the stopped ranks are not measured, and the reason is that none has run."""
    quiet(two, training(3))
    two.stop()
    two.start()
    with pytest.raises(UsageError, match="no cell has run"):
        two.measure_overhead()
    quiet(two, training(3))
    assert two.measure_overhead(pairs=3).iterations == 3
