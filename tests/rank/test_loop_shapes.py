"""Whatever a training loop looks like, its phases and its samples are right."""

import math

import pytest
from clusters import quiet
from levels import in_soak
from loop_shapes import PRELUDE, REPRESENTATIVE, SHAPES, T_S
from training_loops import without_first

import workbench as wb

PHASES = ("data", "forward", "backward", "other")
SLACK_US = 1e6 * T_S * 0.75
"""Less than a planted time: what a busy machine adds to a phase, at best of several."""


@pytest.fixture(scope="module")
def ddp_cluster():
    """Two ranks of torch.distributed."""
    with wb.Cluster(n=2, backend="ddp") as cluster:
        yield cluster


def table_of(cluster, shape):
    """Run a shape; return its iterations."""
    start = len(cluster.timings)
    quiet(cluster, PRELUDE + shape.source)
    return cluster.timings.to_frame().iloc[start:]


def check_samples(table, shape):
    """Each rank has the samples of each iteration, and no number where it is unknown."""
    for _, rows in table.groupby("rank"):
        samples = [None if math.isnan(value) else int(value) for value in rows["samples"]]
        assert samples == shape.samples


@pytest.mark.parametrize(
    "name", [name if name in REPRESENTATIVE else in_soak(name) for name in SHAPES]
)
def test_the_time_is_in_its_phase_and_in_no_other(cluster, name):
    """A sleep is a lower limit of its phase, and at best of several no other phase has it."""
    shape = SHAPES[name]
    table = table_of(cluster, shape)
    check_samples(table, shape)
    by_rank = without_first(table).groupby("rank")
    for phase in PHASES:
        times, planted = by_rank[f"{phase}_us"], shape.expected_us(phase)
        assert times.median().min() >= 0.9 * planted, phase
        assert times.min().max() <= planted + SLACK_US, phase


@pytest.mark.soak
@pytest.mark.timing
@pytest.mark.parametrize("backend", ["horovod", "ddp"])
@pytest.mark.parametrize("name", SHAPES)
def test_phases_are_right_within_a_tenth(request, name, backend):
    """The median of each phase, also with models of DDP."""
    shape = SHAPES[name]
    cluster = request.getfixturevalue("cluster" if backend == "horovod" else "ddp_cluster")
    table = table_of(cluster, shape)
    check_samples(table, shape)
    medians = without_first(table).groupby("rank").median(numeric_only=True)
    for phase in PHASES:
        planted = shape.expected_us(phase)
        for value in medians[f"{phase}_us"]:
            assert value == pytest.approx(planted, rel=0.1, abs=1e5 * T_S), phase
