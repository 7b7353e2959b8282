"""Pipelines of torch.distributed: their stages, groups and idle time, on four ranks."""

import pytest
from clusters import quiet
from timers import FAR_S

import workbench as wb
from workbench.widgets.cluster_source import ClusterSource
from workbench.widgets.source import TimingsReading
from workbench.widgets.stages import stages_table

SETUP = """
import time, torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B,
)
slept = 0.0
def rest(seconds):
    global slept
    began = time.perf_counter()
    time.sleep(seconds)
    slept += time.perf_counter() - began
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds, group):
        ctx.seconds = seconds
        rest(seconds)
        if group is not None:
            dist.all_reduce(x, group=group)
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        rest(ctx.seconds)
        return gradient, None, None
class Part(nn.Module):
    def __init__(self, seconds, group=None):
        super().__init__()
        self.linear, self.seconds, self.group = nn.Linear(8, 8), seconds, group
    def forward(self, x):
        return Slow.apply(self.linear(x), self.seconds, self.group)
def train(schedule, seconds, microbatches, group=None, within=None, steps=4):
    global slept
    group = group or dist.group.WORLD
    n, own = dist.get_world_size(group), dist.get_rank(group)
    numbers = range(own, len(seconds), n)
    parts = [Part(seconds[number], within) for number in numbers]
    stages = [
        PipelineStage(part, number, len(seconds), torch.device("cpu"), group=group)
        for number, part in zip(numbers, parts)
    ]
    run = schedule(stages if len(stages) > 1 else stages[0], microbatches,
                   loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.01)
    x, y = torch.randn(2, microbatches * 2, 8)
    shares = []
    for _ in range(steps):
        slept, began = 0.0, time.perf_counter()
        optimizer.zero_grad()
        run.step(*([x] if own == 0 else []), **({"target": y} if own == n - 1 else {}))
        optimizer.step()
        shares.append(1 - slept / (time.perf_counter() - began))
    return sorted(shares[1:] or shares)[max(0, len(shares) // 2 - 1)]
"""
NEAR = 0.15
"""The rest of an iteration is what ranks neither slept nor waited: Python, autograd, the step."""


@pytest.fixture(scope="module")
def ranks():
    with wb.Cluster(n=4, backend="ddp") as cluster:
        quiet(cluster, SETUP, timeout=FAR_S)
        yield cluster


def trained(ranks, source):
    """Run a training; return each rank's value, and the stages of its iterations but the first."""
    before = ranks.timings.to_frame()["iteration"].max()
    values = quiet(ranks, source, timeout=FAR_S).values
    rows, stages = ranks.timings.to_frame(), ranks.timings.stages()
    first = rows["iteration"][~(rows["iteration"] <= before)].min()
    return values, stages[stages["iteration"] > first], first + 1


MESH = """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
one = dist.new_group([0, 3])
pp, tp = mesh.get_group("pp"), mesh.get_group("tp")
if rank in (0, 3):
    dist.all_reduce(torch.ones(1), group=one)
train(Schedule1F1B, [0.01, 0.03], 4, pp, tp)
"""
"""Two pipelines of two stages, of which the second is slower, and groups within each stage."""


@pytest.mark.timing
def test_the_idle_time_of_stages(ranks):
    """Each rank's share is measured; the faster stage waits for the slower one."""
    values, stages, _ = trained(ranks, MESH)
    share = stages.groupby("rank")["idle_share"].median()
    for rank, expected in values.items():
        assert share[rank] == pytest.approx(expected, abs=NEAR), (rank, values, share)
    assert min(share[0], share[1]) > 3 * max(share[2], share[3])


def test_stages_and_groups_of_a_mesh(ranks):
    """Ranks have the stage, the group and the messages of their pipeline."""
    _, stages, first = trained(ranks, MESH)
    assert {rank: set(own) for rank, own in stages.groupby("rank")["stage"]} == {
        0: {0}, 1: {0}, 2: {1}, 3: {1},
    }  # fmt: skip
    assert (set(stages["stages"]), set(stages["microbatches"])) == ({2}, {4})
    assert (set(stages["group"]), set(stages["ideal_share"])) == ({"pp"}, {1 / 5})
    assert set(ranks.timings.stages(first, first)["iteration"]) == {first}

    rows = ranks.timings.to_frame()
    rows = rows[rows["iteration"] >= first].sort_values(["iteration", "rank"])
    phases = ["data", "copy", "forward", "backward", "exposed", "optimizer", "other"]
    total = rows[[f"{phase}_us" for phase in phases]].sum(axis=1)
    assert total.to_numpy() == pytest.approx(rows["iteration_us"].to_numpy())
    assert (rows["exposed_us"].to_numpy() >= stages["idle_us"].to_numpy()).all()

    table = ranks.timings.collectives()
    messages = table[(table["iteration"] >= first) & table["kind"].isin({"send", "recv"})]
    assert set(zip(messages["rank"], messages["peer"], strict=True)) == {
        (0, 2), (2, 0), (1, 3), (3, 1),
    }  # fmt: skip
    assert set(table["peer"][table["kind"] == "allreduce"]) == {-1}
    groups = ranks.timings.groups(first)
    assert set(zip(groups["group"], groups["ranks"], strict=True)) == {
        ("pp", (0, 2)), ("pp", (1, 3)), ("tp", (0, 1)), ("tp", (2, 3)),
    }  # fmt: skip
    assert groups.groupby("group")["collectives"].mean().to_dict() == {"pp": 8, "tp": 4}
    assert "ranks 0,3" in set(table["group"])

    reading = TimingsReading.take(ClusterSource(ranks), 100)
    shown = [(one.group, one.stage, one.rank, one.ideal_share) for one in reading.details.stages]
    assert shown == [("pp", 0, 0, 0.2), ("pp", 1, 2, 0.2), ("pp", 0, 1, 0.2), ("pp", 1, 3, 0.2)]
    assert "Pipeline stages" in stages_table(reading)
    assert "tp (ranks 0-1)" in {one.group for one in reading.details.collectives}
    assert "not for the last rank" in reading.summary.waiting_us.reason


@pytest.mark.parametrize("again", ["", "; train(Schedule1F1B, [0.0] * 4, 4, steps=2)"])
def test_the_first_iteration_of_a_schedule(ranks, again):
    """It also sends shapes, which are no microbatches; also when a later schedule begins."""
    quiet(ranks, f"train(Schedule1F1B, [0.0] * 4, 4, steps=1){again}", timeout=FAR_S)
    stages = ranks.timings.stages()
    newest = stages[stages["iteration"] > stages["iteration"].max() - (3 if again else 1)]
    assert set(newest["microbatches"]) == {4}
    assert set(newest["ideal_share"]) == {3 / (4 + 3)}


@pytest.mark.timing  # the slowest stage is the one that is measured as such
def test_a_bubble_is_explained(ranks):
    """With the slowest stage, the ideal idle time, and the saving of each fix."""
    trained(ranks, "train(ScheduleGPipe, [0.01, 0.01, 0.03, 0.01], 4)")
    causes = wb.explain(ranks)
    assert [one.name for one in causes if "rank" in one.name or "commun" in one.name] == []
    (bubble,) = [one for one in causes if one.name == "pipeline bubble"]
    assert "idle for 43% with 4 microbatches" in bubble.evidence
    assert "stage 2 (rank 2)" in bubble.change
    assert "twice as many microbatches" in bubble.change
    idle = ranks.timings.stages()["idle_us"]
    assert 0 < bubble.saving_us <= idle.max()


def test_stages_of_an_interleaved_schedule(ranks):
    """The messages go round in a ring, in which one rank begins."""
    _, stages, _ = trained(ranks, "train(ScheduleInterleaved1F1B, [0.01] * 8, 4)")
    assert stages["stage"].tolist() == stages["rank"].tolist()
    assert set(stages["microbatches"]) == {4}
    assert set(stages["ideal_share"]) == {3 / (2 * 4 + 3)}
    (bubble,) = [one for one in wb.explain(ranks) if one.name == "pipeline bubble"]
    assert "2 stages on each rank" in bubble.evidence


def test_messages_that_are_no_pipeline(ranks):
    """In a ring in which all send first, no stage is assumed."""
    _, stages, _ = trained(
        ranks,
        """
model, t = nn.Linear(8, 8), torch.ones(8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    model(t).sum().backward()
    if rank == 2:
        time.sleep(0.05)
    both = (dist.isend, t, (rank + 1) % 4), (dist.irecv, t.clone(), (rank - 1) % 4)
    for work in dist.batch_isend_irecv([dist.P2POp(*one) for one in both]):
        work.wait()
    optimizer.step()
""",
    )
    assert stages["stage"].isna().all()
    assert (stages.groupby("rank")["idle_us"].median() > 0).sum() >= 2
    (found,) = [one for one in wb.explain(ranks) if one.name == "waiting for messages"]
    assert "The stages of ranks 0-3 are not known" in found.evidence
    reading = TimingsReading.take(ClusterSource(ranks), 100)
    assert "not known" in stages_table(reading)
