"""Timings for other tools: Arrow, Perfetto, HolisticTraceAnalysis, TensorBoard, MLflow."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections import defaultdict

import pytest
from recorded import (
    ENDS_MS,
    MS,
    NAMES,
    PHASES_MS,
    SIZES,
    STEP_MS,
    RankClock,
    iteration_record,
    recorded,
    true_start,
)
from timers import within

from workbench.errors import UsageError
from workbench.resources.noticeboard import FOLDER, Noticeboard
from workbench.timings import Timings
from workbench.widgets.study import VERBS, study_view
from workbench.wire import Flag

VMS = {0: "vm1", 1: "vm2"}
ONE_VM = {0: "vm1", 1: "vm1"}
FAR_CLOCKS = [RankClock(), RankClock(ahead_ns=7_200 * 10**9, ppm=30)]


# Arrow


def test_arrow_has_the_columns_of_the_frame():
    """The same columns and values as in pandas, each with its unit."""
    timings = recorded()
    for what, frame in (("iterations", timings.to_frame()), ("collectives", timings.collectives())):
        table = timings.to_arrow(what)
        assert table.column_names == list(frame.columns)
        assert table.to_pandas().astype(frame.dtypes).equals(frame)
    assert (
        timings.to_arrow().schema.field("busbw_gbps").metadata[b"unit"] == b"10^9 bits per second"
    )


def test_arrow_says_what_is_not_known_by_null():
    """Waiting that is not known, for some ranks have not reported, is null."""
    assert recorded(3).to_arrow().column("wait_us").null_count == 0
    assert recorded(3, world=4).to_arrow().column("wait_us").null_count == 6


def test_arrow_of_something_else():
    """A word that names no table is a clear error."""
    with pytest.raises(UsageError, match="'iterations' and 'collectives'"):
        recorded(1).to_arrow("ranks")


# The trace for Perfetto


def read(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def slices(trace, category):
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == category]


def check_format(trace):
    """The rules of "Trace Event Format" for the kinds of events that we write."""
    required = {
        "X": {"name", "cat", "ts", "dur", "pid", "tid", "args"},
        "M": {"name", "pid", "tid", "args"},
        "C": {"name", "ts", "pid", "tid", "args"},
        "s": {"name", "cat", "id", "ts", "pid", "tid"},
        "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
    }
    threads, flows, named, tracks = defaultdict(list), defaultdict(list), set(), set()
    for event in trace["traceEvents"]:
        assert required[event["ph"]] <= set(event), event
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        track = event["pid"], event["tid"]
        if event["ph"] == "M":
            assert event["name"] in {
                "process_name", "process_sort_index", "thread_name", "thread_sort_index",
            }  # fmt: skip
            (value,) = event["args"].values()
            assert isinstance(value, str if event["name"].endswith("_name") else int)
            named.add((event["name"], *track))
            continue
        assert math.isfinite(event["ts"])
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert ("thread_name", *track) in named
            threads[track].append(event)
        elif event["ph"] == "C":
            assert all(isinstance(v, int | float) for v in event["args"].values())
        else:
            flows[event["id"]].append(event)
        tracks.add(event["pid"])
    assert {pid for name, pid, _ in named if name == "process_name"} == tracks
    for events in threads.values():
        check_nesting(events)
    for pair in flows.values():
        check_flow(pair, threads)


def nanoseconds(event):
    return round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)


def check_nesting(events):
    """Slices of one thread come in order, and each lies wholly within or beside the others."""
    open_ends = []
    begins = [nanoseconds(event)[0] for event in events]
    assert begins == sorted(begins)
    for event in events:
        begin, end = nanoseconds(event)
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], event
        open_ends.append(end)


def check_flow(pair, threads):
    """An arrow has one start and one end, not earlier, each within a slice of its thread."""
    start, finish = pair
    assert (start["ph"], finish["ph"]) == ("s", "f")
    assert start["ts"] <= finish["ts"]
    for event in pair:
        at = round(event["ts"] * 1e3)
        spans = map(nanoseconds, threads[event["pid"], event["tid"]])
        assert any(begin <= at <= end for begin, end in spans)


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_the_trace_keeps_the_formats_rules(tmp_path, name):
    """Fields, nesting, order, names and arrows are as the format asks, compressed or not."""
    timings = recorded(70, FAR_CLOCKS, late_ms=2, vms=VMS)
    path = timings.to_trace(tmp_path / name)
    trace = read(path)
    check_format(trace)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert trace["displayTimeUnit"] == "ms"


def test_a_process_is_a_rank_on_its_vm(tmp_path):
    """Each rank is a process that names its VM."""
    trace = read(recorded(2, vms=VMS).to_trace(tmp_path / "t.json"))
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert names == {"rank 0 on vm1", "rank 1 on vm2"}


def test_phases_fill_their_iteration(tmp_path):
    """Each iteration's slice is filled by its phases, which say that their place is a guess."""
    timings = recorded(3, vms=ONE_VM)
    trace = read(timings.to_trace(tmp_path / "t.json"))
    for whole in slices(trace, "iteration"):
        begin, end = nanoseconds(whole)
        parts = [
            nanoseconds(e) for e in slices(trace, "phase")
            if e["pid"] == whole["pid"] and begin <= nanoseconds(e)[0] < end
        ]  # fmt: skip
        assert len(parts) == len(PHASES_MS)
        assert parts[0][0] == begin
        assert parts[-1][1] == end
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
    assert {e["args"]["place"] for e in slices(trace, "phase")} == {
        "stacked: only the sum is known"
    }
    assert "only their sums" in trace["otherData"]["note"]


def test_collectives_are_at_their_true_times(tmp_path):
    """Name, kind, bytes, bandwidth, and the bracket that holds the true end."""
    timings = recorded(3, vms=ONE_VM)
    trace = read(timings.to_trace(tmp_path / "t.json"))
    found = [e for e in slices(trace, "collective") if e["pid"] == 0]
    assert [e["name"] for e in found] == [f"allreduce {name}" for name in NAMES] * 3
    for at, event in enumerate(found):
        args = event["args"]
        true_end_us = (true_start(at // 3) - true_start(0) + ENDS_MS[at % 3] * MS) / 1e3
        assert args["last_unfinished_us"] <= true_end_us <= args["first_finished_us"]
        assert event["ts"] + event["dur"] == pytest.approx(args["first_finished_us"])
        assert args["kind"] == "allreduce"
        assert args["bytes"] == SIZES[at % 3]
        assert args["algbw_gbps"] == pytest.approx(args["bytes"] * 8 / event["dur"] / 1e3, rel=1e-3)
        assert args["busbw_gbps"] == args["algbw_gbps"]  # 2(n-1)/n is 1 for two ranks


def test_bandwidth_is_a_counter(tmp_path):
    """Each rank has a counter of its bus bandwidth, with the frame's values."""
    timings = recorded(3)
    trace = read(timings.to_trace(tmp_path / "t.json"))
    found = [
        e["args"]["Gbit/s"] for e in trace["traceEvents"]
        if e["ph"] == "C" and e["name"].startswith("busbw") and e["pid"] == 1
    ]  # fmt: skip
    frame = timings.to_frame()
    assert found == frame[frame["rank"] == 1]["busbw_gbps"].tolist()


def test_arrows_lead_from_the_late_rank(tmp_path):
    """The rank that submits last is where each iteration's arrow begins; none where nobody is."""
    for late_ms, expected in ((3, {(1, 0)}), (0, set())):
        timings = recorded(4, late_ms=late_ms, vms=ONE_VM)
        events = read(timings.to_trace(tmp_path / "t.json"))["traceEvents"]
        starts = {e["id"]: e["pid"] for e in events if e["ph"] == "s"}
        ends = {e["id"]: e["pid"] for e in events if e["ph"] == "f"}
        assert {(starts[key], ends[key]) for key in starts} == expected
        assert len(starts) == 4 * len(expected)


# Clocks


def skews_us(trace):
    """How far apart the two ranks' same iterations begin, which in truth is not at all."""
    begins = defaultdict(dict)
    for event in slices(trace, "iteration"):
        begins[event["name"]][event["pid"]] = event["ts"]
    return [at[1] - at[0] for at in begins.values()]


@pytest.mark.parametrize("collectives", [True, False])
def test_ranks_of_different_vms_are_aligned_by_what_ends_together(tmp_path, collectives):
    """Hours apart and drifting, they come within the uncertainty that the trace states."""
    timings = recorded(200, FAR_CLOCKS, vms=VMS, collectives=collectives)
    trace = read(timings.to_trace(tmp_path / "t.json"))
    about = trace["otherData"]
    what = "collectives" if collectives else "exposed communication"
    assert f"the ends of shared {what}" in about["clock_alignment"]
    assert max(map(abs, skews_us(trace))) <= about["clock_uncertainty_us"]["1"] + 1
    assert about["clock_uncertainty_us"]["1"] < 1000


def test_ranks_of_one_vm_share_its_clock(tmp_path):
    """Nothing is moved, and nothing is uncertain."""
    trace = read(recorded(3, vms=ONE_VM).to_trace(tmp_path / "t.json"))
    assert trace["otherData"]["clock_alignment"].startswith("one machine")
    assert trace["otherData"]["clock_uncertainty_us"] == {"0": 0.0, "1": 0.0}
    assert skews_us(trace) == [0, 0, 0]


class TrueClocks:
    """Knows how the ranks' clocks stand to the common one."""

    def to_kernel(self, rank, t_ns):
        clock = FAR_CLOCKS[rank]
        since = (t_ns - clock.ahead_ns - 10**12) / (1 + clock.ppm * 1e-6)
        return 10**12 + since, 2_000.0


@pytest.mark.parametrize("clocks", [TrueClocks(), TrueClocks().to_kernel])
def test_clocks_that_were_compared_are_used(tmp_path, clocks):
    """An object or a callable maps the ranks' times; its uncertainty is told."""
    timings = recorded(50, FAR_CLOCKS, vms=VMS)
    trace = read(timings.to_trace(tmp_path / "t.json", clocks=clocks))
    check_format(trace)
    assert max(map(abs, skews_us(trace))) < 0.01
    assert trace["otherData"]["clock_uncertainty_us"] == {"0": 2.0, "1": 2.0}


def test_pings_are_used_where_there_were_some(tmp_path):
    """Where the cluster compared clocks, ranks of different VMs are aligned by that."""
    timings = recorded(50, FAR_CLOCKS, vms=VMS)
    for rank, clock in enumerate(FAR_CLOCKS):
        for at in range(0, 50, 2):
            now = true_start(at)
            timings.clocks.now.add(rank, now - 20_000, clock.read(now), now + 20_000)
    trace = read(timings.to_trace(tmp_path / "t.json"))
    check_format(trace)
    about = trace["otherData"]
    assert about["clock_alignment"].startswith("pings")
    assert max(map(abs, skews_us(trace))) <= sum(about["clock_uncertainty_us"].values())
    assert max(about["clock_uncertainty_us"].values()) < 100


def test_collectives_outside_of_iterations_have_their_own_threads(tmp_path):
    """What a cell reduces by itself between two steps is there, and not among the gradients."""
    outside = iteration_record(0, 0, RankClock())
    outside.flags |= Flag.OUTSIDE
    outside.start_ns = true_start(1) + 21 * MS
    timings = recorded(4, vms=ONE_VM, more={0: [outside]})
    trace = read(timings.to_trace(tmp_path / "t.json"))
    check_format(trace)
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace["traceEvents"] if e["name"] == "thread_name"
    }  # fmt: skip
    found = [
        e for e in slices(trace, "collective")
        if threads[e["pid"], e["tid"]].startswith("collectives outside iterations")
    ]  # fmt: skip
    assert [e["pid"] for e in found] == [0] * len(NAMES)
    assert found[0]["ts"] == pytest.approx((STEP_MS + 21 + 7) * 1e3)


# Bad input


def test_some_iterations(tmp_path):
    """Only those that were asked for are written, and clearly none where there are none."""
    timings = recorded(10)
    trace = read(timings.to_trace(tmp_path / "t.json", iterations=(3, 4)))
    assert {e["name"] for e in slices(trace, "iteration")} == {"iteration 3", "iteration 4"}
    with pytest.raises(UsageError, match="50 to 60 were asked for: there are 0 to 9"):
        timings.to_trace(tmp_path / "u.json", iterations=(50, 60))
    assert not (tmp_path / "u.json").exists()


def test_nothing_to_export(tmp_path):
    """Before the first iteration each export is a clear error, and leaves no file."""
    timings = Timings()
    for export in (timings.to_trace, timings.to_hta, timings.to_tensorboard):
        with pytest.raises(UsageError, match="without an iteration"):
            export(tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []
    assert timings.to_arrow().num_rows == 0


def test_a_folder_that_is_not_there(tmp_path):
    """It is named."""
    with pytest.raises(UsageError, match=r"no folder .*nowhere"):
        recorded(1).to_trace(tmp_path / "nowhere" / "t.json")


def test_a_trace_that_fails_leaves_nothing(tmp_path):
    """Half a trace is not left behind."""

    def broken(rank, t_ns):
        if t_ns > true_start(5):
            raise RuntimeError("this clock is broken")
        return t_ns, 0.0

    with pytest.raises(RuntimeError, match="this clock"):
        recorded(10).to_trace(tmp_path / "t.json", clocks=broken)
    assert list(tmp_path.iterdir()) == []


# HolisticTraceAnalysis


def test_a_trace_per_rank_has_what_hta_asks_for(tmp_path):
    """A line with the rank; whole microseconds; each kernel launched within an iteration."""
    recorded(5, vms=ONE_VM).to_hta(tmp_path / "hta")
    for rank in (0, 1):
        path = tmp_path / "hta" / f"rank{rank}.json.gz"
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        assert sum(f'"rank": {rank},' in line for line in lines) == 1
        events = read(path)["traceEvents"]
        assert all(isinstance(e["ts"], int) and e["dur"] >= 0 for e in events)
        kernels = {e["args"]["correlation"]: e for e in events if e["cat"] == "kernel"}
        launches = {e["args"].get("correlation"): e for e in events if e["cat"] == "cpu_op"}
        assert len(kernels) == 5 * (len(NAMES) + 3)
        steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
        for correlation in kernels:
            at = launches[correlation]["ts"]
            assert sum(s["ts"] <= at < s["ts"] + s["dur"] for s in steps) == 1


def test_hta_agrees(tmp_path):
    """HolisticTraceAnalysis loads it; overlap, phases, kernels and the late rank are ours."""
    hta = pytest.importorskip("hta.trace_analysis")
    timings = recorded(12, late_ms=2, vms=ONE_VM)
    found = hta.TraceAnalysis(trace_dir=str(timings.to_hta(tmp_path / "hta")))
    assert found.get_profiler_steps() == list(range(11))  # it leaves out the last one
    ours = timings.to_frame().groupby("rank").mean()
    overlap = found.get_comm_comp_overlap(visualize=False).set_index("rank")
    assert overlap["comp_comm_overlap_pctg"].tolist() == pytest.approx(
        (100 * ours["overlap"]).tolist(), abs=1
    )
    temporal = found.get_temporal_breakdown(visualize=False)
    compute_us = 11 * (ours["forward_us"] + ours["backward_us"] + ours["optimizer_us"])
    assert temporal["compute_time(us)"].tolist() == pytest.approx(compute_us.tolist(), abs=11)
    kernels = found.get_gpu_kernel_breakdown(visualize=False)[1]
    names = set(kernels[kernels["kernel_type"] == "COMMUNICATION"]["name"])
    assert names == {f"ncclKernel_AllReduce_{name}" for name in NAMES}
    assert found.get_potential_stragglers(num_candidates=1) == [1]


# TensorBoard and MLflow


def test_tensorboard_reads_the_scalars(tmp_path):
    """TensorBoard's own reader finds each iteration's figures, by rank and as their mean."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    timings = recorded(6, late_ms=2)
    timings.to_tensorboard(tmp_path)
    frame = timings.to_frame()
    runs = {"mean": frame.groupby("iteration").mean()}
    runs |= {f"rank{rank}": own.set_index("iteration") for rank, own in frame.groupby("rank")}
    for name, expected in runs.items():
        reader = EventAccumulator(str(tmp_path / name))
        reader.Reload()
        found = reader.Scalars("workbench/exposed_ms")
        assert [one.step for one in found] == expected.index.tolist()
        values = [one.value for one in found]
        assert values == pytest.approx((expected["exposed_us"] / 1e3).tolist(), rel=1e-6)
        apart = [b.wall_time - a.wall_time for a, b in itertools.pairwise(found)]
        assert apart == pytest.approx([0.03] * 5, abs=1e-4)


def test_without_tensorboard(tmp_path, monkeypatch):
    """Where the package is missing, the error says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match="pip install tensorboard"):
        recorded(1).to_tensorboard(tmp_path)


def test_mlflow_has_the_metrics(tmp_path, monkeypatch):
    """A new run has each iteration's mean and, unless not wanted, each rank's figures."""
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = (tmp_path / "runs").as_uri()
    timings = recorded(4, late_ms=2)
    run_id = timings.to_mlflow(tracking_uri=store)
    client = tracking.MlflowClient(store)
    frame = timings.to_frame()
    for key, expected in (
        ("busbw_gbps", frame.groupby("iteration")["busbw_gbps"].mean()),
        ("rank1/busbw_gbps", frame[frame["rank"] == 1].set_index("iteration")["busbw_gbps"]),
    ):
        history = sorted(client.get_metric_history(run_id, key), key=lambda one: one.step)
        assert [one.step for one in history] == expected.index.tolist()
        assert [one.value for one in history] == pytest.approx(expected.tolist())
    assert client.get_run(run_id).info.status == "FINISHED"
    only_mean = client.get_run(timings.to_mlflow(tracking_uri=store, per_rank=False))
    assert not any("rank" in key for key in only_mean.data.metrics)
    assert only_mean.info.experiment_id == client.get_run(run_id).info.experiment_id


def test_without_mlflow(monkeypatch):
    """Where the package is missing, the error says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "mlflow.tracking", None)
    with pytest.raises(UsageError, match="pip install mlflow"):
        recorded(1).to_mlflow()


# With real ranks

TRAINING = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters())
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
hvd.allreduce(torch.ones(1000), name="own")
"""


def test_a_real_run(cluster, tmp_path, monkeypatch):
    """Two ranks that train: trace, tables, figures and metrics tell the same."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    cluster.run(TRAINING)
    timings = cluster.timings
    trace = read(timings.to_trace(tmp_path / "run.json.gz"))
    check_format(trace)
    assert trace["otherData"]["clock_alignment"].startswith("one machine")
    table = timings.collectives()
    inside = table[table["iteration"] >= 0]
    names = {e["name"] for e in slices(trace, "collective")}
    assert names >= {f"{one.kind} {one.name}" for one in inside.itertuples()}
    assert len(slices(trace, "iteration")) == len(timings.to_frame()) == 16
    assert timings.to_arrow("collectives").num_rows == len(table)
    for verb in VERBS:
        assert study_view(cluster, verb, []).data
    board = Noticeboard(tmp_path / FOLDER)

    def posted():
        notices = board.read()
        return notices if notices and len(notices[0]["ranks"]) > 1 else None

    (notice,) = within(10, posted)
    assert notice["cluster"] == cluster.name
    assert {rank["vm"] for rank in notice["ranks"]} == {info.vm for info in cluster.ranks}
