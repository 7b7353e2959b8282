"""Whatever shape a training loop has, its iterations, gradients and phases are counted right.

Two real Horovod ranks run plain Horovod scripts; what must come out follows
from the scripts: iterations from their loops, bytes from their models.
"""

import pytest
from training_loops import MODEL, PARAMETERS, PLAIN, SLACK_US, TENSORS, check


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
    time.sleep(0.1)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
"""
    )
    table = frame()
    check(table, 5)
    assert (table["exposed_us"] > 0).all()
    assert table["other_us"].min() == pytest.approx(100_000, abs=SLACK_US)


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


ONE_AFTER_THE_OTHER = {
    "an optimizer for each": "optimizers = [distributed(one) for one in models]",
    "one optimizer": "optimizers = [distributed(nn.ModuleList(models))] * 3",
}


@pytest.mark.parametrize("how", ONE_AFTER_THE_OTHER)
def test_a_model_that_is_trained_later_is_found(fresh, how):
    """An ensemble: when the first model's loop is known, the others have not been called yet."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + f"""
class Slow(nn.Linear):
    def forward(self, inputs):
        time.sleep(0.02)
        return super().forward(inputs)
models = [Slow(32, 8) for _ in range(3)]
{ONE_AFTER_THE_OTHER[how]}
for one, optimizer in zip(models, optimizers):
    for _ in range(8):
        optimizer.zero_grad(); loss_of(one).backward(); optimizer.step()
"""
    )
    table = frame()
    assert len(table) == 2 * 24
    unseen = table[table["forward_us"].isna()].groupby("rank").size()
    assert (unseen <= 2).all()  # one for each later model, whose step shows that it is trained
    assert (table["forward_us"].dropna() > 18_000).all()


def test_two_losses_of_one_forward(fresh):
    """The second backward has no forward of its own; that of the iteration is known."""
    cluster, frame = fresh
    cluster.run(
        MODEL
        + """
optimizer = distributed(model, backward_passes_per_step=2)
for _ in range(6):
    optimizer.zero_grad()
    output = model(inputs)
    output.sum().backward(retain_graph=True)
    output.square().sum().backward()
    optimizer.step()
"""
    )
    table = frame()
    check(table, 6)
    assert (table["forward_us"] > 0).all()


GENERATOR = """
second = nn.Linear(8, 8)
first_step, second_step = distributed(model), distributed(second)
judge = nn.Linear(8, 1).requires_grad_(False)
for _ in range(6):
    made = model(inputs)
    first_step.zero_grad(); second_step.zero_grad()
    second(made.detach()).square().mean().backward(); second_step.step()
    time.sleep(0.01)
    {judged}.mean().backward(); first_step.step()
"""


def test_a_frozen_module_that_passes_gradients_on_is_a_part_of_the_forward(fresh):
    """As a GAN's discriminator in its generator's step."""
    cluster, frame = fresh
    cluster.run(MODEL + GENERATOR.format(judged="judge(made)"))
    table = frame()
    check(table, 6, tensors=TENSORS + 2, size=(PARAMETERS + 72) * 4)
    assert (table["forward_us"] > 0).all()
    assert table["other_us"].min() >= 10_000


def test_a_forward_that_is_unknown_in_one_step_of_two(fresh):
    """It is unknown in their iteration; its phases add up all the same."""
    cluster, frame = fresh
    cluster.run(MODEL + GENERATOR.format(judged="(made * made)"))
    table = frame()
    check(table, 6, tensors=TENSORS + 2, size=(PARAMETERS + 72) * 4)
    assert table["forward_us"].isna().all()
    assert table["data_us"].isna().all()


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
