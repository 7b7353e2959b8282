"""Optimizers that step in hooks of the gradients, within the backward: iterations all the same."""

import pytest
from clusters import quiet
from timers import FAR_S

MODEL = """
import time, torch
model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(3)])
def backward():
    model(torch.ones(4, 32)).sum().backward()
"""
IN_HOOKS = (
    MODEL
    + """
opt_for = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
name_of = {p: name for name, p in model.named_parameters()}
def step(p):
    hvd.allreduce_(p.grad, name=name_of[p])
    time.sleep(0.002)
    opt_for[p].step()
    opt_for[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)
"""
)
DISTRIBUTED = (
    MODEL
    + """
names = dict(model.named_parameters())
opt_for = {p: hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.01), [(n, p)])
           for n, p in names.items()}
def step(p):
    opt_for[p].step()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)
"""
)
MIXED = (
    MODEL
    + """
first, *others = model.parameters()
inner, outer = torch.optim.SGD([first], lr=0.01), torch.optim.SGD(others, lr=0.01)
first.register_post_accumulate_grad_hook(lambda p: inner.step())
"""
)
LOOP = "for _ in range(8): backward()"


@pytest.mark.parametrize("source", [IN_HOOKS, DISTRIBUTED], ids=["plain", "distributed"])
def test_each_backward_is_an_iteration(fresh, source):
    """Whatever the number of optimizers; their collectives are the iteration's."""
    cluster, frame = fresh
    quiet(cluster, source + LOOP, timeout=FAR_S)
    table = frame()
    assert table.groupby("rank")["iteration"].nunique().tolist() == [8, 8]
    assert table["tensors"].tolist() == [6] * 16
    phases = [name for name in table if name.endswith("_us") and name in PHASES]
    assert table[phases].sum(axis=1).to_numpy() == pytest.approx(
        table["iteration_us"].to_numpy(), rel=0.001
    )
    assert (table["optimizer_us"] > 0).all()


PHASES = {
    "data_us", "copy_us", "forward_us", "backward_us", "exposed_us", "optimizer_us", "other_us"
}  # fmt: skip


def test_a_step_after_the_backward_ends_the_same_iteration(fresh):
    """Some parameters in hooks and some after the backward: one iteration a turn of the loop."""
    cluster, frame = fresh
    quiet(cluster, MIXED + "for _ in range(8):\n    backward()\n    outer.step()", timeout=FAR_S)
    assert frame().groupby("rank")["iteration"].nunique().tolist() == [8, 8]


def test_a_backward_that_raises_is_no_iteration(fresh):
    """Such as one that is interrupted when some parameters have been stepped."""
    cluster, frame = fresh
    raises = """
def fail(p):
    raise ValueError("boom")
for _ in range(3): backward()
hook = first.register_post_accumulate_grad_hook(fail)
try:
    backward()
except ValueError:
    hook.remove()
for _ in range(4): backward()
"""
    quiet(cluster, MIXED + raises, timeout=FAR_S)
    assert frame().groupby("rank")["iteration"].nunique().tolist() == [7, 7]
