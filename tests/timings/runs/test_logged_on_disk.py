"""Logged values on their way to the disk."""

import errno
import warnings

import pytest

import workbench as wb
from workbench.timings import writer
from workbench.timings.logged import MAX_NAMES
from workbench.wire.logged_values import LoggedValues


def log(training, names, values):
    """Log values with the first iteration of the next cell, of rank 0."""
    count = len(names)
    training.outboxes[0].send(LoggedValues(training.cell + 1, (0,) * count, names, values))
    return training.train(1)


def test_values_are_written_once(training, monkeypatch):
    """After an error of the disk, the next write begins with what was not written."""
    monkeypatch.setattr(writer, "_BATCH_ROWS", 2)
    usual, left, written = writer.RunWriter._append, [None, None, "fails"], []

    def append(self, kind, batch):
        if kind == "logged":
            if left and left.pop(0):
                raise OSError(errno.ENOSPC, "No space left on device")
            written.append(batch.num_rows)
        usual(self, kind, batch)

    monkeypatch.setattr(writer.RunWriter, "_append", append)
    one = training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = log(one, ("loss",) * 7, tuple(map(float, range(7)))).path
        one.train(1)
    assert written == [2, 2, 2, 1]
    assert wb.open_run(path).to_frame()["loss"].notna().sum() == 1


def test_names_that_are_not_kept_are_reported(training):
    """In the cell's output, and in the run."""
    one = training()
    names = tuple(f"n{number}" for number in range(MAX_NAMES + 1))
    with pytest.warns(RuntimeWarning, match=rf"log\(n{MAX_NAMES}=...\): its values are not kept"):
        timings = log(one, names, (1.0,) * len(names))
    one.close()
    with pytest.warns(UserWarning, match=f"logged values of n{MAX_NAMES}: only {MAX_NAMES}"):
        wb.open_run(timings.path)


def test_values_end_at_the_limit_of_the_run(training, monkeypatch):
    """As single collectives and samples do."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_MOST_BYTES", "1")
    one = training()
    for value in range(3):
        timings = log(one, ("loss",), (float(value),))
    with pytest.warns(UserWarning, match="logged values from that time on"):
        run = wb.open_run(timings.path)
    assert "loss" not in run.to_frame() or run.to_frame()["loss"].notna().sum() < 3
    assert timings.to_frame()["loss"].notna().sum() == 3
