"""Our hooks of a model are seen by no code of a cell: not saved, copied, compiled or refused."""

import pytest
from clusters import quiet
from training_loops import MODEL, check

TRAIN = (
    MODEL
    + """
optimizer = distributed(model)
def train(iterations):
    for _ in range(iterations):
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()
train(3)
def hooks(m):
    return [len(getattr(m, f"_forward_{kind}")) for kind in ("pre_hooks", "hooks")]
"""
)


def test_a_model_that_is_scripted(fresh):
    """It has no hooks to compile, its own training is counted, and the model is still timed."""
    cluster, frame = fresh
    quiet(
        cluster,
        TRAIN
        + """
scripted = torch.jit.script(model)
train(7)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
net(inputs)
scripted = torch.jit.script(net)
again = torch.optim.SGD(scripted.parameters(), lr=0.1)
for _ in range(5):
    again.zero_grad()
    loss_of(scripted).backward()
    again.step()
""",
    )
    table = frame()
    assert table.groupby("rank")["iteration"].nunique().tolist() == [15, 15]
    check(table[table["tensors"] > 0], 10)
    assert (table[table["tensors"] > 0].groupby("rank")["forward_us"].min() > 0).all()


def test_a_model_of_which_graphs_are_captured(fresh):
    """PyTorch refuses modules with hooks: without a GPU, the capture itself fails."""
    cluster, frame = fresh
    found = quiet(
        cluster,
        TRAIN
        + """
had = hooks(model)
try:
    torch.cuda.make_graphed_callables(model, (inputs,))
except Exception as error:
    text = f"{type(error).__name__}: {error}"
train(4)
had, text
""",
    ).values
    for had, text in found.values():
        assert had == [1, 1]
        assert "hooks" not in text
        assert "AssertionError" not in text
    table = frame()
    check(table, 7)
    assert (table["forward_us"] > 0).all()


@pytest.mark.parametrize("how", ["pickle.loads(pickle.dumps(model))", "copy.deepcopy(model)"])
def test_a_copy_of_a_model(fresh, how):
    """It has the hooks of the cell, and none of ours; the model still has all."""
    cluster, frame = fresh
    source = f"""
import copy, pickle
own = model.register_forward_hook(print)
other = {how}
own.remove()
train(2)
hooks(model), hooks(other), b"workbench" in pickle.dumps(model)
"""
    found = quiet(cluster, TRAIN + source).values
    assert set(map(repr, found.values())) == {repr(([1, 1], [0, 1], False))}
    check(frame(), 5)


def test_a_model_with_a_state_of_its_own(fresh):
    """As DDP's and Lightning's modules have: none of our hooks is in their pickles either."""
    cluster, _ = fresh
    source = """
import pickle
class Own(nn.Sequential):
    def __getstate__(self):
        return self.__dict__.copy()
model = Own(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = distributed(model)
train(3)
hooks(model), b"workbench" in pickle.dumps(model)
"""
    found = quiet(cluster, TRAIN + source).values
    assert set(map(repr, found.values())) == {repr(([1, 1], False))}


SCRIPTED = """
import torch
@torch.jit.script
class First:
    def __init__(self, x: int):
        self.x = x
@torch.jit.script
class Second:
    def __init__(self, first: First):
        self.x = first.x
"""


def test_a_class_that_is_scripted(fresh, tmp_path):
    """PyTorch finds the names in it where a module that the cell imports has defined them."""
    cluster, _ = fresh
    (tmp_path / "scripted_pair.py").write_text(SCRIPTED)
    source = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import scripted_pair
scripted_pair.Second(scripted_pair.First(3)).x
"""
    assert set(quiet(cluster, TRAIN + source).values.values()) == {3}


def test_models_of_a_loop(fresh):
    """As in cross-validation: each has a forward, also where one has the address of another."""
    cluster, frame = fresh
    quiet(
        cluster,
        MODEL
        + """
for fold in range(6):
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    own = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(6):
        own.zero_grad()
        loss_of(net).backward()
        own.step()
    del net, own
""",
    )
    table = frame()
    assert len(table) == 72
    assert (table["forward_us"] > 0).all()


SCALED = """
import torch
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
optimizer = distributed(model)
def train(iterations, infinite=()):
    for i in range(iterations):
        optimizer.zero_grad()
        loss = loss_of() * (float("inf") if i in infinite else 1.0)
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize("infinite", [(), (0,), (4,), (3, 4, 5), (9,)])
def test_iterations_that_a_gradient_scaler_skips(fresh, infinite):
    """They have communicated their gradients, and are iterations of their own."""
    cluster, frame = fresh
    quiet(cluster, MODEL + SCALED + f"train(10, {infinite})")
    table = frame()
    check(table, 10)
    assert (table["forward_us"] > 0).all()
    assert (table["backward_us"] > 0).all()


def test_a_scaler_that_is_off(fresh):
    """It calls the step itself, which is counted once."""
    cluster, frame = fresh
    off = SCALED.replace("init_scale=8.0", "enabled=False")
    quiet(cluster, MODEL + off + "train(5)")
    check(frame(), 5)
