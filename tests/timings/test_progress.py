"""Epochs, time left and hours, from rows."""

import math
from dataclasses import replace

import numpy as np
import pytest

from workbench.timings.progress import RunningTotals, cpu_us, progress
from workbench.timings.store import ROW
from workbench.timings.summary import summarize

SECOND_NS = 10**9


def rows(batch, *, batches=4, cell=1, rank=0, cpu=None, **more):
    """An iteration of a second for each batch, of which half is exposed."""
    found = np.zeros(len(batch), ROW)
    found["iteration"], found["rank"], found["cell"] = range(len(batch)), rank, cell
    found["iteration_ns"], found["exposed_ns"] = SECOND_NS, SECOND_NS // 2
    found["communication_ns"], found["batch"], found["batches"] = SECOND_NS, batch, batches
    found["samples"] = 8
    found["communication_cpu_ns"] = cpu or 0
    for name, value in more.items():
        found[name] = value
    return found


@pytest.mark.parametrize(
    ("batch", "epochs", "left_s"),
    [
        ([1, 2, 3, 4, 1, 2], 1.5, 2.0),
        ([2, 4, 2], 1.5, 1.0),  # two batches in each iteration
        ([1, 2, 1, 2], 1.0, 2.0),  # passes that were left early
        ([4], 1.0, 0.0),
        ([3, 5], 1.25, 0.0),  # beyond the length that the loader has reported
    ],
)
def test_passes_over_the_data(batch, epochs, left_s):
    """A pass counts by the share of its batches; what is left, by the batches per iteration."""
    own = rows(batch)
    found = progress(own, own)
    assert found.epochs == pytest.approx(epochs)
    assert found.epoch_left_s == pytest.approx(left_s)
    assert found.exposed_hours == pytest.approx(len(batch) / 2 / 3600)


def test_totals_are_of_all_iterations_and_rates_of_the_latest():
    """A summary of the latest iterations does not forget the passes and the hours before them."""
    own = rows([1, 2, 3, 4] * 5)
    own["samples"][-4:] = 16
    found = summarize(own[::-1], latest=4).progress
    assert found.epochs == pytest.approx(5)
    assert found.exposed_hours == pytest.approx(10 / 3600)
    assert found.samples_per_s == pytest.approx(16)


def test_parts_add_up_to_the_whole():
    """Rows that arrive in parts give the passes and hours of all of them."""
    batch, cpu = [1, 2, 3, 4, 1, 2, 3], range(7_000, 14_000, 1_000)
    every = np.concatenate([rows(batch, rank=rank, cpu=list(cpu)) for rank in (0, 1)])
    every.sort(order=["iteration", "rank"])
    parts = RunningTotals()
    for begin in range(0, len(every), 5):
        parts.add(every[begin : begin + 5])
    assert parts.progress(every) == progress(every, every)
    assert progress(every, every).samples_per_s == pytest.approx(16)


def test_the_rows_of_a_higher_rank_may_come_first():
    """Passes over the data are those of one rank, whose rows are not the first that arrive."""
    parts = RunningTotals()
    for rank, batch in ((1, [1, 2]), (0, [1, 2, 3]), (1, [3, 4]), (0, [4])):
        parts.add(rows(batch, rank=rank))
    assert parts.progress(rows([4])).epochs == 1


def test_unknown_is_unknown():
    """Without batches, samples, clocks or rows nothing is made up."""
    own = rows([0, 0], batches=0, samples=[8, 0])
    found = progress(own, own)
    unknown = {name for name, value in vars(found).items() if math.isnan(value)}
    assert unknown == {"samples_per_s", "epochs", "epoch_left_s", "communication_cpu_s"}
    assert "samples/s unknown" in str(found)
    text = str(replace(found, epochs=1.5))
    assert "epoch 1.50;" in text
    assert "nan" not in text
    none = progress(own[:0], own[:0])
    assert all(math.isnan(value) for value in vars(none).values())


def test_cpu_time_is_the_mean_between_two_readings():
    """Records that were sent together share their reading; the first has none before it."""
    own = rows([1, 2, 3, 4, 1], cpu=[5_000, 9_000, 9_000, 9_000, 10_000])
    found = cpu_us(own)
    assert math.isnan(found[0])
    assert found[1:].tolist() == pytest.approx([4 / 3, 4 / 3, 4 / 3, 1])
    restarted = rows([1, 2], cpu=[9_000, 2_000])  # the ring was formed again
    assert np.isnan(cpu_us(restarted)).all()
