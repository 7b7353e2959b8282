"""Every collective of real ranks is recorded: its kind, its caller, and its time."""

import itertools
import json
import re

import pytest
from timers import PROCESS_S
from two_ranks import two_ranks

import workbench as wb
from workbench.errors import RanksFailed
from workbench.wire.record import TIMES

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


def test_gradients_and_the_cells_own_calls_are_distinguished(collectives):
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
    assert mine["library"].to_dict() == {
        name: {
            "allgather": "GLOO_ALLGATHER", "sparse allreduce": "GLOO_ALLGATHER",
            "broadcast": "GLOO_BCAST", "alltoall": "GLOO_ALLTOALL",
            "reducescatter": "GLOO_REDUCESCATTER", "allreduce": "GLOO_ALLREDUCE",
        }[kind]
        for name, kind in mine["kind"].items()
    }  # fmt: skip
    for before, after in itertools.pairwise(f"{name}_us" for name in TIMES):
        assert (mine[before] <= mine[after]).all(), (before, after)


def test_a_collective_that_failed_is_not_recorded(collectives):
    """It has communicated nothing, so it has no duration; what succeeds is recorded."""
    table = collectives(
        """
from horovod.common.exceptions import HorovodInternalError
def fails(handle):
    try:
        hvd.synchronize(handle)
    except HorovodInternalError:
        return
    raise AssertionError("two shapes were joined")
hvd.allreduce(torch.ones(5), name="before")
fails(hvd.allreduce_async(torch.ones(5 + rank), name="failed"))
handle = hvd.allreduce_async(torch.ones(5 + rank), name="failed and polled")
while not hvd.poll(handle): time.sleep(0.01)
after = hvd.allreduce_async(torch.ones(5), name="after")  # polls those before it
fails(handle)
hvd.synchronize(after)
"""
    )
    for rank in (0, 1):
        assert of(table, rank=rank)["name"].tolist() == ["before", "after"]


def test_a_collective_that_waited_for_a_failed_rank_is_not_recorded():
    """The end of the ring frees it: it has not taken the time until then."""
    with wb.Cluster(n=2) as cluster:
        with pytest.raises(RanksFailed, match="on purpose"):
            cluster.run(
                """
import time, torch
hvd.allreduce(torch.ones(5), name="before")
if rank == 1:
    time.sleep(0.5)
    raise ValueError("on purpose")
hvd.allreduce(torch.ones(5), name="waits")
"""
            )
        assert cluster.timings.collectives()["name"].tolist() == ["before", "before"]


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
import json, os, time
import horovod.torch as hvd
import torch
from workbench.rank.backends import process_sets
from workbench.rank.backends.horovod_hooks import poll
from workbench.rank.backends.horovod_tap import Tap
from workbench.rank.recording.recorder import Recorder

recorder = Recorder(poll, lambda item: None)
tap = Tap.open(recorder.members)
tap.record()
alone = hvd.ProcessSet([1])
hvd.init(process_sets=[alone])
process_sets.note_members(recorder)
tap.ring_formed(hvd.size())
if hvd.rank() == 1:
    hvd.allreduce(torch.ones(5), name="some", process_set=alone)
hvd.allreduce(torch.ones(5), name="some")
seen = [(hvd.rank(), *one) for one in tap.take(time.perf_counter_ns()).operations]
os.write(1, f"SEEN {json.dumps(seen)}\\n".encode())
hvd.shutdown()
"""


def test_process_sets():
    """A collective of some ranks has its set's number and size, and is recorded by those alone."""
    with two_ranks(PROCESS_SETS) as process:
        said, _ = process.communicate(timeout=PROCESS_S)
    seen = [json.loads(rows) for rows in re.findall(r"SEEN (.*)", said)]
    assert sorted(row for rows in seen for row in rows) == [
        [0, "some", 20, 1, "allreduce", 0, 2, "cell", "GLOO_ALLREDUCE", "", -1],
        [1, "some", 20, 1, "allreduce", 0, 2, "cell", "GLOO_ALLREDUCE", "", -1],
        [1, "some", 20, 1, "allreduce", 1, 1, "cell", "GLOO_ALLREDUCE", "", -1],
    ], said


UNREAD = """
import os, time
import horovod.torch as hvd
import torch
from workbench.rank.backends.horovod_tap import Tap

tap = Tap.open({})
hvd.init()
tap.ring_formed(hvd.size())
tap.record(2)
for place in range(5):
    hvd.allreduce(torch.ones(1), name=str(place))
names = [one.name for one in tap.take(time.perf_counter_ns()).operations]
tap.record(0)
hvd.allreduce(torch.ones(1), name="not recorded")
os.write(1, f"SEEN {names} {tap.lost} {tap.take(time.perf_counter_ns()).operations}\\n".encode())
hvd.shutdown()
"""


PARTS = """
import os, time
import horovod.torch as hvd
import torch
from workbench.rank.backends.horovod_tap import Tap

tap = Tap.open({})
hvd.init()
tap.ring_formed(hvd.size())
tap.record()
handles = [hvd.allreduce_async(torch.ones(1), name=name) for name in "edcba"]
group = hvd.grouped_allreduce_async([torch.ones(1)] * 2, name="group")
for handle in (*handles, group):
    hvd.synchronize(handle)
now = time.perf_counter_ns()
parts = tap.take_each([now, 0, now, now], [[handles[4], group], handles[:1], [], handles[1:3]])
parts.append(tap.take(now))
seen = [[(one.name, one.tensors) for one in part.operations] for part in parts]
sizes = [part.times.shape[1] for part in parts]
os.write(1, f"SEEN {[sorted(part) for part in seen]} {sizes}\\n".encode())
hvd.shutdown()
"""


def test_the_collectives_of_several_iterations():
    """Each belongs to the iteration that has waited for it; what had not finished remains."""
    with two_ranks(PARTS) as process:
        said, _ = process.communicate(timeout=60)
    first, fourth = [("a", 1), ("group", 2)], [("c", 1), ("d", 1)]
    rest = [("b", 1), ("e", 1)]
    seen = f"SEEN {[first, [], [], fourth, rest]} {[2, 0, 0, 2, 2]}"
    assert said.count(seen) == 2, said


def test_a_name_may_have_any_characters(collectives, tmp_path):
    """What is pending is asked for at the end of each cell, here with such names."""
    table = collectives(
        f"mark = {str(tmp_path / 'seen')!r}"
        """
import os
names = ["two\\nlines", "a\\x0bb", "plain"]
if rank == 0:
    handles = [hvd.allreduce_async(torch.ones(1), name=name) for name in names]
    pending = __import__("workbench.rank.session").rank.session.backend().pending()
    assert "plain" in {name for name, _ in pending.operations.values()}
    open(mark, "w").close()
else:
    while not os.path.exists(mark):
        time.sleep(0.02)
    handles = [hvd.allreduce_async(torch.ones(1), name=name) for name in names]
for handle in handles: hvd.synchronize(handle)
"""
    )
    assert set(of(table, rank=0)["name"]) == {"two\nlines", "a\x0bb", "plain"}


@pytest.mark.soak
def test_what_nobody_reads_is_counted():
    """Memory is bounded; what is not kept is reported, and what is switched off is not recorded."""
    with two_ranks(UNREAD) as process:
        said, _ = process.communicate(timeout=PROCESS_S)
    assert said.count("SEEN ['0', '1'] 3 ()") == 2, said


def test_a_wait_for_the_cells_own_collective_is_exposed(cluster):
    """A metric's sum, for which one rank waits, is time in which training waits."""
    cluster.run(
        MODEL
        + """
def metric():
    if rank == 1: time.sleep(0.3)
    hvd.allreduce(torch.ones(1), name="metric")
train(distributed(), steps=4, between=metric)
"""
    )
    table = cluster.timings.to_frame().iloc[-6:]
    # half of it, and at best of several: a busy machine makes either rank late
    assert of(table, rank=0)["exposed_us"].median() > 150_000
    assert of(table, rank=1)["exposed_us"].min() < 150_000
