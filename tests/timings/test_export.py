"""Timings for other tools: Arrow, HolisticTraceAnalysis, TensorBoard, MLflow."""

from __future__ import annotations

import gzip
import itertools

import pytest
from clusters import training
from recorded import NAMES, ONE_VM, recorded
from timers import eventually
from traces import check_format, read, slices

import workbench as wb
from workbench.errors import UsageError
from workbench.resources.process_registry import FOLDER, ProcessRegistry
from workbench.timings import Timings
from workbench.widgets.timings_figures import SUBCOMMANDS, timings_figure


def test_nothing_to_export(tmp_path):
    """Before the first iteration each export is a clear error, and leaves no file."""
    timings = Timings()
    for export in (timings.to_trace, timings.to_hta, timings.to_tensorboard):
        with pytest.raises(UsageError, match="No iteration was recorded"):
            export(tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []
    assert timings.to_arrow().num_rows == 0


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
    with pytest.raises(UsageError, match=r"'ranks'.*'iterations' or 'collectives'"):
        recorded(1).to_arrow("ranks")


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
    """If the package is missing, the error says what to install."""
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
    """If the package is missing, the error says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "mlflow.tracking", None)
    with pytest.raises(UsageError, match="pip install mlflow"):
        recorded(1).to_mlflow()


# With real ranks


@pytest.fixture
def cluster():
    """Two ranks whose timings are those of the test alone."""
    with wb.Cluster(n=2) as running:
        yield running


@pytest.mark.slow
def test_a_real_run(cluster, tmp_path, monkeypatch):
    """Two ranks that train: trace, tables, figures and metrics agree."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    cluster.run(training(8, width=64) + "hvd.allreduce(torch.ones(1000), name='own')")
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
    for verb in SUBCOMMANDS:
        assert timings_figure(cluster, verb, []).data
    board = ProcessRegistry(tmp_path / FOLDER)

    def posted():
        notices = board.read()
        return notices if notices and len(notices[0]["ranks"]) > 1 else None

    (notice,) = eventually(posted)
    assert notice["cluster"] == cluster.name
    assert {rank["vm"] for rank in notice["ranks"]} == {info.vm for info in cluster.ranks}
