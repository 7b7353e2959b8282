"""Arguments of the wrong type, or out of range: what was given, what is wrong, what to do."""

import re

import numpy as np
import pytest

import workbench as wb
from workbench.errors import UsageError, WorkbenchError

NO_INTEGER = [1.5, "x", "", True, float("nan"), [], (5, 2), {"a": 1}, object(), b"y"]
NO_PATH = [0, 1.5, None, True, [], {"a": 1}, object(), b"y", "\0", "\ud800"]


@pytest.fixture(params=["memory", "disk"])
def trained(request, training):
    """Timings of two ranks, and the same as a run on disk."""
    timings = training().train(5)
    return timings if request.param == "memory" else wb.open_run(timings.path)


def refused(call, start):
    """Call, and return the error's text, which begins so and ends with what to do."""
    with pytest.raises(UsageError, match=f"^{re.escape(start)}") as caught:
        call()
    text = str(caught.value)
    assert re.search(r"\. (Give|Write|Choose|Name) [^\n]+\.$", text)
    assert len(text) < 1000
    return text


@pytest.mark.parametrize("given", NO_INTEGER)
def test_no_iteration(trained, given):
    """Where iterations are numbers, nothing else is one."""
    for name in ("first", "last"):
        for method in (trained.collectives, trained.collective_totals, trained.records):
            span = {"first": 0, "last": 1, name: given}
            refused(lambda method=method, span=span: method(**span), f"{name}=")
    refused(lambda: trained.summary(latest=given), "latest=")
    refused(lambda: wb.explain(trained, latest=given), "latest=")
    refused(lambda: trained.rows(given), "start=")


@pytest.mark.parametrize("latest", [0, -1, -(10**30)])
def test_no_iterations_at_all(trained, latest):
    """Of fewer than one iteration, there are no figures."""
    text = refused(lambda: trained.summary(latest=latest), f"latest={latest}: ")
    assert "must be a positive integer" in text


def test_iterations_far_outside(trained):
    """Any integer is an iteration, also of NumPy, and those that are not there are none."""
    assert len(trained.collectives(10**30)) == len(trained.collectives(last=-(10**30))) == 0
    assert trained.collectives(-(10**30), 10**30).equals(trained.collectives())
    assert trained.collectives(np.int64(1), np.int32(1))["iteration"].unique().tolist() == [1]
    assert trained.summary(latest=10**30).iterations == trained.summary().iterations


@pytest.mark.parametrize("given", [0, None, "x", "x" * 5000, {}, wb.Cluster])
def test_no_run_to_compare(trained, given):
    """It is shown, and shortened if it is long."""
    refused(lambda: trained.compare(given), "compare(")


@pytest.mark.parametrize("given", NO_PATH)
def test_no_path(trained, given):
    """Nothing is written."""
    refused(lambda: trained.to_trace(given), "path=")
    refused(lambda: trained.to_hta(given), "folder=")
    refused(lambda: trained.to_tensorboard(given), "folder=")
    refused(lambda: wb.open_run(given), "path_or_name=")
    if given is not None:
        refused(lambda: wb.list_runs(given), "folder=")
        refused(lambda: wb.Cluster(runs=given), "runs=")


def test_paths_that_cannot_be_written(trained, tmp_path, monkeypatch):
    """A file in place of a folder, a name that is too long, and an empty one."""
    tmp_path = tmp_path / "exports"
    tmp_path.mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    long = tmp_path / ("x" * 300)
    for export in (trained.to_trace, trained.to_hta, trained.to_tensorboard):
        name = "path" if export == trained.to_trace else "folder"
        refused(lambda export=export: export(""), f"{name}='': ")
        refused(lambda export=export: export(long), f"{tmp_path}/xxx")
    for export in (trained.to_hta, trained.to_tensorboard):
        refused(lambda export=export: export(tmp_path / "file"), f"{tmp_path}/file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_home_of_the_user(trained, tmp_path, monkeypatch):
    """A path may begin with it, as elsewhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert trained.to_trace("~/trace.json") == tmp_path / "trace.json"
    assert (tmp_path / "trace.json").is_file()


@pytest.mark.parametrize("given", [0, "x", [], object()])
def test_no_clocks(trained, given, tmp_path):
    """Clocks are an object with a method, or a function."""
    refused(lambda: trained.to_trace(tmp_path / "a.json", clocks=given), "clocks=")
    refused(lambda: trained.to_hta(tmp_path / "a", clocks=given), "clocks=")


def test_no_listener(training):
    """It is refused before it could break the timings of a cell."""
    one = training()
    refused(lambda: one.timings.subscribe(0), "subscribe(0): ")
    assert len(one.train(2)) == 4


@pytest.mark.parametrize("given", [0, None, "x", {}, object()])
def test_no_snapshot(given):
    """Neither for the doctor, nor as a file or text of one."""
    refused(lambda: wb.diagnose(given), f"a {type(given).__name__}: not a snapshot. ")
    refused(lambda: wb.diagnose_all({"vm1": given}), f"a {type(given).__name__}: not a snapshot. ")
    if not isinstance(given, dict):
        refused(lambda: wb.diagnose_all(given), "diagnose_all: ")
    if given is not None:
        refused(lambda: wb.diagnose(wb.take_snapshot(), given), f"a {type(given).__name__}: ")
    for method in (
        *(wb.Snapshot.load, wb.Snapshot.from_json, wb.Snapshot.from_nccl_topology),
        lambda text: wb.Snapshot.from_nccl_topology_text(text, "a.xml"),
    ):
        with pytest.raises(WorkbenchError, match=r"\. [A-Z][^\n]+\.$"):
            method(given)
