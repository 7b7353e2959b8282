"""Samples of the VMs that a run keeps."""

import json

import pytest

import workbench as wb
from workbench.resources import Unknown
from workbench.resources.counters import Sampler
from workbench.timings.samples import PER_INTERVAL, PERIOD_S, SampleLog


@pytest.fixture
def sample():
    """A sample of this machine."""
    with_rates = Sampler()
    try:
        return with_rates.sample()
    finally:
        with_rates.close()


def test_samples_are_read_as_they_were_taken(training, sample):
    """A run returns each sample of each VM, with unknown values and their reasons."""
    one = training()
    one.train(2)
    one.timings.samples.add(100.0, {"vm1": sample, "vm2": Unknown("no answer")})
    one.timings.samples.add(102.0, {"vm1": sample, "vm2": sample})
    one.close()
    run = wb.open_run(one.timings.path)
    found = run.recorded_samples()
    assert [(each.time_s, each.vm) for each in found] == [
        (100.0, "vm1"), (100.0, "vm2"), (102.0, "vm1"), (102.0, "vm2"),
    ]  # fmt: skip
    assert found[0].sample == sample
    assert found[1].sample == Unknown("no answer")
    frame = run.samples()
    memory = frame[(frame.device == "memory") & (frame.figure == "used_bytes")]
    assert memory.value.tolist() == [sample.memory.used_bytes] * 3
    lost = frame[frame.figure == "sample"]
    assert lost.why.tolist() == ["no answer"]
    assert lost.value.isna().all()
    assert str(frame.time.iloc[0]) == "1970-01-01 00:01:40+00:00"
    assert not run.problems


def test_an_earlier_run_has_no_samples(ended):
    """A run without samples has an empty table, and no problem."""
    run = wb.open_run(ended.path)
    assert run.recorded_samples() == []
    assert len(run.samples()) == 0
    assert not run.problems


def test_a_cut_off_file_keeps_its_first_samples(training, sample):
    """What was written before the file was cut off is read, and the rest is reported."""
    one = training()
    one.train(2)
    for index in range(3):
        one.timings.samples.add(100.0 + 2 * index, {"vm1": sample})
        one.train(1)
    one.close()
    path = one.timings.path / "samples-0.arrows"
    path.write_bytes(path.read_bytes()[:-20])
    run = wb.open_run(one.timings.path)
    assert 1 <= len(run.recorded_samples()) < 3
    assert any("samples-0.arrows is cut short" in problem for problem in run.problems)


def test_the_interval_grows():
    """A long run stores fewer samples per hour, so that its file is bounded."""
    log = SampleLog()
    count, week_s = 0, 7 * 24 * 3600
    for tick in range(int(week_s / PERIOD_S)):
        log.add(tick * PERIOD_S, {"vm1": Unknown("nothing")})
        count += len(log.take())
    assert PER_INTERVAL * 6 < count < PER_INTERVAL * 7
    assert log.interval_s == PERIOD_S * 2**6
    assert log.dropped == 0


def test_samples_without_a_run_are_bounded():
    """If no iteration is ever recorded, the newest samples are kept and the others counted."""
    log = SampleLog()
    for tick in range(5000):
        log.add(tick * 1000.0, {"vm1": Unknown(str(tick))})
    taken = log.take()
    assert log.dropped == 5000 - len(taken) > 0
    assert json.loads(taken[-1][2]) == {"unknown": "4999"}
    log.put_back(taken)
    assert log.take() == taken


def test_a_hostile_sample_is_left_out(training, sample):
    """A sample that is no sample is reported, and the others are read."""
    one = training()
    one.train(2)
    one.timings.samples.add(100.0, {"vm1": sample})
    one.timings.samples._pending += [(102.0, "vm1", '{"time": "soon"}'), (-1.0, "vm1", "{}")]
    one.close()
    run = wb.open_run(one.timings.path)
    assert len(run.recorded_samples()) == 1
    assert any("some samples of its VMs cannot be read" in problem for problem in run.problems)
