"""Runs of other people: edited descriptions, damaged streams, pipes in their places."""

import json
import os

import pyarrow as pa
import pytest
from hostile import controls, mutated_bytes, mutated_json

import workbench as wb
from workbench.widgets.runs import RunList, run_table

pytestmark = pytest.mark.filterwarnings("ignore:run")
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b1m\u202e\x7f"


def show(path):
    """All that is shown of a run."""
    run = wb.open_run(path)
    run.to_frame()
    run.collectives()
    text = f"{run!r} {run.started} {run.ranks} {run_table(run)!r} {RunList([run])!r}"
    text += " ".join(run.problems)
    assert controls(text) == set()
    text.encode()
    return run


@pytest.mark.slow
def test_an_edited_description(ended):
    """Whatever run.json contains, the timings are read, and what cannot be read is named."""
    file = ended.path / "run.json"
    plain = json.loads(file.read_text())
    for seed in range(150):
        file.write_text(mutated_json(plain, seed), encoding="utf-8", errors="surrogatepass")
        assert len(show(ended.path)) == 24


@pytest.mark.parametrize("name", ["started_s", "iterations", "ranks", "closed", "left_out"])
def test_a_fact_of_another_kind_is_named(ended, name):
    file = ended.path / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: ESCAPES}))
    assert any(name in problem for problem in show(ended.path).problems)


def test_texts_of_a_description_reach_no_terminal_raw(ended):
    file = ended.path / "run.json"
    plain = json.loads(file.read_text())
    ranks = [{"rank": 0, "vm": ESCAPES, "gpu": ESCAPES}]
    file.write_text(json.dumps(plain | {"cluster": ESCAPES, "ranks": ranks, "left_out": [ESCAPES]}))
    show(ended.path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["iterations", "collectives", "layouts"])
def test_damaged_streams(ended, kind):
    path = ended.path / f"{kind}-0.arrows"
    whole = path.read_bytes()
    for seed in range(80):
        path.write_bytes(mutated_bytes(whole, seed))
        show(ended.path)


def test_a_stream_that_begins_with_another_message(ended):
    """It is a problem of the file: pyarrow would read the schema from where none is, and crash."""
    path = ended.path / "iterations-0.arrows"
    whole, others = path.read_bytes(), 0
    for offset in range(8, 64):
        path.write_bytes(whole[:offset] + b"\xe2" + whole[offset + 1 :])
        try:
            kind = pa.ipc.read_message(path.read_bytes()).type
        except (pa.ArrowException, OSError):
            continue
        if kind != "schema":
            others += 1
            assert any("begin with a schema" in problem for problem in show(ended.path).problems)
    assert others


@pytest.mark.parametrize("name", ["run.json", "lock", "iterations-0.arrows", "layouts-0.arrows"])
def test_a_pipe_in_the_place_of_a_file(ended, name):
    """Nothing waits for it."""
    (ended.path / name).unlink()
    os.mkfifo(ended.path / name)
    show(ended.path)
    assert [run.name for run in wb.list_runs()] == [ended.path.name]


@pytest.mark.parametrize("name", ["a" * 20_000, "a/" * 3_000])
def test_a_name_that_is_too_long(name):
    """It is one short error."""
    with pytest.raises(wb.RunError, match="File name too long") as caught:
        wb.open_run(name)
    assert len(str(caught.value)) < 1_000


def test_a_folder_in_the_home_of_nobody(monkeypatch):
    """It is a folder of that name, as a path is elsewhere."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_RUNS", "~nobody-of-this-name/runs")
    assert wb.list_runs() == []
