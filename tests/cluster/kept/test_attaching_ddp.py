"""A kept cluster whose ranks torch.distributed joins, where Horovod is not installed."""

from pathlib import Path

import pytest
from clusters import gone, quiet
from kept_clusters import IN_A_CELL, KILLED, kernel

from workbench.errors import RanksFailed

ARGUMENTS = "n=2, keep='60s', backend='ddp'"
TRAINING = """
import torch
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(iterations):
    for _ in range(iterations):
        optimizer.zero_grad()
        model(torch.ones(2, 4) + rank).square().sum().backward()
        optimizer.step()
    return model.module.weight.tolist()
train(5)
"""


@pytest.fixture(autouse=True)
def without_horovod(monkeypatch):
    """Neither kernels nor ranks can import Horovod."""
    folder = Path(__file__).parents[2] / "support/without_horovod"
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_the_next_kernel_finds_it(attach):
    """Ranks, variables and models are as the earlier kernel left them; failures are handled."""
    name, pids = kernel(KILLED, ARGUMENTS, TRAINING)
    cluster = attach()
    assert (cluster.name, cluster.state) == (name, "ready")
    assert [info.pid for info in cluster.ranks] == pids
    assert cluster["kept"] == [0, 10]
    assert len(cluster.timings) == 10
    with pytest.raises(RanksFailed, match="boom"):
        quiet(cluster, "if rank: raise ValueError('boom')\ndist.barrier()", timeout=60)
    values = quiet(cluster, "train(2)", timeout=60).values
    assert values[0] == values[1]
    cluster.resize(1)
    assert quiet(cluster, "train(1); world_size", timeout=60).values == {0: 1}
    cluster.stop()
    assert gone(pids)


def test_a_cell_that_waits_for_a_rank_that_left_it(attach):
    """Its ranks are freed, and joined in another group."""
    source = "\nif rank == 0: dist.barrier()"
    kernel(IN_A_CELL.format(source=source), ARGUMENTS, TRAINING)
    cluster = attach()
    assert cluster.state == "ready"
    values = quiet(cluster, "train(2)", timeout=60).values
    assert values[0] == values[1]
