"""Models and groups of torch.distributed, and what happens to them after a failure."""

import pytest
from clusters import CELL_S, quiet
from combinations import BYTES

from workbench.errors import RanksFailed

from .cells import TRAIN


def test_models_go_on_in_the_next_ring(ranks):
    """A DDP model, its comm hook and its bucket times remain, after an error in its backward."""
    quiet(
        ranks,
        TRAIN
        + """
calls = []
def hook(state, bucket):
    calls.append(bucket.index())
    return dist.all_reduce(bucket.buffer(), group=state, async_op=True).get_future().then(
        lambda future: future.value()[0] / world_size)
model, hooked = DistributedDataParallel(net()), DistributedDataParallel(net())
hooked.register_comm_hook(dist.group.WORLD, hook)
train(model), train(hooked)
""",
    )
    with pytest.raises(RanksFailed, match="boom"):
        quiet(
            ranks,
            "class Fails(torch.autograd.Function):\n"
            "    @staticmethod\n"
            "    def forward(context, x): return x.clone()\n"
            "    @staticmethod\n"
            "    def backward(context, x): raise ValueError('boom')\n"
            "x = model(torch.randn(4, 32))\n"
            "(Fails.apply(x) if rank == 1 else x).sum().backward()",
            timeout=60,
        )
    for name in ("model", "hooked"):
        calls = quiet(ranks, "calls.clear()").values
        values = quiet(ranks, f"train({name}), weights({name})", timeout=60).values
        assert values[0] == values[1] == values[2]
        calls = quiet(ranks, "len(calls)").values
        assert set(calls.values()) == {0 if name == "model" else 5}
        table = ranks.timings.collectives()
        table = table[(table["by"] == "ddp") & (table["kind"] == "allreduce")]
        last = table[table["iteration"] == table["iteration"].max()]
        assert set(last["bytes"]) == {BYTES}


GROUPS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x.clone()
    @staticmethod
    def backward(context, x): raise ValueError("boom")
def total(group):
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    return float(x)
pair, listed = dist.new_group([0, 1]), [dist.new_group([0, 1, 2])]
class Config: pair = pair  # Python caches the attributes of classes that are used often
for _ in range(10_000): Config.pair
def in_pair():
    for _ in range(100): assert Config.pair is pair
    return total(pair) if rank < 2 else None
mesh = init_device_mesh("cpu", (3, 1), mesh_dim_names=("replicas", "parts"))
model, partner = net(), DistributedDataParallel(net(), process_group=listed[0])
for layer in model: fully_shard(layer)
fully_shard(model)
"""
USE = """
train(model), train(partner)
weights = [p.full_tensor().sum().item() for p in model.parameters()]
in_pair(), total(listed[0]), total(mesh.get_group("replicas")), weights
"""


@pytest.fixture
def grouped(ranks):
    """Ranks with groups, a device mesh, an FSDP2 model and a DDP model of a group."""
    quiet(ranks, TRAIN + GROUPS + USE, timeout=CELL_S)
    return ranks


def check_groups(ranks):
    """Train and sum in all of them."""
    values = quiet(ranks, USE, timeout=CELL_S).values
    assert [value[:3] for value in values.values()] == [(2.0, 3.0, 3.0)] * 2 + [(None, 3.0, 3.0)]
    assert values[0][3] == values[1][3] == values[2][3]


def test_fsdp2(grouped):
    """Its collectives are recorded as its own."""
    table = grouped.timings.collectives()
    table = table[(table["cell"] == table["cell"].max()) & (table["by"] == "fsdp")]
    assert {"allgather", "reducescatter"} <= set(table["kind"])


def test_groups_go_on_in_the_next_ring(grouped):
    """Twice: they are formed again with the ring, and what uses them uses the new ones."""
    for _ in range(2):
        with pytest.raises(RanksFailed, match="boom"):
            quiet(grouped, "if rank == 1: raise ValueError('boom')\ndist.barrier()", timeout=CELL_S)
        check_groups(grouped)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_groups_go_on_in_many_rings(grouped):
    """In each, the ranks are freed after the same number of collectives as in the one before."""
    for _ in range(60):
        with pytest.raises(RanksFailed, match="boom"):
            quiet(grouped, "if rank == 1: raise ValueError('boom')\ndist.barrier()", timeout=CELL_S)
        check_groups(grouped)


def test_an_fsdp2_model_goes_on_after_an_error_in_its_backward(grouped):
    """Its ranks have left their backward at different places."""
    with pytest.raises(RanksFailed, match="boom"):
        quiet(
            grouped,
            "x = model(torch.randn(4, 32))\n(Fails.apply(x) if rank == 1 else x).sum().backward()",
            timeout=CELL_S,
        )
    check_groups(grouped)


def test_groups_of_a_replaced_rank(grouped):
    """They cannot go on, and say what to do; those without the rank do."""
    with pytest.raises(RanksFailed, match="SIGKILL"):
        quiet(grouped, "if rank == 2: os.kill(os.getpid(), 9)\ndist.barrier()", timeout=CELL_S)
    grouped.restart()
    cell = "in_pair() if rank < 2 else None"
    assert quiet(grouped, cell, timeout=CELL_S).values == {0: 2.0, 1: 2.0, 2: None}
    for source in ("total(listed[0])", "train(model)"):
        says = "process group of 3 ranks has ended.*dist.new_group.*FSDP2 models"
        with pytest.raises(RanksFailed, match=says):
            quiet(grouped, f"if rank < 2: {source}", timeout=CELL_S)


def test_device_ids_without_a_gpu(ranks):
    """One short message for all ranks, although each has its own number."""
    with pytest.raises(RanksFailed) as caught:
        quiet(
            ranks,
            "import torch\n"
            "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), device_ids=[rank])",
        )
    text = str(caught.value)
    assert "[ranks 0-2] ValueError: DistributedDataParallel(device_ids=[<device>]): " in text
    assert "parameters are on the CPU" in text
    assert text.count("device_ids is only for a model on a GPU") == 1
    assert len(text.splitlines()) < 15


def test_a_model_is_wrapped_again_after_a_cell_that_failed(ranks):
    """The first wrapper ends with the frames of the failed cell, and so do its hooks."""
    source = (
        "def train(fail):\n"
        "  wrapped = torch.nn.parallel.DistributedDataParallel(model)\n"
        "  for _ in range(3):\n"
        "    wrapped(torch.ones(2, 4)).sum().backward()\n"
        "    if fail: raise ValueError('planted')\n"
    )
    with pytest.raises(RanksFailed, match="planted"):
        quiet(ranks, f"import torch\nmodel = torch.nn.Linear(4, 4)\n{source}train(True)")
    assert quiet(ranks, "train(False)\n1").values == {0: 1, 1: 1, 2: 1}
