"""What the figures say, against sleeps that were planted and the wall clock around the loop."""

import re
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from clusters import QUEUED, SHARED_MODEL
from recorded import MS, ONE_VM, RankClock, iteration_record, recorded, true_start
from traces import read, slices

import workbench as wb
from workbench.advisor import explain
from workbench.cluster import TextSink
from workbench.cluster.calibration import REPETITIONS, SIZES_BYTES
from workbench.errors import RanksFailed
from workbench.fabric import fit
from workbench.timings.arrivals import ALIGNED
from workbench.timings.compare import compare
from workbench.timings.derive import columns
from workbench.timings.store import PHASES, Store
from workbench.timings.stragglers import find
from workbench.timings.summary import notes, summarize
from workbench.widgets.cluster_source import ClusterSource
from workbench.widgets.runs import comparison_table, run_table
from workbench.widgets.source import Reading
from workbench.widgets.text_table import summary_text
from workbench.widgets.views import Causes, timings_view
from workbench.wire import Flag, IterationRecord

pytestmark = pytest.mark.timing

BEGIN = (
    SHARED_MODEL
    + """
inputs, targets = torch.randn(64, 32), torch.randint(0, 8, (64,))
def loss_of(m): return nn.functional.cross_entropy(m(inputs), targets)
def sgd(m): return torch.optim.SGD(m.parameters(), lr=0.01)
def distributed(m): return hvd.DistributedOptimizer(sgd(m), named_parameters=m.named_parameters())
took = []
def train(m, optimizer, steps=8, reduce=None, after=0.0):
    took.clear()
    for _ in range(steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss_of(m).backward()
        if reduce: reduce(m)
        optimizer.step()
        time.sleep(after)
        took.append(time.perf_counter() - began)
    return list(took)
def by_hand(m):
    for p in m.parameters(): dist.all_reduce(p.grad)
"""
)
UNHEARD = {
    "by hand": "m = net(); train(m, sgd(m), reduce=by_hand)",
    "a list of objects": """
def gather(m): dist.all_gather_object([None] * world_size, 1)
m = net(); train(m, sgd(m), reduce=gather)""",
    "FSDP2": """
from torch.distributed.fsdp import fully_shard
m = net()
fully_shard(m)
train(m, sgd(m))""",
    "ZeRO": """
from torch.distributed.optim import ZeroRedundancyOptimizer
m = net()
train(m, ZeroRedundancyOptimizer(m.parameters(), torch.optim.SGD, lr=0.01))""",
    "functional": """
import torch.distributed._functional_collectives as functional
def reduce(m):
    for p in m.parameters(): functional.all_reduce(p.grad, "sum", dist.group.WORLD).wait()
m = net(); train(m, sgd(m), reduce=reduce)""",
}
HEARD = {
    "Horovod": "m = net(); train(m, distributed(m))",
    "DDP": "m = DistributedDataParallel(net()); train(m, sgd(m))",
    "DDP with a hook that reduces twice": """
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
m = DistributedDataParallel(net())
state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
m.register_comm_hook(state, power.powerSGD_hook)
train(m, sgd(m))""",
    "Horovod after a broadcast by torch.distributed": """
m = net(); optimizer = distributed(m)
for p in m.parameters(): dist.broadcast(p.data, 0)
train(m, optimizer)""",
}


@pytest.fixture
def trained(cluster):
    """Runs a cell on both ranks; returns its values, and the rows of its iterations."""

    def run(source):
        rows = cluster.timings.rows()
        before = rows["iteration"].max(initial=-1)
        values = cluster.run(BEGIN + source, sink=TextSink()).values
        rows = cluster.timings.rows()
        return values, rows[rows["iteration"] > before]

    return run


def causes(rows, fabric=None):
    """What `explain` says of rows."""
    found = explain(SimpleNamespace(timings=SimpleNamespace(rows=lambda: rows), fabric=fabric))
    return {cause.name: cause for cause in found}


# data and other


def test_a_pause_after_the_step_is_other_and_explained(trained):
    """20 ms slept outside any loader are no data loading, and what is known of them is said."""
    values, rows = trained("m = net(); train(m, distributed(m), after=0.02)")
    found = summarize(rows)
    assert found.phases_us["data"] == 0
    assert found.phases_us["other"] > 19_000
    # the wall clock around the loop, of the same iterations
    wall_us = np.mean([taken[1:] for taken in values.values()]) * 1e6
    assert found.iteration_us == pytest.approx(wall_us, rel=0.05)
    assert sum(found.phases_us.values()) == pytest.approx(found.iteration_us, rel=1e-6)
    said = causes(rows)
    assert "data loading" not in said
    other = said["time in no phase (other)"]
    assert "between optimizer.step() and the next forward" in other.evidence
    assert "outside any DataLoader" in other.evidence
    assert other.saving_us > 19_000


def test_a_pause_before_the_step_is_told_from_one_after_it(trained):
    """What lies between the backward and the step is said to lie there."""
    _, rows = trained("m = net(); train(m, sgd(m), reduce=lambda m: time.sleep(0.02))")
    assert "between the backward and optimizer.step()" in (
        causes(rows)["time in no phase (other)"].evidence
    )


def test_a_loaders_time_is_data_and_a_pause_beside_it_is_not(trained):
    """30 ms in a DataLoader and 20 ms after the step: each in its own phase."""
    _, rows = trained(
        """
class Slow(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        time.sleep(0.03)
        return i
m = net(); optimizer = distributed(m)
for _ in DataLoader(Slow(), batch_size=1):
    optimizer.zero_grad(); loss_of(m).backward(); optimizer.step()
    time.sleep(0.02)
"""
    )
    found = summarize(rows)
    assert 30_000 <= found.phases_us["data"] < 45_000
    assert 20_000 <= found.phases_us["other"] < 35_000
    assert {"data loading", "time in no phase (other)"} <= causes(rows).keys()


# communication that cannot be heard


@pytest.mark.parametrize("how", UNHEARD)
def test_communication_that_is_not_timed_is_said(cluster, trained, how):
    """It is not shown as none: in the rows, the table, the summary, the view and `%explain`."""
    _, rows = trained(UNHEARD[how])
    found = summarize(rows)
    assert found.unheard == found.iterations == 7
    assert np.isnan(found.exposed_us)
    assert np.isnan(found.exposed_share)
    assert np.isnan(columns(rows)["communication_us"]).sum() >= 2 * 7
    first = next(iter(causes(rows).values()))
    assert first.name == "communication that is not timed"
    assert repr(Causes([first])).startswith("not known  communication")
    reading = Reading.take(ClusterSource(cluster), 14)
    assert "is not timed" in reading.status.message
    shown = ClusterSource(cluster).details(found.iteration - 6, found.iteration).summary
    assert "is not timed" in shown.exposed_us.reason
    assert "is not timed" in shown.busbw_gbps.reason
    assert "is not timed" in summary_text(reading)
    assert "is not timed" in timings_view(cluster, "summary")._repr_html_()


@pytest.mark.parametrize("how", HEARD)
def test_communication_that_is_timed_is_not_called_unseen(cluster, trained, how):
    """Horovod's and DDP's own, and what a hook of DDP's sends, are in the figures."""
    _, rows = trained(HEARD[how])
    found = summarize(rows)
    assert found.unheard == 0
    assert found.communication_us > 0
    assert notes(found) == ("The first iteration is left out: it warms up.",)
    assert cluster.timings.remark == ""


def test_a_stored_run_says_so_too():
    """The flag is kept on disk."""
    with wb.Cluster(n=2) as cluster:
        cluster.run(BEGIN + UNHEARD["by hand"], sink=TextSink())
    run = wb.open_run(cluster.timings.path)
    assert run.summary().unheard == 7
    assert "is not timed" in repr(run_table(run))


# one statistic


def record(index, exposed=4.0, other=0.0, flags=Flag.NONE, size=1_000_000):
    """An iteration of 16 ms and what is exposed or in no phase; its phases add up."""
    spent = {"data": 1, "copy": 0, "forward": 5, "backward": 8, "optimizer": 2}
    phases = {f"{name}_ns": ms * MS for name, ms in spent.items()}
    phases |= {"exposed_ns": round(exposed * MS), "other_ns": round(other * MS)}
    total = sum(phases.values())
    return IterationRecord(
        1, index, index * total, total, **phases, communication_ns=round((exposed + 2) * MS),
        overlapped_ns=2 * MS, size_bytes=size, tensors=6, world_size=2, flags=flags,
    )  # fmt: skip


def rows_of(exposed, **options):
    """Rows of two ranks whose exposed time is that, an iteration each; the first warms up."""
    filled = Store()
    for index, ms in enumerate((500.0, *exposed)):
        for rank in (0, 1):
            flags = Flag.NONE if index else Flag.FIRST_OF_CELL
            filled.add(rank, record(index, ms, flags=flags, **options))
    return filled.rows()


SKEWED = [4.0] * 12 + [104.0] * 8
"""Exposed times whose median is far from their mean."""


def test_the_summary_adds_up():
    """Means: phases make the iteration, the exposed share is theirs, bandwidth is bytes a time."""
    found = summarize(rows_of(SKEWED))
    assert found.iterations == 20
    assert found.left_out == 1
    assert found.iteration_us == pytest.approx(60_000)
    assert sum(found.phases_us.values()) == pytest.approx(found.iteration_us)
    assert found.exposed_us == pytest.approx(found.phases_us["exposed"]) == pytest.approx(44_000)
    assert found.exposed_share == pytest.approx(found.exposed_us / found.iteration_us)
    assert found.iterations_per_s == pytest.approx(1e6 / found.iteration_us)
    assert found.communication_us == pytest.approx(found.exposed_us + found.overlapped_us)
    assert found.algbw_gbps == pytest.approx(found.bytes * 8 / found.communication_us / 1e3)


def test_a_comparison_has_the_summarys_figures():
    """Both of its columns are what the two summaries say, and it says what they leave out."""
    a, b = rows_of(SKEWED), rows_of([4.0] * 20)
    found = compare(a, b, ("a", "b"))
    by_name = {one.figure: one for one in found.differences}
    for name in ("iteration_us", "exposed_us", "communication_us", "algbw_gbps", "busbw_gbps"):
        one = by_name[name]
        assert one.a == pytest.approx(getattr(summarize(a), name)), name
        assert one.b == pytest.approx(getattr(summarize(b), name)), name
    assert found.left_out == (1, 1)
    assert "a: The first iteration is left out" in repr(comparison_table(found))


def test_every_place_has_the_same_figures(cluster, trained):
    """Summary, tables, view and a stored run, of real ranks of whom one iteration is an outlier."""
    values, rows = trained(
        """
m = net(); optimizer = distributed(m)
train(m, optimizer, steps=6); took_first = list(took)
train(m, optimizer, steps=1, after=0.4); took_first += took
train(m, optimizer, steps=6); took_first + took
"""
    )
    found = summarize(rows)
    wall_us = np.mean([taken[1:] for taken in values.values()]) * 1e6
    assert found.iteration_us == pytest.approx(wall_us, rel=0.1)
    assert sum(found.phases_us.values()) == pytest.approx(found.iteration_us, rel=1e-6)
    reading = Reading.take(ClusterSource(cluster), len(rows))
    head, *table = (line.split("  ") for line in summary_text(reading).splitlines())
    means = {}
    for line in table[:2]:
        cells = [cell.strip() for cell in line if cell.strip()]
        names = [cell.strip() for cell in head if cell.strip()]
        for name, cell in zip(names[1:], cells[1:], strict=True):
            means.setdefault(name, []).append(float(cell))
    assert reading.window.rows == len(rows)
    for phase in set(PHASES) - {"copy"}:
        assert np.mean(means[phase]) == pytest.approx(found.phases_us[phase] / 1e3, abs=0.006)
    assert np.mean(means["iteration"]) == pytest.approx(found.iteration_us / 1e3, abs=0.006)
    assert "The first iteration is left out: it warms up." in summary_text(reading)
    details = ClusterSource(cluster).details(int(rows["iteration"].min()), found.iteration)
    assert details.summary.iteration_us == pytest.approx(found.iteration_us)
    assert details.summary.exposed_us == pytest.approx(found.exposed_us)
    assert details.summary.notes == notes(found)


def test_an_opened_run_adds_up(training_run):
    """`%timings open`: phases make the iteration, and first iterations left out are said."""
    text = repr(run_table(training_run))
    figures = dict(re.findall(r"(?m)^\s*(\w[\w ]*?)\s{2,}([\d.]+) ms", text))
    whole = float(figures["iteration"])
    assert sum(float(figures[phase]) for phase in PHASES) == pytest.approx(whole, abs=0.04)
    assert "are left out: they warm up" in text
    assert "Means over" in text


@pytest.fixture(scope="module")
def training_run():
    """A run of two cells on real ranks, read from disk."""
    with wb.Cluster(n=2) as cluster:
        for _ in range(2):
            cluster.run(BEGIN + HEARD["Horovod"], sink=TextSink())
    return wb.open_run(cluster.timings.path)


# calibration


def test_a_calibration_that_fits_badly_gives_no_advice():
    """Its error is said, and what it predicts is not used; a good one's error is said as well."""
    sizes = [1_000, 100_000, 1_000_000]
    good, bad = fit(sizes, [100, 500, 4_100], 2), fit(sizes, [3_000, 500, 4_100], 2)
    assert bad.error > 0.5
    said = causes(rows_of([4.0] * 20), bad)
    assert set(said) == {"exposed communication", "data loading"}
    evidence = said["exposed communication"].evidence
    assert f"calibration is unreliable (error {bad.error:.0%}): run" in evidence
    wire = causes(rows_of([4.0] * 20), good)["bytes on the wire"]
    assert f"± {good.error:.0%}" in wire.evidence
    assert wire.saving_us == pytest.approx(good.us_per_byte * 1_000_000 / 2)


@pytest.mark.parametrize("fabric", [None, fit([1_000, 10_000_000], [2_000, 12_000], 2)])
def test_few_bytes_are_not_told_to_be_halved(fabric):
    """0.02 MB wait for latency: to halve them would save next to nothing."""
    said = causes(rows_of([4.0] * 20, size=20_000), fabric)
    assert not any("fp16" in cause.cure for cause in said.values())
    name = "exposed communication" if fabric is None else "latency of communication"
    assert "communicate less often" in said[name].cure


def test_the_view_shows_how_far_a_calibration_may_be_off(cluster, trained):
    """The error goes with the bandwidth; an unreliable one is not shown, and says why."""
    trained(HEARD["Horovod"])
    for times, reliable in (([500, 4_100], True), ([3_000, 500, 4_100], False)):
        cluster.fabric = fit([1_000, 100_000, 1_000_000][-len(times) :], times, 2)
        shown = ClusterSource(cluster).summary()
        assert shown.calibrated_error == cluster.fabric.error
        assert isinstance(shown.calibrated_gbps, float) is reliable
        if not reliable:
            assert "calibration is unreliable (error" in shown.calibrated_gbps.reason
    cluster.fabric = None


def test_a_calibration_sweeps_the_device_of_its_rank(cluster):
    """A `device` that cannot reduce is used, and fails; with the right one all is well."""
    cluster.run("kept, device = device, torch.device('meta')", sink=TextSink())
    with pytest.raises(RanksFailed, match="meta"):
        cluster.calibrate()
    cluster.run("device = kept", sink=TextSink())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a busy machine
        assert cluster.calibrate().n == 2
    cluster.fabric = None


DISTURBED = """
import time
kept, calls = hvd.allreduce_, 0
def allreduce_(tensor, **options):
    global calls
    calls += 1
    if calls <= {calls} and tensor.numel() == 1024:
        time.sleep(0.1)
    return kept(tensor, **options)
hvd.allreduce_ = allreduce_
"""


def test_a_sweep_that_was_disturbed_is_repeated(cluster):
    """Another process takes the cores during the smallest size of the first sweep."""
    one_sweep = len(SIZES_BYTES) * (REPETITIONS + 2)
    cluster.run(DISTURBED.format(calls=one_sweep), sink=TextSink())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a busy machine
        fabric = cluster.calibrate()
    calls = cluster.run("hvd.allreduce_ = kept\ncalls", sink=TextSink()).values[0]
    cluster.fabric = None
    assert calls in (2 * one_sweep, 3 * one_sweep)
    assert fabric.measured_us[0] < 0.1e6


# DDP


@pytest.mark.parametrize("unused", [False, True])
def test_ddp_buckets_end_when_they_end(cluster, trained, unused):
    """A bucket that one rank waits 50 ms for took 50 ms, of which hardly any was overlapped."""
    _, rows = trained(
        f"""
class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.m, self.idle = net(), nn.Linear(64, 64)
    def forward(self, x):
        if rank == 1: time.sleep(0.05)
        return self.m(x) if {unused} else self.m(x) + 0 * self.idle(inputs.repeat(1, 2)).sum()
m = DistributedDataParallel(Late(), find_unused_parameters={unused})
train(m, sgd(m))
"""
    )
    early = columns(rows[(rows["rank"] == 0) & (rows["flags"] & int(Flag.FIRST_OF_CELL) == 0)])
    assert (early["exposed_us"] > 40_000).all()
    assert (early["communication_us"] > 40_000).all()
    assert (early["overlap"] < 0.2).all()
    table = cluster.timings.collectives()
    buckets = table[(table["iteration"] == rows["iteration"].max()) & (table["rank"] == 0)]
    assert (buckets["finished_us"] - buckets["submitted_us"]).max() > 40_000


# the trace


def test_what_ran_before_and_after_the_iterations_is_in_the_trace(tmp_path):
    """Startup broadcasts and a last metric: the trace has as many as `collectives()`."""
    outside = []
    for start in (true_start(0) - 300 * MS, true_start(3) + 500 * MS):
        outside.append(iteration_record(0, 0, RankClock()))
        outside[-1].flags |= Flag.OUTSIDE
        outside[-1].start_ns = start
    timings = recorded(4, vms=ONE_VM, more={0: outside})
    found = slices(read(timings.to_trace(tmp_path / "t.json")), "collective")
    assert len(found) == len(timings.collectives())
    assert min(one["ts"] for one in found) >= 0
    some = slices(read(timings.to_trace(tmp_path / "u.json", iterations=(1, 2))), "collective")
    assert len(some) == len(timings.collectives(1, 2))


def test_startup_broadcasts_of_real_ranks_are_in_the_trace(tmp_path):
    """The parameters' broadcast lies before the first iteration."""
    with wb.Cluster(n=2) as cluster:
        start = "hvd.broadcast_parameters(m.state_dict(), root_rank=0)\n"
        cell = HEARD["Horovod"].replace("train(", f"\n{start}train(")
        cluster.run(BEGIN + cell, sink=TextSink())
        trace = read(cluster.timings.to_trace(tmp_path / "t.json"))
        table = cluster.timings.collectives()
    assert (table["kind"] == "broadcast").sum() >= 8
    shown = slices(trace, "collective")
    own = [one for one in shown if one["args"]["kind"] == "broadcast"]
    assert len(own) == (table["kind"] == "broadcast").sum()
    assert len(shown) == len(table)


# stragglers


def contended(longer, waited, count=40, seed=1):
    """Rows of two ranks: rank 1 loads `longer` ms more, for which rank 0 waits `waited` ms."""
    random = np.random.default_rng(seed)
    filled = Store()
    for index in range(count):
        late = waited * (1 + 0.2 * random.standard_normal())
        for rank in (0, 1):
            one = record(index, 4.0 + (late if rank == 0 else 0.0))
            more = round(MS * ((longer if rank else 0.0) + 0.2 * random.random()))
            one.data_ns += more
            one.duration_ns += more
            filled.add(rank, one)
    return filled.rows()


def test_a_late_rank_is_named_with_both_figures():
    """23 ms longer, exactly measured, for which the others wait 9 ms on cores that all share."""
    rows = contended(23, 9)
    (found,) = find(rows)
    assert (found["rank"], found["phase"]) == (1, "data")
    assert found["excess_us"] == pytest.approx(23_000, abs=500)
    assert found["late_us"] == pytest.approx(9_000, abs=1_500)
    evidence = causes(rows)["waiting for rank 1"].evidence
    assert re.search(r"its data takes 2\d\.\d\d ms longer, for which the others wait", evidence)
    assert find(contended(23, 0.5)) == []  # nobody waits for it
    assert summarize(rows).slowest_rank == 1


def test_a_rank_that_is_late_for_no_reason_of_its_own_is_said_in_words():
    """Not "its unknown takes longer"."""
    filled = Store()
    for index in range(40):
        for rank in (0, 1):
            filled.add(rank, record(index, 4.0 + (45 if rank == 0 else 0)))
    evidence = causes(filled.rows())["waiting for rank 1"].evidence
    assert "unknown takes" not in evidence
    assert "45.00 ms later than the others" in evidence
    assert "none of its phases" in evidence


def out_of_step(behind_ms, exposed_ms, count=40):
    """Rows of two ranks on one clock: rank 0 submits later, and rank 1 waits for part of it."""
    filled = Store()
    for index in range(count):
        for rank in (0, 1):
            filled.add(rank, record(index, exposed=exposed_ms if rank else 0.1, other=60))
    rows = filled.rows()
    aligned = np.zeros(len(rows), ALIGNED)
    for name in rows.dtype.names:
        aligned[name] = rows[name]
    aligned["start_ns"] = rows["iteration"].astype(np.int64) * 200 * MS
    aligned["last_ns"] = np.where(rows["rank"] == 0, behind_ms, 0) * MS + 14 * MS
    aligned["done_ns"] = (14 + behind_ms + 1) * MS
    aligned["uncertainty_ns"] = 1_000
    return aligned


def test_nobody_waits_for_a_rank_that_is_late_while_the_others_compute():
    """Rank 0 is 50 ms behind, and its gradients come while rank 1 sleeps before its step."""
    for name, cause in causes(out_of_step(50, exposed_ms=0.1)).items():
        assert not name.startswith("waiting"), cause
    waited = causes(out_of_step(50, exposed_ms=50))["waiting for rank 0"]
    assert waited.saving_us == pytest.approx(50_000, rel=0.1)


LOADING = """
class Items(Dataset):
    def __init__(self, count, pause): self.count, self.pause = count, pause
    def __len__(self): return self.count
    def __getitem__(self, place):
        if self.pause: time.sleep(self.pause)
        return inputs
def load_and_train(late, count=30):
    m = net(); optimizer = distributed(m)
    before = queued_us()
    for x in DataLoader(Items(count, 0.02 if rank == late else 0), batch_size=None):
        optimizer.zero_grad(); m(x).sum().backward(); optimizer.step()
    return (queued_us() - before) / count
"""


def test_a_planted_straggler_is_found_and_nobody_without_one(trained):
    """A slow loader on one rank or on none, several times over."""
    deadline = time.monotonic() + 120
    for late in (0, None, 1, None, 0, None):
        assert time.monotonic() < deadline
        queued, rows = trained(f"{QUEUED}{LOADING}load_and_train({late})")
        # a busy machine makes a rank late for a while, in any phase but the loader's sleep
        named = [one for one in find(rows) if one["how_often"] == "always"]
        if late is None:
            # but for one that had no core for most of that time
            assert [one for one in named if queued[one["rank"]] < one["excess_us"] / 2] == []
            assert "data" not in [one["phase"] for one in find(rows)]
        else:
            assert [(one["rank"], one["phase"]) for one in named] == [(late, "data")]
            assert named[0]["excess_us"] == pytest.approx(20_000, rel=0.15)
