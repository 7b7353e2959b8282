"""A model and a training loop for cells, and what must hold of every table of iterations."""

import pytest

PHASES = [
    "data_us", "copy_us", "forward_us", "backward_us", "exposed_us", "optimizer_us", "other_us"
]  # fmt: skip


MODEL = """
import time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
inputs, targets = torch.randn(64, 32), torch.randint(0, 8, (64,))
def loss_of(m=None):
    return nn.functional.cross_entropy((m or model)(inputs), targets)
def distributed(m, lr=0.01, **options):
    return hvd.DistributedOptimizer(
        torch.optim.SGD(m.parameters(), lr=lr), named_parameters=m.named_parameters(), **options)
"""


PARAMETERS = 32 * 64 + 64 + 64 * 8 + 8


TENSORS = 4


PLAIN = """
optimizer = distributed(model)
for _ in range(10):
    optimizer.zero_grad()
    loss_of().backward()
    optimizer.step()
"""


SLACK_US = 60_000
"""What a sleep may take longer on a busy machine, at best of several."""


def without_first(table):
    """The iterations after the first of the cell, which begins with its forward."""
    return table[table["iteration"] > table["iteration"].min()]


def check(table, iterations, *, tensors=TENSORS, size=PARAMETERS * 4, ranks=2):
    """One row per iteration and rank, with these gradients, whose phases add up."""
    assert len(table) == iterations * ranks
    assert sorted(table["rank"].unique()) == list(range(ranks))
    assert table.groupby("rank")["iteration"].nunique().tolist() == [iterations] * ranks
    assert table["tensors"].tolist() == [tensors] * len(table)
    assert table["bytes"].tolist() == [size] * len(table)
    assert (table[PHASES].fillna(0) >= 0).all(axis=None)
    assert table[PHASES].sum(axis=1).to_numpy() == pytest.approx(
        table["iteration_us"].to_numpy(), rel=0.001
    )
    if tensors:
        assert (table["communication_us"] > 0).all()
        assert table["overlap"].between(0, 1).all()
