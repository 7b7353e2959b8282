"""A scaling study on real ranks, and studies that are stored and compared."""

import dataclasses
import json
import os
import re
import signal
import threading

import numpy as np
import pytest
from timers import when

import workbench as wb
from workbench import ScalingStudy
from workbench.advisor.scaling_point import FailedSize, ScalingPoint
from workbench.advisor.scaling_size import MeasuredSize
from workbench.fabric import fit

TRAINING = """
import time, torch
model = torch.nn.Linear(1000, 100)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)
for _ in range(12):
    time.sleep(0.02)
    optimizer.zero_grad()
    model(torch.ones(4, 1000)).sum().backward()
    optimizer.step()
"""

PAIR = """class Pair(torch.nn.Linear):
    def forward(self, x, _):
        return super().forward(x)
model = Pair"""


@pytest.fixture(scope="module")
def cluster():
    with wb.Cluster(n=2) as running:
        yield running


@pytest.fixture(scope="module")
def study(cluster):
    """With a calibrated fabric (100 µs and 1 ms for 400 kB), and a nominal rate."""
    cluster.fabric = fit([400, 400_400], [101, 1_101], 2)
    return wb.scaling_study(cluster, TRAINING, (2, 1), label="here", nominal_gbps=10)


def test_each_size_is_measured(cluster, study):
    """In order; the cluster has its ranks again; the first iteration is not counted."""
    assert [point.ranks for point in study.points] == [1, 2]
    assert cluster.n == 2
    for point in study.points:
        assert point.iterations == 11
        assert 20_000 < point.low_us <= point.iteration_us <= point.high_us
    alone, both = study.points
    assert (alone.efficiency, alone.calibrated) == (1, (1, 1))
    assert both.efficiency == pytest.approx(alone.iteration_us / both.iteration_us)
    assert both.exposed_us >= 0


def test_samples_per_second(study):
    """Four samples of each rank: weak scaling; throughput is of all ranks together."""
    assert (study.scaling, study.unit) == ("weak", "samples/s")
    for point in study.points:
        assert point.samples == 4 * point.ranks
        assert point.per_second == pytest.approx(4 * point.ranks / point.iteration_us * 1e6)
    assert list(study.to_frame()["samples_per_s"]) == [one.per_second for one in study.points]
    both = study.points[1]
    efficiency, low, high = study.efficiency(both)
    assert efficiency == both.efficiency
    assert low <= study.points[0].low_us / both.iteration_us
    assert high >= study.points[0].high_us / both.iteration_us


def test_strong_scaling(cluster):
    """The batch is divided: two ranks that take as long as one have half the efficiency."""
    source = TRAINING.replace("torch.ones(4, 1000)", "torch.ones(8 // world_size, 1000)")
    study = wb.scaling_study(cluster, source, (1, 2))
    assert study.scaling == "strong"
    assert [point.samples for point in study.points] == [8, 8]
    alone, both = study.points
    assert both.efficiency == pytest.approx(alone.iteration_us / both.iteration_us / 2)
    assert (both.nominal, both.calibrated[0]) == (None, pytest.approx(0.9, abs=0.1))
    assert "all ranks share one VM" in repr(study)


def test_the_efficiency_of_the_calibrated_fabric(study):
    """The calibrated fabric takes 1.1 ms for 400 kB; one machine has no link."""
    alone, both = study.points
    assert both.nominal is None
    expected = alone.iteration_us / (alone.iteration_us + 1_101)
    assert both.calibrated == (pytest.approx(expected, rel=1e-3), 1)
    assert "calibrated" in repr(study)


def test_a_study_is_stored(study, tmp_path):
    """Every field comes back."""
    study.save(tmp_path / "study.json")
    assert ScalingStudy.load(tmp_path / "study.json") == study
    assert list(study.to_frame()["ranks"]) == [1, 2]


def test_two_studies_are_compared(study):
    """A study of iterations that take twice as long has a ratio of 2 within its bounds."""
    points = [
        dataclasses.replace(
            point,
            iteration_us=2 * point.iteration_us,
            low_us=2 * point.low_us,
            high_us=2 * point.high_us,
        )
        for point in study.points
    ]
    slow = dataclasses.replace(study, label="slow", points=tuple(points[1:]))
    frame = study.compare(slow).to_frame()
    assert list(frame["ranks"]) == [2]
    assert frame["ratio"][0] == pytest.approx(2)
    assert frame["low"][0] <= 2 <= frame["high"][0]
    with pytest.raises(wb.UsageError, match="no number of ranks in common"):
        slow.compare(dataclasses.replace(study, points=study.points[:1]))


def test_several_runs(cluster):
    """The interval has what changes between runs: each waits for 50 ms longer than the last."""
    longer = "turn = globals().get('turn', 0) + 1\n"
    source = longer + TRAINING.replace("time.sleep(0.02)", "time.sleep(0.05 * turn)")
    (point,) = wb.scaling_study(cluster, source, (2,), repeats=3).points
    assert (point.runs, point.iterations) == (3, 33)
    assert point.iteration_us > 50_000
    assert point.high_us > 2 * point.low_us
    with pytest.raises(wb.UsageError, match="repeats=11: more than 10"):
        wb.scaling_study(cluster, TRAINING, (1,), repeats=11)


def test_runs_of_a_size():
    """Waits are averaged over all iterations; runs with other work are refused."""
    run = MeasuredSize((np.full(10, 9.0),), 2.0, 400, 2, 8.0, ("TCP eth0",), ("vm1", "vm1"))
    other = dataclasses.replace(
        run, runs_us=(np.full(30, 9.0),), exposed_us=6.0, transports=("TCP eth1",)
    )
    both = other.with_runs(run)
    assert (both.iterations, both.exposed_us) == (40, 5)
    assert both.transports == ("TCP eth0", "TCP eth1")
    assert both.with_runs(dataclasses.replace(run, exposed_us=None)).exposed_us is None
    for change, says in (
        ({"samples": 4.0}, "had 4 samples in the runs before, and 8 in this"),
        ({"samples": None}, "had unknown samples in the runs before, and 8 in this"),
        ({"moved_bytes": 4000}, "had 4,000 bytes of gradients in the runs before, and 400 in"),
    ):
        with pytest.raises(wb.UsageError, match=says):
            run.with_runs(dataclasses.replace(run, **change))


def test_a_later_run_that_fails(cluster):
    """The reason says which; the run before is kept. The file that cannot be written is noted."""
    once = "tries = globals().get('tries', 0) + 1\nassert tries < 2, 'too often'\n"
    study = wb.scaling_study(cluster, once + TRAINING, (2,), repeats=3, save="/dev/full")
    assert [(point.ranks, point.runs) for point in study.points] == [(2, 1)]
    reason = "in run 2 of 3: rank 0: AssertionError: too often"
    assert study.failed == (FailedSize(2, reason),)
    assert "The study was not saved. /dev/full: cannot be written" in study.notes[0]


def test_sizes_that_fail(cluster, tmp_path):
    """They have their reasons, the others are kept and saved, and the cluster goes on."""
    fails = "if world_size == 2:\n    raise ValueError('too large')\n"
    unequal = TRAINING.replace("model = torch.nn.Linear", PAIR)
    source = fails + unequal.replace("torch.ones(4, 1000)", "torch.ones(4, 1000), torch.ones(3)")
    study = wb.scaling_study(cluster, source, (1, 2, 100_000), save=tmp_path / "study.json")
    assert [point.ranks for point in study.points] == [1]
    assert study.failed[0] == FailedSize(2, "rank 0: ValueError: too large")
    assert study.failed[1].ranks == 100_000
    assert "2  failed: rank 0: ValueError: too large" in repr(study)
    assert ScalingStudy.load(tmp_path / "study.json") == study
    assert (cluster.state, cluster.n) == ("ready", 2)
    assert (study.scaling, study.unit, study.points[0].samples) == ("unknown", "iterations/s", None)
    assert "Samples per second are unknown" in repr(study)


def test_the_smallest_size_fails(cluster):
    """Nothing was measured, so the error is that of the cell."""
    with pytest.raises(wb.RanksFailed, match="too large"):
        wb.scaling_study(cluster, "raise ValueError('too large')", (1, 2))
    assert (cluster.state, cluster.n) == ("ready", 2)


def test_an_interrupt(cluster, tmp_path):
    """The sizes before are in the error and in the file."""
    begun, saved, main = tmp_path / "begun", tmp_path / "study.json", threading.main_thread().ident
    wait = f"\nif world_size == 2:\n    open({str(begun)!r}, 'w').close()\n    time.sleep(600)\n"
    waiter = when(begun.exists, lambda: signal.pthread_kill(main, signal.SIGINT))
    with pytest.raises(wb.StudyInterrupted, match=r"ranks = 2.*before \(1\) are in ") as error:
        wb.scaling_study(cluster, TRAINING + wait, (1, 2), save=saved)
    waiter.join()
    assert [point.ranks for point in error.value.study.points] == [1]
    assert ScalingStudy.load(saved) == error.value.study
    assert (cluster.state, cluster.n) == ("ready", 2)


def test_an_interrupt_while_the_study_is_saved(cluster, tmp_path):
    """The size just measured is in the error."""
    trained = tmp_path / "trained"

    class Interrupting(os.PathLike):
        def __fspath__(self):
            if trained.exists():
                signal.raise_signal(signal.SIGINT)
            return str(tmp_path / "study.json")

    source = f"{TRAINING}\nopen({str(trained)!r}, 'w').close()\n"
    with pytest.raises(wb.StudyInterrupted, match=r"before \(2\) are in `study`") as error:
        wb.scaling_study(cluster, source, (2,), save=Interrupting())
    assert [point.ranks for point in error.value.study.points] == [2]
    assert not (tmp_path / "study.json").exists()


def test_a_cell_without_iterations(cluster):
    """None is too few, and the cluster has its earlier size again."""
    with pytest.raises(wb.UsageError, match="recorded 0 iterations on 1 rank,"):
        wb.scaling_study(cluster, "x = 1", (1,))
    assert cluster.n == 2
    cluster.recording = False
    with pytest.raises(wb.UsageError, match="recording is off"):
        wb.scaling_study(cluster, TRAINING, (1,))
    cluster.recording = True
    with pytest.raises(wb.UsageError, match="no number of ranks given"):
        wb.scaling_study(cluster, TRAINING, ())
    with pytest.raises(wb.UsageError, match="ranks=0"):
        wb.scaling_study(cluster, TRAINING, (0, 1))
    with pytest.raises(wb.UsageError, match="nominal_gbps=0: not the rate of a link"):
        wb.scaling_study(cluster, TRAINING, (1,), nominal_gbps=0)
    with pytest.raises(wb.UsageError, match="save='/no/such/file': not a file in an existing"):
        wb.scaling_study(cluster, TRAINING, (1,), save="/no/such/file")


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_files_that_hold_no_study(tmp_path, content):
    """The error names the file."""
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(wb.UsageError, match=r"other\.json: not a scaling study"):
        ScalingStudy.load(path)
    with pytest.raises(wb.UsageError, match="not a scaling study"):
        ScalingStudy.load(tmp_path / "missing.json")


NOT_OF_A_STUDY = "its values for ranks = 1"


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("version", 3, "version 3, this release reads 2"),
        ("points", [], "numbers of ranks"),
        ("points", [{"ranks": 1}], "points: fields are missing or unknown"),
        ("label", 5, "label: 5 is not of type str"),
        ("hosts", "vm1", "hosts: 'vm1' is not of type list"),
        ("what", 1, "fields are missing or unknown: what"),
        ("iteration_us", "10", "iteration_us: '10' is not of type"),
        ("iteration_us", 1e999, "Infinity"),
        ("low_us", 0, NOT_OF_A_STUDY),
        ("low_us", 11.0, NOT_OF_A_STUDY),
        ("efficiency", 0, NOT_OF_A_STUDY),
        ("ranks", "1", "'1' is not of type int"),
        ("ranks", -1, "numbers of ranks"),
        ("nominal", [1.0], NOT_OF_A_STUDY),
        ("nominal", ["a", "b"], "nominal: 'a' is not of type"),
        ("nominal", 0.5, "nominal: 0.5 is not of type list"),
        ("exposed_us", {}, "exposed_us: {} is not of type"),
        ("exposed_us", -5.0, NOT_OF_A_STUDY),
        ("iterations", -1, NOT_OF_A_STUDY),
        ("iterations", 0, NOT_OF_A_STUDY),
        ("gradient_bytes", -3, NOT_OF_A_STUDY),
        ("tensors", -1, NOT_OF_A_STUDY),
        ("runs", 0, NOT_OF_A_STUDY),
    ],
)
def test_damaged_files(tmp_path, place, value, says):
    """Each says what is wrong."""
    path = tmp_path / "other.json"
    study = ScalingStudy("a", (ScalingPoint(1, 6, 10.0, 9.0, 11.0, None, 1.0),))
    plain = {"version": 2} | dataclasses.asdict(study)
    (plain["points"][0] if place in plain["points"][0] else plain)[place] = value
    path.write_text(json.dumps(plain))
    with pytest.raises(wb.UsageError, match=rf"other\.json: not .*{re.escape(says)}"):
        ScalingStudy.load(path)


def test_a_point_without_times_of_communication(tmp_path):
    """What is not known is null in the file, and None afterwards."""
    point = ScalingPoint(1, 5, 10.0, 9.0, 11.0, None, 1.0)
    study = ScalingStudy("a", (point,))
    study.save(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["points"][0]["exposed_us"] is None
    assert ScalingStudy.load(tmp_path / "a.json") == study


@pytest.mark.parametrize("path", [None, "\0", "missing/study.json", "/dev/full", "~nobody-x/a"])
def test_a_study_that_cannot_be_written(path):
    """It is one error, which names the file."""
    with pytest.raises(wb.UsageError, match="cannot be written"):
        ScalingStudy("a", ()).save(path)
