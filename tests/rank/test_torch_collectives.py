"""Collectives of torch.distributed that a cell or a library calls are timed as communication."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from clusters import SHARED_MODEL, quiet
from levels import in_soak

import workbench as wb
from workbench.rank.backends.torch_calls import TorchCalls
from workbench.rank.backends.torch_collectives import TorchCollectives
from workbench.rank.backends.torch_operations import METHODS, measure
from workbench.rank.backends.torch_operators import OperatorHooks
from workbench.rank.recording.recorder import Recorder

BEGIN = (
    SHARED_MODEL
    + """
import threading, warnings
import torch.distributed._functional_collectives as functional
warnings.simplefilter("ignore")
inputs, targets = torch.randn(64, 32), torch.randint(0, 8, (64,))
world = dist.group.WORLD
def train(reduce=None, steps=5, m=None, optimizer=None):
    m = net() if m is None else m
    optimizer = optimizer or torch.optim.SGD(m.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(m(inputs), targets).backward()
        if reduce: reduce(m)
        optimizer.step()
    return m
"""
)
BYTES = 4 * (32 * 64 + 64 + 64 * 8 + 8)
STEPS = 5


@pytest.fixture
def trained(cluster):
    """Runs a cell; returns its values, its iterations after the first, and their collectives."""

    def run(source, on=cluster):
        before = on.timings.to_frame()["iteration"].max()
        values = quiet(on, BEGIN + source).values
        rows, table = on.timings.to_frame(), on.timings.collectives()
        rows = rows[~(rows["iteration"] <= before)]
        rows = rows[rows["iteration"] > rows["iteration"].min()]
        return values, rows, table[table["iteration"].isin(rows["iteration"])]

    return run


CALLS = {
    "all_reduce": ("dist.all_reduce(t)", "allreduce", 400),
    "all_reduce of a coalesced list": ("dist.all_reduce_coalesced([t, t])", "allreduce", 800),
    "broadcast": ("dist.broadcast(t, 0)", "broadcast", 400),
    "reduce": ("dist.reduce(t, 1)", "reduce", 400),
    "all_gather": ("dist.all_gather([t.clone(), t.clone()], t)", "allgather", 400),
    "all_gather_into_tensor": ("dist.all_gather_into_tensor(two, t)", "allgather", 400),
    "gather": ("dist.gather(t, None if rank else [t, t.clone()], 0)", "gather", 400),
    "scatter": ("dist.scatter(t, None if rank else [t, t.clone()], 0)", "scatter", 400),
    "reduce_scatter": ("dist.reduce_scatter(t, [t, t])", "reducescatter", 800),
    "reduce_scatter_tensor": ("dist.reduce_scatter_tensor(t, two)", "reducescatter", 800),
    "all_to_all": ("dist.all_to_all([t, t.clone()], [t, t])", "alltoall", 800),
    "all_to_all_single": ("dist.all_to_all_single(two, two.clone())", "alltoall", 800),
    "an operator": ("functional.all_reduce(t, 'sum', world) + 1", "allreduce", 400),
    "an operator's gather": (
        "functional.all_gather_single(t, 0, world) + 1", "allgather", 400,
    ),
    "an operator's list": (
        "[x + 1 for x in functional.all_reduce_coalesced([t, t], 'sum', world)]", "allreduce", 800,
    ),
    "asynchronous": ("dist.all_reduce(t, async_op=True).wait()", "allreduce", 400),
    "a future": ("dist.all_reduce(t, async_op=True).get_future().wait()", "allreduce", 400),
    "the group's method": ("world.allreduce([t]).wait()", "allreduce", 400),
    "compiled": ("compiled(t)", "allreduce", 400),
    "compiled in place": ("compiled_in_place(t)", "allreduce", 400),
}  # fmt: skip


@pytest.mark.parametrize("compiler", ["aot_eager", in_soak("inductor")])
def test_every_function_is_recorded_once_with_its_bytes(trained, compiler):
    """One per step and rank, its kind, exact bytes, begin before end, and waiting for it."""
    calls = "".join(f"def f{i}(m): {call}\n" for i, (call, _, _) in enumerate(CALLS.values()))
    _, rows, table = trained(
        f"""
t, two = torch.ones(100), torch.ones(200)
@torch.compile(backend={compiler!r})
def compiled(t):
    return functional.all_reduce(t * 2, "sum", world) + 1
@torch.compile(backend={compiler!r})
def compiled_in_place(t):
    dist.all_reduce(t)
    return t + 1
{calls}
for f in ({", ".join(f"f{i}" for i in range(len(CALLS)))}):
    train(f)
"""
    )

    # every training is of its own model, whose steps follow those of the previous one
    last = rows["iteration"].min() - 1
    for number, (what, (_, kind, size)) in enumerate(CALLS.items()):
        begin = last + number * STEPS
        own = table[(table["iteration"] > begin) & (table["iteration"] < begin + STEPS)]
        assert len(own) == 2 * (STEPS - 1), what
        assert set(own["kind"]) == {kind}, what
        assert set(own["bytes"]) == {size}, what
        assert (set(own["by"]), set(own["ranks"])) == ({"cell"}, {2}), what
        assert (own["submitted_us"] < own["finished_us"]).all(), what
        its = rows[rows["iteration"].isin(own["iteration"])]
        assert its["exposed_us"].median() > 0, what
        assert (its["communication_us"] > 0).all(), what


def test_point_to_point_and_objects(trained):
    """A send is the other rank's receive; objects are a length and their bytes."""
    _, rows, table = trained(
        """
t = torch.ones(1000)
def exchange(m):
    dist.send(t, 1) if rank == 0 else dist.recv(t, 0)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, t, 1 - rank), dist.P2POp(dist.irecv, t.clone(), 1 - rank)]
    ): work.wait()
    dist.all_gather_object([None] * 2, "x" * 100)
train(exchange)
"""
    )
    for rank, kinds in ((0, "send send recv"), (1, "recv send recv")):
        own = table[table["rank"] == rank]
        ours = own[own["kind"].isin(["send", "recv"])]
        assert sorted(ours["kind"]) == sorted(kinds.split() * (STEPS - 1))
        assert set(ours["bytes"]) == {4000}
        gathered = own[own["kind"] == "allgather"]
        assert len(gathered) == 2 * (STEPS - 1)
        assert (gathered["bytes"] == 8).sum() == STEPS - 1
    assert (rows["exposed_us"] > 0).all()


def test_waiting_for_a_late_rank_is_exposed(trained):
    """The rank that calls first waits; both have the same communication from then on."""
    _, rows, _ = trained(
        """
def reduce(m):
    if rank == 1: time.sleep(0.3)
    for p in m.parameters(): dist.all_reduce(p.grad)
train(reduce)
"""
    )
    early, late = (rows[rows["rank"] == rank].set_index("iteration") for rank in (0, 1))
    # half of it, and mostly: a busy machine makes either rank late
    assert (early["exposed_us"] - late["exposed_us"]).median() > 150_000
    assert (early["wait_us"] > 150_000).mean() > 0.5
    assert (late["other_us"] > 299_000).all()
    assert rows["bytes"].tolist() == [BYTES] * len(rows)


def test_an_asynchronous_one_overlaps_with_compute(trained):
    """It ends when it ends: not when the cell waits for it 300 ms later, nor where it began."""
    ended, rows, table = trained(
        """
ended = []
def reduce(m):
    dist.barrier()
    if rank == 1: time.sleep(0.2)
    began = time.perf_counter()
    work = dist.all_reduce(torch.ones(100), async_op=True)
    while not work.is_completed(): time.sleep(0.001)
    ended.append((time.perf_counter() - began) * 1e6)
    time.sleep(0.3)
    work.wait()
train(reduce)
ended
"""
    )
    assert len(table) == 2 * (STEPS - 1)  # a barrier is no collective with bytes
    for rank in (0, 1):
        own = table[table["rank"] == rank].sort_values("submitted_us")
        took = (own["finished_us"] - own["submitted_us"]).to_numpy()
        # nearer to where the cell saw it end than to where it waited
        later = took - np.array(ended[rank][-len(own) :])
        assert np.abs(np.median(later)) < 150_000
        assert rank == 1 or np.median(took) > 100_000  # it waited for the other
    assert (rows["other_us"] > 299_000).all()
    assert rows["overlap"].median() > 0.9


def test_a_barrier_is_exposed(trained):
    """As Horovod's: training waits, and no bytes travel."""
    _, rows, table = trained(
        """
def wait(m):
    if rank == 1: time.sleep(0.2)
    dist.barrier()
train(wait)
"""
    )
    assert len(table) == 0
    assert rows[rows["rank"] == 0]["exposed_us"].median() > 100_000


def test_another_threads_collectives_are_not_exposed(trained):
    """Training does not wait for them."""
    _, rows, table = trained(
        """
def reduce(m):
    def run():
        if rank == 1: time.sleep(0.05)
        dist.all_reduce(torch.ones(100))
    thread = threading.Thread(target=run)
    thread.start(); time.sleep(0.1); thread.join()
train(reduce)
"""
    )
    assert set(table["name"]) == {"all_reduce 1 of a thread"}
    assert len(table) == 2 * (STEPS - 1)
    assert (rows["exposed_us"] == 0).all()
    assert rows[rows["rank"] == 0]["overlap"].median() > 0.9


def test_groups_of_some_ranks_are_told_apart(trained):
    """Each group has the same number on all its ranks, and its size."""
    with wb.Cluster(n=3) as three:
        _, _, table = trained(
            """
pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
def reduce(m):
    for number, pair in enumerate(pairs):
        if rank in (number, number + 1): dist.all_reduce(torch.ones(100), group=pair)
    dist.all_reduce(torch.ones(50))
train(reduce)
""",
            on=three,
        )
    whole = table[table["process_set"] == 0]
    assert (set(whole["ranks"]), set(whole["bytes"])) == ({3}, {200})
    pairs = table[table["process_set"] != 0]
    assert (set(pairs["ranks"]), set(pairs["bytes"])) == ({2}, {400})
    members = pairs.groupby("process_set")["rank"].agg(lambda ranks: tuple(sorted(set(ranks))))
    assert sorted(members) == [(0, 1), (1, 2)]


def test_zero_steps_once_per_iteration(trained):
    """The broadcasts of the optimizer's step are in the iteration of that step."""
    _, rows, table = trained(
        """
from torch.distributed.optim import ZeroRedundancyOptimizer
m = net()
optimizer = ZeroRedundancyOptimizer(m.parameters(), torch.optim.SGD, lr=0.01)
train(by_hand := lambda m: [dist.all_reduce(p.grad) for p in m.parameters()] and None,
      m=m, optimizer=optimizer)
"""
    )
    assert rows["iteration"].nunique() == STEPS - 1
    own = table[table["by"] == "zero"]
    assert set(own["kind"]) == {"broadcast"}
    assert set(own.groupby(["iteration", "rank"])["bytes"].sum()) == {BYTES}
    assert rows["bytes"].tolist() == [2 * BYTES] * len(rows)
    # after the gradients' own collectives, so within the same iteration
    first = own.groupby(["iteration", "rank"])["submitted_us"].min()
    reduced = table[table["by"] == "cell"].groupby(["iteration", "rank"])["finished_us"].max()
    assert (first > reduced).all()


def test_fsdp(trained):
    """Two layers: gathers in forward and backward, and scatters of gradients, by its name."""
    _, rows, table = trained(
        """
from torch.distributed.fsdp import fully_shard
m = net()
fully_shard(m[0]); fully_shard(m[2]); fully_shard(m)
train(m=m)
"""
    )
    assert rows["iteration"].nunique() == STEPS - 1
    assert set(table["by"]) == {"fsdp"}
    counts = table.groupby(["iteration", "rank", "kind"])["bytes"].agg(["count", "sum"])
    gathers = counts.xs("allgather", level="kind")
    scatters = counts.xs("reducescatter", level="kind")
    # a rank sends its half of the parameters for the forward, and of m[0]'s for the backward
    assert gathers["count"].nunique() == gathers["sum"].nunique() == 1
    assert set(scatters["count"]) == {2}
    assert set(scatters["sum"]) == {BYTES}
    assert gathers["sum"].min() >= BYTES / 2
    assert (rows["exposed_us"] > 0).all()
    assert (rows["communication_us"] > 0).all()


def test_tensor_parallelism(trained):
    """Functional collectives of DTensor, in the forward and in the backward."""
    _, rows, table = trained(
        """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)
mesh = init_device_mesh("cpu", (world_size,))
m = parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
train(m=m)
"""
    )
    assert rows["iteration"].nunique() == STEPS - 1
    assert set(table["by"]) == {"dtensor"}
    assert set(table["kind"]) == {"allreduce"}
    assert 64 * 8 * 4 in set(table["bytes"])  # the sum of the second layer's outputs
    assert (rows["exposed_us"] > 0).all()


def test_ddp_is_counted_once(trained):
    """Buckets, and the broadcast of buffers; nothing of a hook's own collectives."""
    _, rows, table = trained(
        """
own = dist.new_group()  # whose collectives may come before or after those of the others
def hook(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    def again(done):
        # without bytes: those of a callback that runs within the hook count as the bucket's
        dist.all_reduce(torch.ones(0), group=own, async_op=True)
        return done.value()[0] / world_size
    return future.then(again)
m = DistributedDataParallel(nn.Sequential(net(), nn.BatchNorm1d(8)))
m.register_comm_hook(None, hook)
train(m=m)
"""
    )
    assert set(table["by"]) == {"ddp"}
    assert set(table["kind"]) == {"allreduce", "broadcast"}
    buckets = table[table["kind"] == "allreduce"]
    assert set(buckets.groupby(["iteration", "rank"]).size()) == {1}
    assert set(buckets["bytes"]) == {BYTES + 4 * 16}
    buffers = table[table["kind"] == "broadcast"]
    assert set(buffers.groupby(["iteration", "rank"])["bytes"].sum()) == {4 * 16 + 8}
    assert rows["bytes"].tolist() == [2 * (BYTES + 4 * 16) - BYTES + 8] * len(rows)


def test_next_to_horovod(trained):
    """A loss that is averaged by hand is added to what Horovod's optimizer reduces."""
    _, rows, table = trained(
        """
m = net()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(m.parameters(), lr=0.01), named_parameters=m.named_parameters())
train(lambda m: dist.all_reduce(torch.ones(1)), m=m, optimizer=optimizer)
"""
    )
    assert rows["bytes"].tolist() == [BYTES + 4] * len(rows)
    assert rows["tensors"].tolist() == [5] * len(rows)
    assert table.groupby("by")["bytes"].sum().to_dict() == {
        "optimizer": 2 * (STEPS - 1) * BYTES,
        "cell": 2 * (STEPS - 1) * 4,
    }


def test_phases_still_add_up(trained):
    """Waits are taken out of the phase in which they occur."""
    _, rows, _ = trained("train(lambda m: [dist.all_reduce(p.grad) for p in m.parameters()])")
    phases = ["data", "copy", "forward", "backward", "exposed", "optimizer", "other"]
    total = rows[[f"{phase}_us" for phase in phases]].sum(axis=1).to_numpy()
    assert total == pytest.approx(rows["iteration_us"].to_numpy(), rel=0.001)
    overlapped = rows["overlap"] * rows["communication_us"]
    assert np.all(overlapped + rows["exposed_us"] >= rows["communication_us"] - 1)


def test_work_is_the_real_one(trained):
    """Its type, future, result and errors are those of PyTorch."""
    values, _, _ = trained(
        """
work = dist.all_reduce(t := torch.ones(2) + rank, async_op=True)
kind, future = type(work) is dist.Work, work.get_future()
waited = work.wait(__import__("datetime").timedelta(seconds=20))
try:
    world.allreduce()
except TypeError as error:
    refused = "incompatible function arguments" in str(error)
kind, waited, work.is_completed(), future.value()[0].tolist(), t.tolist(), refused
"""
    )
    assert values[0] == values[1] == (True, True, True, [3.0, 3.0], [3.0, 3.0], True)


def test_removed_hooks_leave_pytorch_as_it_was(tmp_path):
    """Collectives work before, with and after them, and the functions are the originals."""
    recorder = Recorder(lambda handle: True, lambda recorded: None)
    calls = TorchCalls(recorder)
    hooks = TorchCollectives(recorder, calls), OperatorHooks(recorder, calls)
    before = dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))
    operator = torch.ops._c10d_functional.all_reduce
    implementation, known = operator._op, hash(operator)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ring", rank=0, world_size=1)
    try:
        for _ in range(2):
            dist.all_reduce(torch.ones(3))
            for one in hooks:
                one.install()
            assert hash(operator) == known
            dist.all_reduce(torch.ones(3))
            for one in hooks:
                one.remove()
            assert len(recorder.reported.take(1 << 62).operations) == 1
        dist.all_reduce(torch.ones(3))
    finally:
        dist.destroy_process_group()
    assert (dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))) == before
    assert operator._op is implementation


class DoneFuture:
    """A future that is done, and whose callbacks another thread has not called yet."""

    def add_done_callback(self, callback):
        """Never call it, as a busy machine may do for some time."""

    def done(self):
        return True


class DoneWork:
    """A Work whose collective is done."""

    def get_future(self):
        return DoneFuture()


def test_a_wait_for_a_future_that_is_done_ends_its_collective(tmp_path):
    """It counts for the iteration of the wait, not for the one in which a callback comes."""
    recorder = Recorder(lambda handle: True, lambda recorded: None)
    calls = TorchCalls(recorder)
    hooks = TorchCollectives(recorder, calls)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ring", rank=0, world_size=1)
    hooks.install()
    try:
        named, group = METHODS["allreduce"], dist.group.WORLD
        work, sent = DoneWork(), torch.ones(1)
        calls.submitted(named, group, sent, measure(sent), work, 1, 1, waits=False)
        future = torch.futures.Future()
        future.set_result(None)
        future.wait()
        assert len(recorder.reported.take(1 << 62).operations) == 1
        assert not calls.pending
    finally:
        hooks.remove()
        dist.destroy_process_group()
