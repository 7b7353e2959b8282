"""The phases of an iteration are where its time was spent, and late ranks are named by them."""

import pandas as pd
import pytest
from training_loops import MODEL, PARAMETERS, PLAIN, SLACK_US, TENSORS, check, without_first

import workbench as wb
from workbench.timings import stragglers


def test_phases_are_where_the_time_was_spent(fresh):
    """Sleeps put into each phase of one rank show up in that phase and that rank only."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
class Slow(nn.Module):
    def __init__(self, m): super().__init__(); self.m = m
    def forward(self, x):
        time.sleep(0.15)
        return self.m(x)
slow = Slow(model)
class SleepBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g):
        time.sleep(0.3)
        return g
optimizer = distributed(slow)
for _ in range(6):
    if rank == 1: time.sleep(0.3)
    x = inputs
    optimizer.zero_grad()
    loss = SleepBackward.apply(nn.functional.cross_entropy(slow(x), targets))
    loss.backward()
    time.sleep(0.1)
    optimizer.step()
"""
    )
    table = frame()
    check(table, 6)
    # the least of several: a busy machine makes some longer, none shorter
    least = without_first(table).groupby("rank").min()
    for rank in (0, 1):
        assert least.loc[rank, "forward_us"] == pytest.approx(150_000, abs=SLACK_US)
        assert least.loc[rank, "backward_us"] == pytest.approx(300_000, abs=SLACK_US)
    # no loader was seen: what is slept before the forward is no data loading
    assert least.loc[0, "other_us"] == pytest.approx(100_000, abs=SLACK_US)
    assert least.loc[1, "other_us"] == pytest.approx(400_000, abs=SLACK_US)
    assert (table["data_us"] == 0).all()


@pytest.mark.timing
def test_a_rank_that_is_late_is_named_with_its_phase(fresh):
    """A rank that pauses for 80 ms: the other waits that long, and the rank is named."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + PLAIN.replace(
            "    optimizer.zero", "    if rank == 1: time.sleep(0.08)\n    optimizer.zero"
        )
    )
    table = without_first(frame())
    waits = table.groupby("rank")["wait_us"].median()
    assert waits[0] == pytest.approx(80_000, abs=20_000)
    assert waits[1] < 20_000
    named = cluster.timings.stragglers()
    found = named[named["last_iteration"] >= table["iteration"].min()].iloc[-1]
    assert (found["rank"], found["phase"]) == (1, "other")
    assert found["excess_us"] == pytest.approx(80_000, abs=20_000)
    summary = cluster.timings.summary(latest=8)
    assert summary.slowest_rank == 1


@pytest.mark.soak
@pytest.mark.timing
@pytest.mark.parametrize("meeting", ["hvd.allreduce(loss.detach(), name='loss')", "hvd.barrier()"])
def test_a_rank_that_is_late_for_an_averaged_loss_is_named(fresh, meeting):
    """The others wait at the first collective of the iteration, and not for the gradients."""
    cluster, frame = fresh
    before = len(cluster.timings)
    cluster.run(
        MODEL
        + f"""
optimizer = distributed(model)
for _ in range(12):
    if rank == 1: time.sleep(0.08)
    loss = loss_of()
    {meeting}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    )
    table = without_first(frame())
    waits = table.groupby("rank")["wait_us"].median()
    assert waits[0] == pytest.approx(80_000, abs=20_000)
    assert waits[1] < 20_000
    found = pd.DataFrame(stragglers.find(cluster.timings.rows()[before:])).iloc[-1]
    assert (found["rank"], found["phase"]) == (1, "other")
    assert found["late_us"] == pytest.approx(80_000, abs=20_000)
    named = [cause.name for cause in wb.explain(cluster)]
    assert "waiting for rank 1" in named


def test_evaluation_between_steps_is_other_time(fresh):
    """Evaluation adds no iteration and no forward: its time is other, but for its collective."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
class Slow(nn.Module):
    def __init__(self, m): super().__init__(); self.m = m
    def forward(self, x):
        if not torch.is_grad_enabled(): time.sleep(0.2)
        return self.m(x)
slow = Slow(model)
optimizer = distributed(slow)
for _ in range(5):
    slow.train()
    optimizer.zero_grad()
    nn.functional.cross_entropy(slow(inputs), targets).backward()
    optimizer.step()
    slow.eval()
    with torch.no_grad():
        score = slow(inputs).argmax(1).eq(targets).float().mean()
    hvd.allreduce(score, name="score")
"""
    )
    table = frame()
    later = without_first(table)
    check(later, 4, tensors=TENSORS + 1, size=PARAMETERS * 4 + 4)
    assert (later["other_us"] > 199_000).all()
    assert later["forward_us"].min() < 100_000


def test_data_loading_is_the_loaders_time(fresh):
    """A slow DataLoader is data; other work between a step and the next batch is not."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 6
    def __getitem__(self, i):
        time.sleep(0.2)
        return inputs[i], targets[i]
optimizer = distributed(model)
for x, y in DataLoader(Slow(), batch_size=1):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    time.sleep(0.1)
"""
    )
    table = frame()
    check(table, 6)
    assert table["data_us"].min() == pytest.approx(200_000, abs=SLACK_US)
    assert without_first(table)["other_us"].min() == pytest.approx(100_000, abs=SLACK_US)


def test_fine_tuning_in_eval_mode_has_a_forward(fresh):
    """A model in eval mode that is trained all the same has its forward counted."""
    cluster, frame = fresh
    cluster.run(MODEL + "model.eval()\n" + PLAIN)
    table = frame()
    check(table, 10)
    assert (table["forward_us"] > 0).all()


def test_without_a_module_data_and_forward_are_not_known(fresh):
    """A functional model has no forward that could be seen: not zero, but not known."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
weight = torch.randn(32, 8, requires_grad=True)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD([weight], lr=0.01), named_parameters=[("weight", weight)])
for _ in range(5):
    optimizer.zero_grad()
    nn.functional.cross_entropy(inputs @ weight, targets).backward()
    optimizer.step()
"""
    )
    table = frame()
    check(table, 5, tensors=1, size=32 * 8 * 4)
    assert table["forward_us"].isna().all()
    assert table["data_us"].isna().all()


def test_checkpointing_nests_backwards(fresh):
    """Activation checkpointing runs backwards within the backward: still one backward."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
from torch.utils.checkpoint import checkpoint
class Thrifty(nn.Module):
    def __init__(self, m): super().__init__(); self.m = m
    def forward(self, x): return checkpoint(self.m, x, use_reentrant=True)
thrifty = Thrifty(model)
optimizer = distributed(thrifty)
x = inputs.clone().requires_grad_()
for _ in range(5):
    optimizer.zero_grad()
    nn.functional.cross_entropy(thrifty(x), targets).backward()
    optimizer.step()
"""
    )
    check(frame(), 5)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_model_that_is_checkpointed_completely_has_a_forward(fresh, reentrant):
    """A reentrant checkpoint calls it with gradients off, which is no evaluation."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + f"""
from torch.utils.checkpoint import checkpoint
class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(0.1)
        return super().forward(x)
slow = Slow(*model)
optimizer = distributed(slow)
x = inputs.clone().requires_grad_()
for _ in range(5):
    optimizer.zero_grad()
    nn.functional.cross_entropy(
        checkpoint(slow, x, use_reentrant={reentrant}), targets).backward()
    optimizer.step()
"""
    )
    table = frame()
    check(table, 5)
    later = without_first(table)
    assert (later["forward_us"] >= 100_000).all()
    assert later["forward_us"].min() < 100_000 + SLACK_US
    assert later["other_us"].min() < 50_000


def test_a_batch_for_a_closure_is_data_loading(fresh):
    """The loader runs before a step whose closure has the only forward; what else is `other`."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, place):
        time.sleep(0.15)
        return torch.ones(32)
optimizer = distributed(model)
for batch in torch.utils.data.DataLoader(Slow(), batch_size=1):
    time.sleep(0.1)
    def closure():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.synchronize()
        return loss
    with optimizer.skip_synchronize():
        optimizer.step(closure)
"""
    )
    table = frame()
    check(table, 6)
    least = without_first(table).groupby("rank").min()
    for rank in (0, 1):
        assert least.loc[rank, "data_us"] == pytest.approx(150_000, abs=SLACK_US)
        assert least.loc[rank, "other_us"] == pytest.approx(100_000, abs=SLACK_US)
    other = next(one for one in wb.explain(cluster) if one.name == "time in no phase (other)")
    assert "between optimizer.step() and the next forward" in other.evidence
