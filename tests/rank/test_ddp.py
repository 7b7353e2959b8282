"""PyTorch's DistributedDataParallel in a cell: its buckets are timed, the user's hook is kept."""

import pytest
from clusters import SHARED_MODEL

BEGIN = (
    SHARED_MODEL
    + """
inputs, targets = torch.randn(64, 32) + rank, torch.randint(0, 8, (64,))
def train(model, steps=5, micro=1):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        for turn in range(micro):
            with contextlib.nullcontext() if turn == micro - 1 else model.no_sync():
                nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
"""
)
BYTES = 4 * (32 * 64 + 64 + 64 * 8 + 8)
PHASES = ["data", "copy", "forward", "backward", "exposed", "optimizer", "other"]


@pytest.fixture
def trained(cluster):
    """Runs a cell on both ranks, and returns its value, its iterations and its buckets."""

    def run(source):
        before = cluster.timings.to_frame()["iteration"].max()
        value = cluster.run(BEGIN + source).values
        rows, table = cluster.timings.to_frame(), cluster.timings.collectives()
        table = table[table["cell"] == table["cell"].max()]
        buckets = table[(table["by"] == "ddp") & (table["kind"] == "allreduce")]
        return value, rows[~(rows["iteration"] <= before)], buckets

    return run


def test_every_iteration_has_its_buckets(trained):
    """A row per step and rank, whose phases add up; buckets with bytes, tensors, begin and end."""
    _, rows, buckets = trained("train(DistributedDataParallel(net()))")
    assert len(rows) == 2 * 5
    assert rows["bytes"].tolist() == [BYTES] * 10
    assert rows["tensors"].tolist() == [4] * 10
    assert (rows["communication_us"] > 0).all()
    assert (rows["exposed_us"] > 0).all()
    total = rows[[f"{phase}_us" for phase in PHASES]].sum(axis=1)
    assert total.to_numpy() == pytest.approx(rows["iteration_us"].to_numpy(), rel=0.001)
    assert buckets["name"].str.endswith("bucket 0").all()
    assert (buckets["submitted_us"] <= buckets["finished_us"]).all()
    assert buckets["transfer_us"].isna().all()
    assert set(buckets["ranks"]) == {2}


def test_several_buckets_are_distinguished(trained):
    """Small buckets are each recorded by their number, and finish in their order."""
    _, _, buckets = trained("train(DistributedDataParallel(net(), bucket_cap_mb=0.001))")
    last = buckets[buckets["iteration"] == buckets["iteration"].max()]
    assert last["name"].str.endswith(("bucket 0", "bucket 1")).sum() == 4
    assert last.groupby("rank")["bytes"].sum().tolist() == [BYTES, BYTES]


def test_a_late_rank_shows_as_exposed_communication(trained):
    """While one rank sleeps before its backward, the other waits for its bucket."""
    _, rows, _ = trained(
        """
import time
class Late(nn.Module):
    def __init__(self): super().__init__(); self.m = net()
    def forward(self, x):
        if rank == 1: time.sleep(0.2)
        return self.m(x)
train(DistributedDataParallel(Late()))
"""
    )
    # half of it: a busy machine makes either rank late
    assert rows[rows["rank"] == 0]["exposed_us"].median() > 100_000
    assert rows[rows["rank"] == 1]["exposed_us"].min() < 100_000


def test_gradients_are_the_same_as_without_us(trained):
    """Weights after training are, to the bit, those of a model whose hooks were never there."""
    value, _, _ = trained(
        """
from workbench.rank import session
plain_hooks = session._session.hooks[2]
model = DistributedDataParallel(net()); train(model)
plain_hooks.remove()
plain = DistributedDataParallel(net()); train(plain)
plain_hooks.install()
weights(model) == weights(plain), len(set(map(str, hvd.allgather_object(weights(model)))))
"""
    )
    assert value == {0: (True, 1), 1: (True, 1)}


def test_a_hook_of_the_users_own_is_called(trained):
    """Registered after the model was made: what it sends is counted, and a second is refused."""
    value, rows, _ = trained(
        """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model = DistributedDataParallel(net())
called = []
def hook(state, bucket):
    called.append(state)
    return default_hooks.fp16_compress_hook(None, bucket)
model.register_comm_hook("mine", hook)
train(model)
try:
    model.register_comm_hook("again", hook)
except RuntimeError as error:
    refused = "only be called once" in str(error)
called == ["mine"] * 5, refused
"""
    )
    assert value == {0: (True, True), 1: (True, True)}
    assert rows["bytes"].tolist() == [BYTES // 2] * 10


def test_the_builtin_compression(trained):
    """DDP's own halving of gradients works, and is counted."""
    _, rows, _ = trained(
        """
model = DistributedDataParallel(net())
model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
train(model)
"""
    )
    assert rows["bytes"].tolist() == [BYTES // 2] * 10


def test_a_hook_that_sends_in_the_callbacks_of_futures(trained):
    """The three allreduces of PowerSGD, two of them in callbacks, are counted on all ranks."""
    _, rows, buckets = trained(
        """
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
model = DistributedDataParallel(net())
state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
train(model, steps=6)
"""
    )
    # a vector for each side of each matrix, and the biases as they are
    compressed = 4 * ((32 + 64) + (64 + 8) + (64 + 8))
    for _, own in rows.groupby("rank"):
        assert own["bytes"].tolist() == [BYTES] * 2 + [compressed] * 4
    assert len(buckets) == 2 * 6


def test_accumulation_and_two_models(trained):
    """Under no_sync nothing is reduced; each of two models has buckets of its own name."""
    _, rows, _ = trained("train(DistributedDataParallel(net()), steps=3, micro=3)")
    assert rows["bytes"].tolist() == [BYTES] * 6
    _, rows, buckets = trained(
        """
first, second = DistributedDataParallel(net()), DistributedDataParallel(net())
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
for _ in range(4):
    optimizer.zero_grad()
    nn.functional.cross_entropy(first(inputs) + second(inputs), targets).backward()
    optimizer.step()
"""
    )
    assert rows["bytes"].tolist() == [2 * BYTES] * 8
    assert buckets["name"].nunique() == 2
