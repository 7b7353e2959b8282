"""Every collective of real ranks is told: what it was, who called it, when it was under way."""

import json

import pytest
from two_ranks import two_ranks

MODEL = """
import time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
inputs, targets = torch.randn(64, 32), torch.randint(0, 8, (64,))
def distributed(**options):
    return hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters(),
        **options)
def train(optimizer, steps=3, between=lambda: None):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        between()
"""
SIZES = {"0.weight": 32 * 64, "0.bias": 64, "2.weight": 64 * 8, "2.bias": 8}


@pytest.fixture
def collectives(cluster):
    """Runs a cell on both ranks, and returns the collectives that it had."""

    def run(source):
        cluster.run(MODEL + source)
        table = cluster.timings.collectives()
        return table[table["cell"] == table["cell"].max()]

    return run


def of(table, **values):
    """The rows in which columns have these values."""
    for column, value in values.items():
        table = table[table[column] == value]
    return table


def test_gradients_and_the_cells_own_calls_are_told_apart(collectives):
    """Names as Horovod knows them; who called; before, within and after the iterations."""
    table = collectives(
        """
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
train(distributed(), between=lambda: hvd.allreduce(torch.ones(50), name="metric"))
hvd.allgather(torch.ones(3, 2), name="last")
"""
    )
    gradients = of(table, by="optimizer", rank=0)
    assert set(gradients["name"]) == set(SIZES)
    assert gradients.groupby("iteration")["bytes"].sum().tolist() == [4 * sum(SIZES.values())] * 3
    own = of(table, by="cell", rank=1)
    assert of(own, kind="broadcast")["iteration"].tolist() == [-1] * 4
    metric = of(own, name="metric")
    first = gradients["iteration"].min()
    # what follows a step is of the iteration that comes, and after the last of none
    assert sorted(metric["iteration"]) == [-1, first + 1, first + 2]
    assert set(metric["bytes"]) == {200}
    (last,) = of(own, kind="allgather").to_dict("records")
    assert (last["name"], last["iteration"], last["bytes"]) == ("last", -1, 24)


def test_each_kind_is_named(collectives):
    """What runs on the wire: a sparse allreduce is two allgathers, a group one collective."""
    table = collectives(
        """
hvd.allreduce(torch.ones(1), name="a")
hvd.allreduce_(torch.ones(1), name="b")
hvd.synchronize(hvd.allreduce_async(torch.ones(1), name="c"))
hvd.grouped_allreduce([torch.ones(1), torch.ones(2)], name="d")
hvd.allgather(torch.ones(1), name="e")
hvd.broadcast(torch.ones(1), root_rank=0, name="f")
hvd.alltoall(torch.ones(2), name="g")
hvd.reducescatter(torch.ones(2), name="h")
hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), name="i", op=hvd.Sum)()
hvd.allreduce(torch.ones(4), name="j", compression=hvd.Compression.fp16)
hvd.allreduce(torch.ones(1))
hvd.barrier()
"""
    )
    mine = of(table, rank=0).set_index("name")
    assert mine["kind"].to_dict() == {
        "a": "allreduce", "b": "allreduce", "c": "allreduce", "d": "allreduce",
        "e": "allgather", "f": "broadcast", "g": "alltoall", "h": "reducescatter",
        "i.indices": "sparse allreduce", "i.values": "sparse allreduce", "j": "allreduce",
        "allreduce without a name": "allreduce",
    }  # fmt: skip
    assert mine.loc["d", ["tensors", "bytes"]].tolist() == [2, 12]
    assert mine.loc[["i.indices", "i.values"], "tensors"].tolist() == [0, 1]
    assert mine.loc["j", "bytes"] == 8
    assert set(mine["by"]) == {"cell"}
    assert (mine["finished_us"] >= mine["unfinished_us"]).all()
    assert (mine["unfinished_us"] >= mine["submitted_us"]).all()


def test_sparse_compressed_and_grouped_gradients(collectives):
    """An embedding's gradient travels as two allgathers; halves are counted; groups are one."""
    table = collectives(
        """
embedding = nn.Embedding(100, 4, sparse=True)
sparse = hvd.DistributedOptimizer(
    torch.optim.SGD(embedding.parameters(), lr=0.1), named_parameters=embedding.named_parameters())
for _ in range(2):
    sparse.zero_grad()
    embedding(torch.tensor([1, 2, 3])).sum().backward()
    sparse.step()
"""
    )
    mine = of(table, rank=0, by="optimizer")
    assert set(mine["kind"]) == {"sparse allreduce"}
    # three indices of 8 bytes, three rows of four floats
    assert mine.groupby("iteration")["bytes"].sum().tolist() == [3 * 8 + 3 * 16] * 2
    table = collectives("train(distributed(compression=hvd.Compression.fp16, num_groups=1))")
    mine = of(table, rank=0, by="optimizer")
    assert mine["tensors"].tolist() == [4] * 3
    assert mine["bytes"].tolist() == [2 * sum(SIZES.values())] * 3


PROCESS_SETS = """
import json, os
import horovod.torch as hvd
import torch
from workbench.rank.horovod_hooks import HorovodHooks, poll
from workbench.rank.recorder import Recorder

delivered = []
hooks = HorovodHooks(Recorder(poll, delivered.append))
hooks.install()
alone = hvd.ProcessSet([1])
hvd.init(process_sets=[alone])
if hvd.rank() == 1:
    hvd.allreduce(torch.ones(5), name="some", process_set=alone)
hvd.allreduce(torch.ones(5), name="some")
hooks._recorder.end_cell()
seen = [(hvd.rank(), *one) for item in delivered for one in item.collectives.operations]
os.write(1, f"SEEN {json.dumps(seen)}\\n".encode())
hvd.shutdown()
"""


def test_process_sets():
    """A collective of some ranks has its set's number and size, and is told by those alone."""
    with two_ranks(PROCESS_SETS) as process:
        said, _ = process.communicate(timeout=60)
    told = [json.loads(line[5:]) for line in said.splitlines() if line.startswith("SEEN ")]
    assert sorted(row for rows in told for row in rows) == [
        [0, "some", 20, 1, "allreduce", 0, 2, "cell"],
        [1, "some", 20, 1, "allreduce", 0, 2, "cell"],
        [1, "some", 20, 1, "allreduce", 1, 1, "cell"],
    ], said


def test_a_wait_for_the_cells_own_collective_is_exposed(cluster):
    """A metric's sum, for which one rank waits, is time that training stands still."""
    cluster.run(
        MODEL
        + """
def metric():
    if rank == 1: time.sleep(0.05)
    hvd.allreduce(torch.ones(1), name="metric")
train(distributed(), steps=4, between=metric)
"""
    )
    table = cluster.timings.to_frame().iloc[-6:]
    assert of(table, rank=0)["exposed_us"].min() > 45_000
    assert of(table, rank=1)["exposed_us"].min() < 45_000
