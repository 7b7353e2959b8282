"""Recording a DDP model changes neither its gradients nor what a stop does to it."""

import pytest
from levels import in_soak
from test_ddp import BEGIN, BYTES

FORMS = {
    "C++": "",
    "Python": """
from workbench.rank.backends import native_group
native_group.load = lambda: None
""",
}
"""A cell's beginning for groups that forward in C++, which the set-up compiles, and in Python."""


@pytest.fixture(params=FORMS)
def form(request, clean_cluster):
    """A cell's beginning, after which groups of new models are of one form."""
    kept = "from workbench.rank.backends import native_group; usual = native_group.load"
    clean_cluster.run(kept)
    compiled = clean_cluster.run("native_group.load() is not None").values[0]
    assert compiled, "not compiled: run workbench build-ddp"
    yield FORMS[request.param]
    clean_cluster.run("native_group.load = usual")


def both(cluster, source):
    """The values of a cell with and without recording."""
    recorded = cluster.run(BEGIN + source).values
    cluster.recording = False
    try:
        return recorded, cluster.run(BEGIN + source).values
    finally:
        cluster.recording = True


JOIN = """
def gradients(divides):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1, bias=False))
    seen = []
    with model.join(divide_by_initial_world_size=divides):
        for _ in range(2 if rank == 0 else 4):
            model.zero_grad()
            model(torch.full((1, 4), float(rank + 1))).sum().backward()
            seen.append(float(model.module.weight.grad[0, 0]))
    return seen
gradients(True), gradients(False)
"""


def test_join_divides_as_pytorch_documents(form, cluster):
    """By the ranks that still train, or by all: a rank that trains alone has its own gradient."""
    joined, trains = [1.5, 1.5], [1.5, 1.5, 1.0, 1.0]
    expected = {0: (joined, joined), 1: (trains, [1.5, 1.5, 2.0, 2.0])}
    assert both(cluster, form + JOIN) == (expected, expected)


SPARSE = """
torch.manual_seed(0)
model = DistributedDataParallel(nn.Embedding(10, 4, padding_idx=0, sparse=True))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    only_pads = rank == 1 and step == 2
    model(torch.tensor([0, 0] if only_pads else [1 + rank, 3])).sum().backward()
    optimizer.step()
weights(model)
"""


def test_a_sparse_gradient_that_is_empty(form, fresh):
    """It trains as without recording, and its bytes are those of indices and values."""
    cluster, timings = fresh
    recorded, unrecorded = both(cluster, form + SPARSE)
    assert recorded == unrecorded
    sizes = timings().groupby("rank")["bytes"].apply(list)
    two_rows = 2 * (8 + 4 * 4)
    assert sizes[0] == [two_rows] * 4
    assert sizes[1] == [two_rows, two_rows, 0, two_rows]


AT_ONCE = """
from workbench.rank.backends import forwarding_group, native_group
usual, native_group.load = native_group.load, lambda: None
begins_to_reduce = forwarding_group._ALLREDUCE
def reduces(*args):
    work = begins_to_reduce(*args)
    work.wait()
    return work
forwarding_group._ALLREDUCE = reduces
"""
"""A cell's beginning, after which a bucket is reduced before the call has returned."""
RESTORE = "native_group.load, forwarding_group._ALLREDUCE = usual, begins_to_reduce"


def test_the_bytes_of_a_sparse_gradient_are_those_that_a_rank_sends(fresh):
    """Not those of the result, which has the rows of all ranks, however soon it is there."""
    cluster, timings = fresh
    cluster.run(BEGIN + AT_ONCE + SPARSE + RESTORE)
    two_rows = 2 * (8 + 4 * 4)
    sizes = timings().groupby("rank")["bytes"].apply(list)
    assert (sizes[0], sizes[1]) == ([two_rows] * 4, [two_rows, two_rows, 0, two_rows])


REDUCED = """
for step in range(200):
    rows = torch.sparse_coo_tensor([[1 + rank, 3]], torch.ones(2, 4), (10, 4))
    dist.all_reduce(rows)
"""


def test_the_bytes_of_a_sparse_tensor_that_a_cell_reduces(cluster):
    """They are those of the rank's own rows, in each of many races with Gloo."""
    cluster.run(BEGIN + REDUCED)
    calls = cluster.timings.collectives()
    calls = calls[calls["cell"] == calls["cell"].max()]
    assert len(calls) == 400
    assert set(calls["bytes"]) == {2 * (8 + 4 * 4)}


COPIES = """
import copy
model = DistributedDataParallel(net(), bucket_cap_mb=0.001)
train(model, steps=3)
again = copy.deepcopy(model)
train(model, steps=2), train(again, steps=2)
weights(model) == weights(again)
"""


def test_a_copy_of_a_model_is_recorded_as_well(form, fresh):
    """Its buckets are those of another model."""
    cluster, timings = fresh
    recorded, unrecorded = both(cluster, form + COPIES)
    assert recorded == unrecorded == {0: True, 1: True}
    rows = timings()
    assert rows["bytes"].tolist() == [BYTES] * len(rows)


BUILTIN = """
model = DistributedDataParallel(net(), bucket_cap_mb=0.001)
model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
train(model, steps=3)
weights(model)
"""


def test_a_hook_in_c(form, fresh):
    """DDP's own compression has the same result, and half the bytes."""
    cluster, timings = fresh
    recorded, unrecorded = both(cluster, form + BUILTIN)
    assert recorded == unrecorded
    assert timings()["bytes"].tolist() == [BYTES // 2] * 6


STOPS = """
import random, threading
from workbench.rank import session
from workbench.rank.interrupts import ANY_CELL
depth, stops = {depth}, {stops}
torch.manual_seed(0)
layers = [layer for _ in range(depth) for layer in (nn.Linear(16, 16), nn.Tanh())]
model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.001)
data, allreduces = torch.randn(8, 16), len(layers)
def reduced(): return dist.group.WORLD._get_sequence_number_for_group()
ended, sent, raised, errors = threading.Event(), 0, 0, []
def stop():
    global sent
    chance = random.Random(rank)
    while sent < stops and not ended.wait(chance.uniform(0.0, 0.02)):
        sent += 1
        session._session._interrupts.interrupt(ANY_CELL)
        while raised < sent and not ended.wait(0.001): pass
stopper = threading.Thread(target=stop, daemon=True)
def step():
    model.zero_grad()
    model(data).square().mean().backward()
step(), step(), step()
began = reduced()
# all ranks call as many backwards: a stop is raised before or after one, never within
per_backward = reduced()
step()
per_backward = reduced() - per_backward
goal = began + per_backward * {backwards}
stopper.start()
while reduced() < goal:
    try:
        while reduced() < goal:
            step()
    except KeyboardInterrupt:
        raised += 1
    except RuntimeError as error:
        errors.append(str(error)[:200])
        break
ended.set()
try:
    stopper.join()
    if raised < sent: time.sleep(10)  # the last one is still to be raised
except KeyboardInterrupt:
    raised += 1
errors, sent, raised
"""


@pytest.mark.parametrize(
    ("depth", "stops", "backwards"),
    [(20, 15, 150), in_soak(30, 200, 200), in_soak(2, 200, 3000)],
)
def test_stops_while_a_backward_reduces(form, cluster, depth, stops, backwards):
    """After a stop at any moment, the next iteration trains; many are within, in small buckets."""
    source = STOPS.format(depth=depth, stops=stops, backwards=backwards)
    for errors, sent, raised in cluster.run(BEGIN + form + source, timeout=100).values.values():
        assert errors == []
        assert sent > 3
        assert raised == sent
