"""Runs whose files are damaged anywhere, session files, and runs of a process that was killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
from hostile import controls
from hypothesis import example, given
from hypothesis import strategies as st
from random_inputs import corpus, damaged_bytes, damaged_json, one_in
from recorded_training import Training
from timers import eventually

import workbench as wb
from workbench.errors import RunError
from workbench.timings.folder import is_run_file
from workbench.widgets.runs import RunList, run_table

ITERATIONS = 12
"""Of the run that is damaged, for each of two ranks."""


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run that has ended, and its files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIENT_WORKBENCH_RUNS", str(tmp_path_factory.mktemp("runs")))
        training = Training()
        for _ in range(3):
            training.train(4)
        training.close()
    # on a busy machine its writer ends later than it is closed
    assert eventually(lambda: wb.open_run(training.timings.path).state == "ended")
    return wb.open_run(training.timings.path)


@pytest.fixture(scope="module")
def rows(original):
    return original.to_frame()


@pytest.fixture(scope="module")
def files(original):
    return {path.name: path.read_bytes() for path in original.path.iterdir()}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged") / "20260101-000000-local-1"


def written(place, files):
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, data in files.items():
        (place / name).write_bytes(data)
    return place


def show(path):
    """All that is read of a run; it is printable."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        run = wb.open_run(path)
    table = run.to_frame()
    run.collectives()
    run.samples()
    run.logged()
    run.snapshot()
    text = f"{run!r} {run.started} {run.ranks} {run.iterations} {run_table(run)!r}"
    text += f"{RunList([run])!r} {run.stored_verdict} {run.summary()!r}" + " ".join(run.problems)
    assert controls(text) == set()
    return run, table


@one_in(2)
@given(data=st.data())
def test_a_stream_damaged_anywhere(place, files, rows, data):
    """Of one file of the run: the others are read, and what is missing has been reported."""
    name = data.draw(st.sampled_from(sorted(name for name in files if name.endswith(".arrows"))))
    damaged = data.draw(damaged_bytes(files[name]))
    run, table = show(written(place, {**files, name: damaged}))
    if not name.startswith("iterations"):
        assert len(table) == len(rows)
    elif len(table) < len(rows):
        assert any(name in problem for problem in run.problems)


@given(data=st.data())
def test_a_stream_cut_anywhere(place, files, rows, data):
    """What is read is the beginning of the run, value by value."""
    cut = data.draw(st.integers(0, len(files["iterations-0.arrows"]) - 1))
    files = {**files, "iterations-0.arrows": files["iterations-0.arrows"][:cut]}
    run, table = show(written(place, files))
    known = table["iteration"].unique()
    assert table.equals(rows[rows["iteration"].isin(known)])
    assert run.problems


@one_in(2)
@given(data=st.data())
@example(data=None)
def test_any_facts(place, files, rows, data):
    """Whatever run.json has, the timings are read."""
    text = "[]"
    if data is not None:
        text = data.draw(damaged_json(json.loads(files["run.json"])) | st.text(max_size=40))
    changed = {**files, "run.json": text.encode("utf-8", "surrogatepass")}
    _, table = show(written(place, changed))
    assert len(table) == len(rows)


@pytest.mark.parametrize("name", corpus("runs"))
def test_streams_that_once_failed(place, files, name):
    """The name of a stored input begins with the name of its file: ``iterations-0.arrows@why``."""
    show(written(place, {**files, name.partition("@")[0]: corpus("runs")[name]}))


# session files


@pytest.fixture(scope="module")
def session(original, tmp_path_factory):
    return original.save(tmp_path_factory.mktemp("saved") / "run").read_bytes()


def opened(path):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return wb.open_run(path)
    except RunError as error:
        text = str(error)
    assert len(text) < 2_000
    assert controls(text) == set()
    return None


@one_in(2)
@given(data=st.data())
def test_a_damaged_session_file(tmp_path_factory, session, rows, data):
    """It is refused in one error, or its run is read."""
    file = tmp_path_factory.mktemp("session") / "run.gwsession"
    file.write_bytes(data.draw(damaged_bytes(session)))
    run = opened(file)
    assert run is None or len(run.to_frame()) <= len(rows)


entry_names = st.one_of(
    st.sampled_from(
        ("run.json", "iterations-0.arrows", "../x", "/etc/x", "a/run.json", "lock", "", "run.json/",
         "iterations-0.arrows\0", "verdict.json", "iterations-٣.arrows")
    ),
    st.text(max_size=5),
)  # fmt: skip


@one_in(2)
@given(st.lists(st.tuples(entry_names, st.binary(max_size=40)), max_size=4))
def test_a_session_file_of_any_entries(tmp_path_factory, entries):
    """Nothing is written outside of the folder of the run."""
    folder = tmp_path_factory.mktemp("session")
    file = folder / "run.gwsession"
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name), content)
    run = opened(file)
    assert [path.name for path in folder.iterdir()] == ["run.gwsession"]
    if run is not None:
        inside = list(run.path.parent.rglob("*"))
        assert all(is_run_file(path.name) for path in inside if path.is_file())


# a process that is killed while it writes

WRITER = """
import sys
sys.path[:0] = ["tests/support", "tests"]
from recorded_training import Training
training = Training()
for number in range(200):
    training.train(3)
    print(number, flush=True)  # every iteration of this cell has been handed to the writer
"""


def started(folder):
    environment = {**os.environ, "GRADIENT_WORKBENCH_RUNS": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER], env=environment, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip


def test_a_process_killed_at_random_points(tmp_path, request):
    """Each time what is read is a beginning of what was trained, and the run is "cut off"."""
    times = 40 if request.config.getoption("--hypothesis-profile") == "long" else 3
    for number in range(times):
        chance = random.Random(number)
        folder = tmp_path / str(number)
        process = started(folder)
        try:
            for _ in range(chance.randint(1, 12)):
                process.stdout.readline()
            written_bytes = chance.randint(0, 20_000)
            eventually(lambda: size(folder) >= written_bytes)  # noqa: B023 - called at once
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        (one,) = wb.list_runs(folder)
        run, table = show(one.path)
        assert run.state == "cut off"
        counts = table.groupby("iteration")["rank"].nunique()
        assert table["iteration"].max() == len(counts) - 1  # none is missing between others
        assert (counts.iloc[:-3] == 2).all(), number
        assert (table["iteration_us"] == 20_000).all()
        for left in one.path.iterdir():
            assert is_run_file(left.name) or left.name in {"lock", "run.json.part"}, left


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*.arrows"))
