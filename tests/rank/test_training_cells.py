"""Cells that train several times, never, or unevenly."""

from clusters import quiet
from training_loops import MODEL, PLAIN, check

from workbench.cluster import Cluster


def test_a_cell_that_makes_its_optimizer_is_run_again(fresh):
    """The new optimizer reduces the gradients; Horovod leaves the earlier one's hooks in place."""
    cluster, frame = fresh
    cluster.run(MODEL + PLAIN)
    for _ in range(2):
        cluster.run(PLAIN)
    check(frame(), 30)
    assert (frame()["overlap"] > 0).any()


def test_an_earlier_optimizer_of_the_same_model_is_used_again(fresh):
    """The one that was used last reduces each gradient once, and the ranks stay alike."""
    cluster, frame = fresh
    values = cluster.run(
        MODEL
        + """
torch.manual_seed(rank)
inputs = torch.randn(64, 32)
first, every_second = distributed(model), distributed(model, backward_passes_per_step=2)
for optimizer in (first, every_second, first):
    for _ in range(4):
        optimizer.zero_grad()
        for _ in range(optimizer.backward_passes_per_step):
            loss_of().backward()
        optimizer.step()
state = torch.cat([p.detach().flatten() for p in model.parameters()])
float((hvd.allreduce(state, op=hvd.Max) - hvd.allreduce(state, op=hvd.Min)).abs().max())
"""
    ).values
    assert values == {0: 0.0, 1: 0.0}
    check(frame(), 12)


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
    assert "no iteration (no optimizer.step() ran)" in cluster.timings.remark
    cluster.run("1")
    assert cluster.timings.remark == ""


def test_different_numbers_of_iterations_are_reported(fresh):
    """If ranks train separately, each may step as often as it likes; a message reports it."""
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
    assert cluster.timings.remark.startswith(
        "The ranks ran different numbers of iterations: 3 on rank 0, 4 on rank 1. "
        "No gradient was exchanged in 3 iterations on ranks 0-1"
    )


def test_iterations_are_numbered_through_the_cells(fresh):
    """A second cell continues where the first ended."""
    cluster, frame = fresh
    cluster.run(MODEL + PLAIN)
    cluster.run(MODEL + PLAIN)
    table = frame()
    numbers = sorted(table["iteration"].unique())
    assert numbers == list(range(numbers[0], numbers[0] + 20))
    check(table, 20)


def test_ranks_with_different_numbers_of_iterations_are_in_order():
    """However their records arrive, the remark lists ranks as all other messages do."""
    with Cluster(n=3) as three:
        source = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2 if rank else 1):
    loss_of().backward()
    optimizer.step()
"""
        quiet(three, MODEL + source)
        assert three.timings.remark == (
            "The ranks ran different numbers of iterations: 1 on rank 0, 2 on ranks 1-2."
        )
