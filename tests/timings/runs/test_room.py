"""How much is kept, and disks that are full."""

import json
import threading
import time
from dataclasses import replace

import disks
import pytest
from recorded_training import record, same, warned
from timers import FAR_S, eventually

import workbench as wb
from workbench.timings.storage import RunStorage
from workbench.timings.store import Store


def dated(path, began):
    """A run, as if it had begun at some time."""
    facts = path / "run.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"started_s": began}))
    return path


def old(training, name, began):
    """A run that ended, and began at some time."""
    one = training(name)
    one.train(1)
    one.close()
    return dated(one.timings.path, began)


def test_the_oldest_runs_go_first_and_none_that_is_written(training, monkeypatch):
    """Above the most runs the oldest are removed, but those that run stay, however old."""
    running = dated(training("runs").train(1).path, 0)
    second, first = old(training, "second", 200), old(training, "first", 100)
    monkeypatch.setenv("GRADIENT_WORKBENCH_MOST_RUNS", "3")
    newest = training("newest").train(1).path
    assert not first.exists()
    assert {run.path for run in wb.list_runs()} == {running, second, newest}


def test_the_bytes_of_all_runs_are_bounded(training, monkeypatch):
    """Above the most bytes the oldest are removed; what is not a run's file is left alone."""
    first, second = old(training, "first", 100), old(training, "second", 200)
    (first / "notes.txt").write_text("mine")
    room = sum(path.stat().st_size for path in second.iterdir())
    monkeypatch.setenv("GRADIENT_WORKBENCH_MOST_BYTES", str(room))
    training("newest").train(1)
    assert [path.name for path in first.iterdir()] == ["notes.txt"]
    assert second.exists()


def test_a_run_alone_does_not_outgrow_the_bytes(training, monkeypatch):
    """Single collectives end at the limit, iterations continue, and the run reports it."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_MOST_BYTES", "1")
    one = training()
    for _ in range(3):
        timings = one.train(2)
    with pytest.warns(UserWarning, match="left out: single collectives from iteration"):
        run = wb.open_run(timings.path)
    assert run.to_frame().equals(timings.to_frame())
    assert len(run.collectives()) < len(timings.collectives())


def test_a_limit_that_is_none_is_said(training, monkeypatch):
    """A variable that is no number stops no training."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_MOST_RUNS", "many")
    with pytest.warns(RuntimeWarning, match="MOST_RUNS='many'"):
        timings = training().train(2)
    assert len(timings) == 4


def test_a_kept_clusters_run_waits_for_its_next_kernel(training, monkeypatch):
    """Between two kernels nobody writes, and yet the run is not removed."""
    one = training("kept", kept_s=60)
    path = one.train(1).path
    one.close()
    monkeypatch.setenv("GRADIENT_WORKBENCH_MOST_RUNS", "1")
    training("newest").train(1)
    assert path.exists()


# disks


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """A file system of 64 KB, for the runs."""
    with disks.small_disk(tmp_path / "disk") as disk:
        monkeypatch.setenv("GRADIENT_WORKBENCH_RUNS", str(disk / "runs"))
        yield disk


def test_a_full_disk_is_said_once_and_nothing_is_lost(training, small_disk):
    """Training continues in memory; when there is space again the complete run is on disk."""
    one = training()
    one.train(4)
    full = disks.fill(small_disk)
    told = [str(said.message) for said in warned(lambda: [one.train(50) for _ in range(4)])]
    timings = one.timings
    assert told == timings.storage_errors
    assert len(told) == 1
    assert "No space left" in told[0]
    assert timings.errors == []
    assert timings.dropped == 0
    assert len(timings) == 408
    whole = wb.open_run(timings.path).to_frame()
    assert whole.equals(timings.to_frame()[: len(whole)])
    full.unlink()
    one.train(1)
    same(wb.open_run(timings.path), timings)


def test_a_folder_that_cannot_be_written_is_said_once(training, tmp_path, monkeypatch):
    """The run is in memory alone, and every figure of it is there."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRADIENT_WORKBENCH_RUNS", str(tmp_path / "file" / "runs"))
    one = training()
    (told,) = warned(lambda: [one.train(2) for _ in range(3)])
    assert "not being written to disk" in str(told.message)
    assert len(one.timings.to_frame()) == 12
    assert not one.timings.collectives().empty


def test_a_verdict_that_cannot_be_written_is_said_and_written_later(training):
    """The records are written meanwhile; the newest verdict of a closed run is on disk."""
    one = training()
    timings = one.train(20)
    first = wb.verdict(timings)
    assert eventually((timings.path / "run.json").exists)
    obstacle = timings.path / "verdict.json"
    obstacle.mkdir()
    timings.conclude(first)
    assert eventually(lambda: timings.storage_errors)
    one.train(5)
    (told,) = timings.storage_errors
    assert told.startswith(f"the verdict of the last cell is not stored in {timings.path}: ")
    assert len(wb.open_run(timings.path)) == len(timings)
    obstacle.rmdir()
    timings.conclude(second := wb.verdict(timings))
    one.close()
    assert wb.open_run(timings.path).stored_verdict == second != first
    timings.conclude(third := replace(second, ranks=1))
    assert wb.open_run(timings.path).stored_verdict == third


def test_a_disk_that_never_answers_is_waited_for_once(tmp_path):
    """The end of a cell waits for the disk a bounded time, the ends after it not at all."""
    store = Store()
    store.add(0, record(0))
    answer = threading.Event()
    storage = RunStorage(store, lambda start: answer.wait() and store.read(start))
    storage.begin({"cluster": "local-1"}, tmp_path)
    assert not storage.flush(0.2)
    before = time.monotonic()
    assert not storage.flush(30)
    assert time.monotonic() - before < 15
    answer.set()
    storage.close()
    assert len(wb.open_run(storage.path)) == 1


def test_nothing_waits_for_a_run_that_has_ended(tmp_path):
    """A cell that ends after the cluster was stopped finds that nothing more is written."""
    store = Store()
    store.add(0, record(0))
    storage = RunStorage(store, store.read)
    storage.begin({"cluster": "local-1"}, tmp_path)
    storage.close()
    before = time.monotonic()
    assert not storage.flush(FAR_S)
    assert time.monotonic() - before < FAR_S / 2


def test_what_the_disk_never_took_is_said_in_the_run(training, small_disk):
    """A run that ends on a full disk is a complete beginning, and reports that more is missing."""
    one = training()
    one.train(4)
    full = disks.fill(small_disk)
    warned(lambda: one.train(400))
    one.close()
    full.unlink()
    with pytest.warns(UserWarning, match=r"full disk|did not take"):
        run = wb.open_run(one.timings.path)
    found = run.to_frame()
    assert 8 <= len(found) < 808
    assert found.equals(one.timings.to_frame()[: len(found)])
