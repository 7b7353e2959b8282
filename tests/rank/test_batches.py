"""Samples, passes over the data and CPU time, of loops from which they follow."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from training_loops import MODEL

from workbench.rank.recording.batches import Batches, first_dimension

LOADER = (
    MODEL
    + """
from torch.utils.data import DataLoader, TensorDataset
def loader(count, size): return DataLoader(TensorDataset(torch.randn(count, 32)), batch_size=size)
optimizer = distributed(model)
def step(batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
)
PASSES = """
for _ in range(2):
    for (b,) in loader(20, 8): step(b)
"""
EVALUATED = """
for (b,) in loader(16, 8):
    step(b)
    with torch.no_grad():
        for (other,) in loader(4, 2): model(other)
"""
ALTERNATE = """
other = nn.Linear(32, 8)
both = (model, optimizer), (other, distributed(other))
for place, (b,) in enumerate(loader(36, 8)):
    trained, its_optimizer = both[place % 2]
    its_optimizer.zero_grad()
    trained(b).square().mean().backward()
    its_optimizer.step()
"""
TOGETHER = """
other = nn.Linear(32, 8)
second = distributed(other)
for (b,) in loader(20, 8):
    step(b)
    second.zero_grad(); other(b).square().mean().backward(); second.step()
"""


@pytest.fixture(scope="module")
def rows(cluster):
    """Run a loop; return its rows on rank 0 and the summary's progress."""
    cluster.run(LOADER)

    def run(loop):
        before = len(cluster.timings)
        cluster.run(loop)
        new = cluster.timings.rows(before)
        return new[new["rank"] == 0], cluster.timings.summary().progress

    return run


@pytest.mark.parametrize(
    ("loop", "samples", "batch"),
    [
        (PASSES, [8, 8, 4] * 2, [1, 2, 3] * 2),
        ("for _ in range(3): step(torch.randn(6, 32))", [6] * 3, [0] * 3),
        (EVALUATED, [8, 8], [1, 2]),
    ],
    ids=["passes of a loader", "no loader", "an evaluation in between"],
)
def test_samples_and_places_follow_from_the_loop(rows, loop, samples, batch):
    """Each iteration has the samples that its forwards used, and the loader's place."""
    own, _ = rows(loop)
    assert own["samples"].tolist() == samples
    assert own["batch"].tolist() == batch
    assert set(own["batches"]) == {max(batch)}


def test_the_steps_of_an_iteration_count_each_batch_once(rows):
    """Two optimizers that take turns have a batch each; those that share one have one."""
    own, _ = rows(ALTERNATE)
    assert own["samples"].tolist() == [16, 16, 4]
    assert own["batch"].tolist() == [2, 4, 5]
    own, _ = rows(TOGETHER)
    assert own["samples"].tolist() == [8, 8, 4]
    assert own["batch"].tolist() == [1, 2, 3]


def test_samples_per_second_are_of_all_ranks_and_threads_use_cpu(rows, cluster):
    """Two ranks with 8 samples in each iteration; Horovod's threads compute between readings."""
    rows("import time\nfor (b,) in loader(80, 8):\n    step(b)\n    time.sleep(0.1)")
    table = cluster.timings.to_frame()
    own = table[table["iteration"] > table["iteration"].max() - 8]
    assert own["samples_per_s"].to_numpy() == pytest.approx(
        (own["samples"] / own["iteration_us"] * 1e6).to_numpy()
    )
    assert (own["communication_cpu_us"].dropna() > 0).all()
    assert own["communication_cpu_us"].notna().any()


def batches(*used):
    """What is counted of forwards, each of a model with arguments."""
    counted = Batches()
    for model, arguments in used:
        counted.forward(model, arguments)
    return counted.take()


def test_what_differs_or_is_no_tensor_is_unknown():
    """Inputs with several first dimensions, or none, have no number of samples."""
    four, five = torch.zeros(4, 2), torch.zeros(5)
    assert first_dimension((four, four)) == first_dimension({"a": four, "b": 3}) == 4
    assert first_dimension((four, five)) == -1
    assert first_dimension("text") == first_dimension(torch.tensor(1.0)) == 0
    assert batches((1, (four,)), (1, (four,))).samples == 8  # accumulated
    assert batches((1, (four,)), (2, (four,))).samples == 4  # a second model uses the same
    assert batches((1, (four, five)), (1, (four,))).samples == 0


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.zeros(6, 3))


@pytest.mark.parametrize("skip", [0, 1], ids=["all", "resumed"])
def test_a_stream_has_no_length(skip):
    """Its samples are counted, but how many batches remain is unknown."""
    counted, iterator = Batches(), iter(DataLoader(Stream(), batch_size=2))
    for _ in range(skip + 1):
        batch = next(iterator)
    counted.loaded(batch, iterator)
    counted.forward(1, ())
    assert tuple(counted.take()) == (2, skip + 1, 0)
    assert tuple(counted.take()) == (0, 0, 0)
