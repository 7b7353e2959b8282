"""Whatever shape a training loop has, its iterations, gradients and phases are counted right.

Two real Horovod ranks run plain Horovod scripts; what must come out follows
from the scripts: iterations from their loops, bytes from their models.
"""

import pandas as pd
import pytest

import workbench as wb
from workbench.timings import stragglers

pytestmark = pytest.mark.timing

PHASES = [
    "data_us", "copy_us", "forward_us", "backward_us", "exposed_us", "optimizer_us", "other_us"
]  # fmt: skip

MODEL = """
import time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
inputs, targets = torch.randn(64, 32), torch.randint(0, 8, (64,))
def loss_of(m=None):
    return nn.functional.cross_entropy((m or model)(inputs), targets)
def distributed(m, lr=0.01, **options):
    return hvd.DistributedOptimizer(
        torch.optim.SGD(m.parameters(), lr=lr), named_parameters=m.named_parameters(), **options)
"""
PARAMETERS = 32 * 64 + 64 + 64 * 8 + 8
TENSORS = 4

PLAIN = """
optimizer = distributed(model)
for _ in range(10):
    optimizer.zero_grad()
    loss_of().backward()
    optimizer.step()
"""


SLACK_US = 9_000
"""What a sleep may take longer on a busy machine, at best of several."""


def without_first(table):
    """The iterations after the first of the cell, which begins with its forward."""
    return table[table["iteration"] > table["iteration"].min()]


def check(table, iterations, *, tensors=TENSORS, size=PARAMETERS * 4, ranks=2):
    """One row per iteration and rank, with these gradients, whose phases add up."""
    assert len(table) == iterations * ranks
    assert sorted(table["rank"].unique()) == list(range(ranks))
    assert table.groupby("rank")["iteration"].nunique().tolist() == [iterations] * ranks
    assert table["tensors"].tolist() == [tensors] * len(table)
    assert table["bytes"].tolist() == [size] * len(table)
    assert (table[PHASES].fillna(0) >= 0).all(axis=None)
    assert table[PHASES].sum(axis=1).to_numpy() == pytest.approx(
        table["iteration_us"].to_numpy(), rel=0.001
    )
    if tensors:
        assert (table["communication_us"] > 0).all()
        assert table["overlap"].between(0, 1).all()


def test_a_plain_loop(fresh):
    """Ten steps are ten iterations of every gradient tensor on both ranks."""
    cluster, frame = fresh
    cluster.run(MODEL + PLAIN)
    table = frame()
    check(table, 10)
    for phase in ("forward_us", "backward_us", "exposed_us", "optimizer_us"):
        assert (table[phase] > 0).all(), phase
    # two ranks: the bus bandwidth is the algorithm's bandwidth
    assert table["busbw_gbps"].to_numpy() == pytest.approx(table["algbw_gbps"].to_numpy())
    assert table["algbw_gbps"].to_numpy() == pytest.approx(
        (table["bytes"] * 8 / table["communication_us"] / 1e3).to_numpy()
    )


def test_phases_are_where_the_time_was_spent(fresh):
    """Sleeps put into each phase of one rank show up in that phase and that rank only."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
class Slow(nn.Module):
    def __init__(self, m): super().__init__(); self.m = m
    def forward(self, x):
        time.sleep(0.02)
        return self.m(x)
slow = Slow(model)
class SleepBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g):
        time.sleep(0.03)
        return g
optimizer = distributed(slow)
for _ in range(6):
    if rank == 1: time.sleep(0.05)
    x = inputs
    optimizer.zero_grad()
    loss = SleepBackward.apply(nn.functional.cross_entropy(slow(x), targets))
    loss.backward()
    time.sleep(0.01)
    optimizer.step()
"""
    )
    table = frame()
    check(table, 6)
    # the least of several: a busy machine makes some longer, none shorter
    least = without_first(table).groupby("rank").min()
    for rank in (0, 1):
        assert least.loc[rank, "forward_us"] == pytest.approx(21_000, abs=SLACK_US)
        assert least.loc[rank, "backward_us"] == pytest.approx(31_000, abs=SLACK_US)
    # no loader was seen: what is slept before the forward is no data loading
    assert least.loc[0, "other_us"] == pytest.approx(11_000, abs=SLACK_US)
    assert least.loc[1, "other_us"] == pytest.approx(61_000, abs=SLACK_US)
    assert (table["data_us"] == 0).all()


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


def test_gradient_accumulation(fresh):
    """Three backward passes before a step make one iteration, reduced once."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
optimizer = distributed(model, backward_passes_per_step=3)
for _ in range(5):
    optimizer.zero_grad()
    for _ in range(3):
        loss_of().backward()
    optimizer.step()
"""
    )
    check(frame(), 5)


@pytest.mark.parametrize(
    "gradients",
    [
        "torch.autograd.grad(loss_of(), parameters)",
        "torch.func.grad(functional)(dict(model.named_parameters())).values()",
    ],
    ids=["autograd", "func"],
)
def test_gradients_that_the_script_asks_for(fresh, gradients):
    """A loop without any backward(): iterations all the same, with a backward in them."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + f"""
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
parameters = list(model.parameters())
def functional(held):
    return torch.func.functional_call(model, held, inputs).sum()
for _ in range(5):
    gradients = {gradients}
    for number, (parameter, gradient) in enumerate(zip(parameters, gradients)):
        parameter.grad = hvd.allreduce(gradient, name=str(number))
    optimizer.step()
"""
    )
    table = frame()
    check(table, 5)
    assert (table["backward_us"] > 0).all()


def test_a_gradient_penalty_is_a_part_of_its_iteration(fresh):
    """`autograd.grad` within a forward whose backward follows: one iteration, as without it."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
optimizer = distributed(model)
for _ in range(5):
    optimizer.zero_grad()
    given = torch.ones(8, 32, requires_grad=True)
    (slope,) = torch.autograd.grad(model(given).sum(), given, create_graph=True)
    (loss_of() + slope.norm()).backward()
    optimizer.step()
"""
    )
    check(frame(), 5)


def test_explicit_synchronize_and_clipping(fresh):
    """A synchronize before the step is the iteration's exposed communication, clipping is not."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
optimizer = distributed(model)
for _ in range(5):
    optimizer.zero_grad()
    loss_of().backward()
    optimizer.synchronize()
    time.sleep(0.02)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
"""
    )
    table = frame()
    check(table, 5)
    assert (table["exposed_us"] > 0).all()
    assert table["other_us"].min() == pytest.approx(21_000, abs=SLACK_US)


def test_compression_counts_the_bytes_on_the_wire(fresh):
    """fp16 compression halves the bytes."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + PLAIN.replace(
            "distributed(model)", "distributed(model, compression=hvd.Compression.fp16)"
        )
    )
    check(frame(), 10, size=PARAMETERS * 2)


def test_groups(fresh):
    """Grouped reductions count every tensor of every group."""
    cluster, frame = fresh
    cluster.run(MODEL + PLAIN.replace("distributed(model)", "distributed(model, groups=2)"))
    check(frame(), 10)
    last = cluster.timings.collectives()
    last = last[last["iteration"] == last["iteration"].max()]
    assert last.groupby("rank")["tensors"].sum().tolist() == [TENSORS, TENSORS]
    assert (last["tensors"] > 1).any()


def test_two_optimizers_make_one_iteration(fresh):
    """A generator's and a discriminator's step are one iteration with both models' gradients."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
other = nn.Linear(32, 8)
first, second = distributed(model), distributed(other)
for _ in range(7):
    first.zero_grad(); loss_of().backward(); first.step()
    second.zero_grad(); loss_of(other).backward(); second.step()
"""
    )
    check(frame(), 7, tensors=TENSORS + 2, size=(PARAMETERS + 32 * 8 + 8) * 4)


def test_a_step_now_and_then_belongs_to_an_iteration(fresh):
    """A critic that steps thrice for each of the generator's steps gives an iteration a step."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
other = nn.Linear(32, 8)
critic, generator = distributed(model), distributed(other)
for _ in range(4):
    for _ in range(3):
        critic.zero_grad(); loss_of().backward(); critic.step()
    generator.zero_grad(); loss_of(other).backward(); generator.step()
"""
    )
    table = frame()
    own = table[table["rank"] == 0]
    assert len(own) in (12, 13)  # the last step of the generator has no critic's after it
    assert own["bytes"].sum() == (12 * PARAMETERS + 4 * (32 * 8 + 8)) * 4


def test_evaluation_between_steps_is_other_time(fresh):
    """Evaluation adds no iteration and no forward: its time is other, but for its collective."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
class Slow(nn.Module):
    def __init__(self, m): super().__init__(); self.m = m
    def forward(self, x):
        if not torch.is_grad_enabled(): time.sleep(0.03)
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
    assert (later["other_us"] > 30_000).all()
    assert later["forward_us"].min() < 30_000


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
        time.sleep(0.03)
        return inputs[i], targets[i]
optimizer = distributed(model)
for x, y in DataLoader(Slow(), batch_size=1):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    time.sleep(0.02)
"""
    )
    table = frame()
    check(table, 6)
    assert table["data_us"].min() == pytest.approx(31_000, abs=SLACK_US)
    assert without_first(table)["other_us"].min() == pytest.approx(21_000, abs=SLACK_US)


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


def test_sparse_gradients(fresh):
    """A sparse embedding's gradient counts its indices and values, once as a tensor."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
table = nn.Embedding(100, 4, sparse=True)
optimizer = distributed(table)
for _ in range(4):
    optimizer.zero_grad()
    table(torch.tensor([1, 2, 3])).sum().backward()
    optimizer.step()
"""
    )
    check(frame(), 4, tensors=1, size=3 * 8 + 3 * 4 * 4)


def test_a_closure_within_the_step(fresh):
    """An optimizer that evaluates the model within its step has forward and backward there."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
def closure():
    optimizer.zero_grad()
    loss = loss_of()
    loss.backward()
    return loss
for _ in range(4):
    optimizer.step(closure)
"""
    )
    table = frame()
    check(table, 4, tensors=0, size=0)
    assert (table[["forward_us", "backward_us", "optimizer_us"]] > 0).all(axis=None)
    assert table["busbw_gbps"].isna().all()


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
def test_a_model_that_is_checkpointed_as_a_whole_has_a_forward(fresh, reentrant):
    """A reentrant checkpoint calls it with gradients off, which is no evaluation."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + f"""
from torch.utils.checkpoint import checkpoint
class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(0.03)
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
    assert (later["forward_us"] >= 30_000).all()
    assert later["forward_us"].min() < 30_000 + SLACK_US
    assert later["other_us"].median() < 5_000


def test_the_models_carry_nothing_of_ours_away(cluster):
    """After the cell the model has no hooks; copies and state files made within are clean."""
    result = cluster.run(
        MODEL
        + PLAIN
        + """
import copy, io, pickle
twin = copy.deepcopy(model)
torch.save(model.state_dict(), io.BytesIO())
len(pickle.dumps(twin)) > 0
"""
    )
    assert result.values == {0: True, 1: True}
    hooks = cluster.run("len(model._forward_pre_hooks) + len(model._forward_hooks)")
    assert hooks.values == {0: 0, 1: 0}


def test_a_cell_without_training_gives_no_rows(fresh):
    """Collectives that a cell calls itself are no iterations."""
    cluster, frame = fresh
    cluster.run("import torch; hvd.allreduce(torch.ones(3), name='own')")
    assert len(frame()) == 0
    assert "no iteration: one ends with an optimizer's step()" in cluster.timings.remark
    cluster.run("1")
    assert cluster.timings.remark == ""


def test_different_numbers_of_iterations_are_told(fresh):
    """Where ranks train apart, each may step as often as it likes; that is said."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3 + rank):
    optimizer.zero_grad()
    loss_of().backward()
    optimizer.step()
"""
    )
    assert frame().groupby("rank")["iteration"].nunique().tolist() == [3, 4]
    assert cluster.timings.remark == (
        "The ranks ran different numbers of iterations: 3 on rank 0, 4 on rank 1."
    )


def test_iterations_are_numbered_through_the_cells(fresh):
    """A second cell goes on where the first ended."""
    cluster, frame = fresh
    cluster.run(MODEL + PLAIN)
    cluster.run(MODEL + PLAIN)
    table = frame()
    numbers = sorted(table["iteration"].unique())
    assert numbers == list(range(numbers[0], numbers[0] + 20))
    check(table, 20)


def test_one_backward_for_two_optimizers(fresh):
    """A backbone's and a head's optimizers, fed by one backward, share an iteration's gradients."""
    cluster, frame = fresh
    steps = {"first": "first.step(); second.step()", "second": "second.step(); first.step()"}
    for order in steps.values():
        cluster.run(
            MODEL
            + f"""
head = nn.Linear(8, 8)
first, second = distributed(model), distributed(head)
for _ in range(6):
    first.zero_grad(); second.zero_grad()
    nn.functional.cross_entropy(head(model(inputs)), targets).backward()
    {order}
"""
        )
    check(frame(), 12, tensors=TENSORS + 2, size=(PARAMETERS + 8 * 8 + 8) * 4)


def test_a_closure_that_reduces(fresh):
    """Gradients submitted within a step's closure are the iteration's."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
optimizer = distributed(model)
def closure():
    loss = loss_of()
    loss.backward()
    optimizer.synchronize()
    return loss
for _ in range(5):
    optimizer.zero_grad()
    with optimizer.skip_synchronize():
        optimizer.step(closure)
"""
    )
    check(frame(), 5)
