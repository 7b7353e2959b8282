"""Who is late, where and by how much: delays are injected into real ranks, here and on test VMs."""

import time

import numpy as np
import pytest
from clusters import QUEUED
from levels import in_soak
from planted_delays import KINDS, MODEL
from timers import eventually
from vm_sets import vms

import workbench as wb
from workbench.cluster import TextSink
from workbench.testbed import why_not

pytestmark = pytest.mark.timing


class Run:
    """A cluster that trains, and what is reported about its latest cell."""

    def __init__(self, cluster, machines=None):
        self.cluster = cluster
        self.machines = machines
        cluster.run(QUEUED + MODEL, sink=TextSink())

    def train(self, n, **options):
        """Train in a cell; return its first iteration and what each rank slept."""
        first = int(self.cluster.timings.to_frame()["iteration"].max()) + 1
        text = ", ".join(f"{name}={value!r}" for name, value in options.items())
        result = self.cluster.run(f"train({n}, {text})", sink=TextSink())
        return first, result.values

    def named(self, first):
        """The stragglers of the iterations from `first` on."""
        found = self.cluster.timings.stragglers()
        return found[found["last_iteration"] >= first]


@pytest.fixture(scope="module", params=["here", in_soak("vms")])
def run(request):
    if request.param == "here":
        with wb.Cluster(n=2) as cluster:
            yield Run(cluster)
        return
    if why_not() is not None:
        pytest.skip(str(why_not()))
    with (
        vms(2, gbps=2.0) as machines,
        wb.Cluster(hosts=machines.hosts(1), ssh_config=machines.ssh_config) as cluster,
    ):
        yield Run(cluster, machines)


@pytest.mark.parametrize(
    ("where", "late"),
    [
        pytest.param(where, late, marks=[] if late == number % 2 else [pytest.mark.soak])
        for number, where in enumerate(KINDS)
        for late in (0, 1)
    ],
)
def test_a_delay_is_named_with_its_rank_phase_and_size(run, where, late):
    """20 ms in one rank: who, where, since when, and how much to 1 ms or 10 %."""
    first, slept = run.train(25, late=late, where=where, when=range(25))
    found = run.named(first)
    assert found["rank"].tolist() == [late]
    one = found.iloc[0]
    assert (one["phase"], one["kind"]) == (where, KINDS[where])
    truth = np.median(slept[late])
    assert one["excess_us"] == pytest.approx(truth, rel=0.1, abs=1_000)
    assert one["late_us"] > truth / 2
    assert one["first_iteration"] <= first + 2
    assert one["last_iteration"] >= first + 22
    assert run.cluster.timings.summary(latest=20).slowest_rank == late


@pytest.mark.soak
def test_five_late_iterations_are_enough(run):
    """A rank that loads 20 ms longer is found by the fifth iteration, and that it ended."""
    first, slept = run.train(30, late=1, where="data", when=range(15, 20))
    found = run.named(first)
    assert found["rank"].tolist() == [1]
    assert found["excess_us"].iloc[0] == pytest.approx(np.median(slept[1]), rel=0.1, abs=1_000)
    assert abs(found["first_iteration"].iloc[0] - (first + 15)) <= 1
    assert abs(found["last_iteration"].iloc[0] - (first + 19)) <= 1
    assert found["how_often"].iloc[0].startswith("from ")


def test_one_late_iteration_is_named_as_one(run):
    """A single pause is reported as one iteration, with its rank, phase and size."""
    first, slept = run.train(30, late=0, where="data", when=[20], seconds=1.5)
    found = run.named(first)
    found = found[found["how_often"] == "one iteration"]
    assert found["rank"].tolist() == [0]
    assert found["first_iteration"].tolist() == [first + 20]
    assert found["excess_us"].iloc[0] == pytest.approx(slept[0][0], rel=0.1)


def test_ranks_that_train_alike_are_not_named(run):
    """Without a delay nobody is named, but for a time in which other work had the core.

    The kernel's scheduler accounts for that time: how long threads were ready and had no core.
    """
    first = int(run.cluster.timings.to_frame()["iteration"].max()) + 1
    result = run.cluster.run("train_and_measure_queueing(100)", sink=TextSink())
    queued = {rank: np.array(values) for rank, values in result.values.items()}
    found = run.named(first)
    found = found[found["how_often"] != "one iteration"]
    for one in found.itertuples():
        stretch = slice(max(0, one.first_iteration - first), one.last_iteration - first + 1)
        assert np.median(queued[one.rank][stretch]) > one.excess_us / 2, one
    assert run.cluster.timings.summary(latest=90).slowest_rank in {None, *found["rank"]}


def test_clocks_agree_with_the_one_that_all_share(run):
    """The ranks of a test run on the kernel's host: their offset is 0, within the uncertainty."""
    clocks = run.cluster.timings.clocks.current
    assert eventually(lambda: clocks.ranks == [0, 1])
    now = time.perf_counter_ns()
    for rank in (0, 1):
        found, uncertain = clocks.to_kernel(rank, now)
        assert abs(found - now) <= uncertain
        assert uncertain < 50_000_000


def test_arrivals_are_on_one_clock(run):
    """A rank that is late arrives that much later than the other, on the common clock."""
    first, slept = run.train(20, late=1, where="data", when=range(20), seconds=0.05)
    table = run.cluster.timings.arrivals()
    table = table[table["iteration"] > first]
    late = table[table["rank"] == 1]
    assert len(late) == 19
    assert late["late_us"].median() == pytest.approx(np.median(slept[1]), abs=20_000)
    assert (table["last_us"] >= table["first_us"]).all()
    assert (late["late_us"] > late["uncertainty_us"]).mean() > 0.8


def test_a_slow_link_is_distinguished_from_a_slow_rank(run):
    """A link that is shaped in mid-run is named as a link, and no rank for it."""
    if run.machines is None:
        pytest.skip("ranks of one machine share no link")
    run.train(40)
    run.machines.shape("vm2", 0.02)
    try:
        first, _ = run.train(25)
    finally:
        run.machines.shape("vm2", 2.0)
    run.train(10)
    found = run.named(first)
    assert found["kind"].tolist() == ["slow link"]
    assert (found["rank"].iloc[0], found["phase"].iloc[0]) == (-1, "communication")
    assert found["first_iteration"].iloc[0] <= first + 2
    assert found["last_iteration"].iloc[0] == pytest.approx(first + 24, abs=1)
