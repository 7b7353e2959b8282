"""`workbench bundle` of a recorded run, and `%cluster bundle` of the notebook's cluster."""

import json
import stat
from pathlib import Path

import pytest
from bundles import WRITE_WITH_THE_ERROR, BundleFile
from clusters import training
from recorded_training import Training
from run_notebook import opened, values_of

from workbench.cli import main


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a run that was recorded; the working directory is empty."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("A_SECRET_KEY", "planted-in-run-json")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    one = Training()
    one.train(120)
    one.close()
    path = one.timings.path
    facts = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(facts | {"note": "planted-in-run-json"}))
    return path


def test_the_newest_run(run, capsys):
    """What the run stores, and this machine; what only a live cluster has is listed."""
    assert main(["bundle"]) == 0
    path = Path(capsys.readouterr().out.strip().removeprefix("Evidence: "))
    assert path == Path.cwd() / f"evidence-{run.name}.zip"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    bundle = BundleFile(path)
    assert bundle.manifest["run"] == run.name
    rows = bundle["iterations.csv"].splitlines()[1:]
    assert [line.split(",")[2] for line in rows].count("1") == 100
    assert bundle.json("collectives.json")["0"]["recorded"]["iterations"] == 120
    assert "%cluster bundle" in bundle.missing["stacks.txt"]
    machine = bundle.json("vms/this-machine-now/sample.json")
    assert machine["memory"]["total_bytes"] > 0
    assert "planted-in-run-json" not in bundle.text
    assert "<removed>" in bundle["run.json"]


def test_a_named_run_and_file(run, tmp_path, capsys):
    """The run may be named as for `%timings open`, and the file may be anywhere."""
    given = tmp_path / "other" / "mine.zip"
    assert main(["bundle", run.name, "-o", str(given)]) == 0
    assert capsys.readouterr().out == f"Evidence: {given}\n"
    assert BundleFile(given).manifest["run"] == run.name


@pytest.mark.usefixtures("run")
def test_a_file_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["bundle", "--out", str(tmp_path / "file" / "x.zip")]) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(("names", "says"), [([], "no run is recorded"), (["x"], "no such run")])
def test_no_run(tmp_path, monkeypatch, capsys, names, says):
    monkeypatch.setenv("GRADIENT_WORKBENCH_RUNS", str(tmp_path / "none"))
    assert main(["bundle", *names]) == 1
    assert says in capsys.readouterr().err


def test_the_cluster_of_a_notebook(tmp_path):
    """The magic returns the path, and an error ends with its own file."""
    given = tmp_path / "given.zip"
    with opened(WRITE_WITH_THE_ERROR, "cluster = %cluster start -n 2") as notebook:
        notebook.run(f"%%distributed\n{training(2)}")
        shown = values_of(notebook.run(f"%cluster bundle --out {given}"))
        assert str(given) in shown
        bundle = BundleFile(given)
        assert bundle["stacks.txt"].count("no cell runs") == 2
        assert len(bundle["iterations.csv"].splitlines()) == 5
        cell = notebook.run("%%distributed\nraise ValueError('boom')")
        (error,) = [one for one in cell.outputs if one.output_type == "error"]
        last = error.traceback[-1]
        assert last.startswith("Evidence: /")
        assert BundleFile(last.removeprefix("Evidence: ")).manifest["cell"] == 2
        printed = notebook.run("%cluster log").outputs[0].text
        processes = [line for line in printed.splitlines() if line.startswith("== ")]
        assert processes[0] == "== kernel"
        assert processes[1].startswith("== agent of ")
        assert processes[2:] == ["== rank 0", "== rank 1"]
        assert printed.count(" INFO workbench.agent.rank_processes: process of slot ") == 2
