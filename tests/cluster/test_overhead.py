"""What recording costs is measured on the user's own cell, by pairs of runs."""

import re
import time

import numpy as np
import pytest
from clusters import SHARED_MODEL, quiet, training
from timers import InThread, eventually

from workbench.errors import CellInterrupted, CellTimeout, RanksFailed, UsageError
from workbench.timings.overhead import difference, quantile

CELL = "count = globals().get('count', 0) + 1\n" + training(15)
SENTENCE = (
    r"Recording adds (-?\d+\.\d) % \(95 % (-?\d+\.\d) to (-?\d+\.\d) %\) to an iteration of "
    r"\d+\.\d ms, 4 pairs\."
)


@pytest.fixture
def ready(cluster):
    """The cluster, on which recording is on before and after the test."""
    cluster.recording = True
    yield cluster
    eventually(lambda: cluster.state == "ready")
    cluster.recording = True


@pytest.mark.timing  # its iteration time is a difference, which is negative after a stall
def test_the_latest_cell(ready, capsys):
    """It runs twice per pair and once before; the result has an interval and the CPU times."""
    quiet(ready, "count = 0")
    quiet(ready, CELL)
    before = len(ready.timings)
    found = ready.measure_overhead(pairs=4)
    text = repr(found)
    mean, low, high = map(float, re.search(SENTENCE, text).groups())
    assert low <= mean <= high
    assert re.search(r"CPU time of a rank per iteration: \d+\.\d+ ms with recording, ", text)
    assert "divided by its 15 iterations" in text
    assert (found.pairs, found.iterations, found.hooked) == (4, 15, False)
    assert found.wall.low_us < found.wall.mean_us < found.wall.high_us
    assert 0 < found.iteration_us < 1e6
    assert all(0 < us < 1e6 for us in (*found.cpu_us, *found.main_thread_us))
    assert found.cpu.mean_us == pytest.approx(found.cpu_us[0] - found.cpu_us[1])
    assert quiet(ready, "count").values == {0: 10, 1: 10}
    # only the runs with recording, and the first one, have iterations
    assert len(ready.timings) - before == 2 * 15 * 5
    shown = capsys.readouterr().out
    assert "runs up to 9 times: its model continues to train, and its files" in shown
    assert "pair 4 of 4, about" in shown
    assert ready.recording
    assert ready.timings.unrecorded == ""


def test_a_given_cell_while_recording_is_off(ready):
    """The setting is not changed, and later cells are not recorded."""
    ready.recording = False
    found = ready.measure_overhead(training(4), pairs=3)
    assert (found.pairs, found.iterations) == (3, 4)
    assert not ready.recording
    start = len(ready.timings)
    quiet(ready, "train(3)")
    assert len(ready.timings) == start
    assert ready.measure_overhead(pairs=3).iterations == 3  # the number is found by its first run


def test_cells_without_iterations(ready):
    """They are refused: at once if that is known, otherwise after the first run."""
    quiet(ready, "count = 0")
    quiet(ready, "count += 1")
    with pytest.raises(UsageError, match=r"the cell has no iterations \(no optimizer.step\(\)"):
        ready.measure_overhead()
    assert quiet(ready, "count").values == {0: 1, 1: 1}
    with pytest.raises(UsageError, match="the cell has no iterations"):
        ready.measure_overhead("count += 1")
    assert quiet(ready, "count").values == {0: 2, 1: 2}


def test_a_cell_with_another_number_of_iterations_each_time(ready):
    """What differs between runs cannot be compared, and both numbers are named."""
    source = "n = globals().get('n', 3) + 1\n" + training("n")
    with pytest.raises(UsageError, match=r"one run of the cell had \d iterations, another \d\."):
        ready.measure_overhead(source, pairs=8)
    assert ready.recording


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pairs": 2}, "pairs=2: must be an integer of 3 or more"),
        ({"pairs": "many"}, "pairs='many': must be"),
        ({"timeout": "soon"}, "timeout='soon': not a duration"),
        ({"timeout": 6}, r"timeout=6: too short, since 3 pairs .* take about \d+ s\. Allow more"),
    ],
)
def test_arguments_that_do_not_fit(ready, given, says):
    """The message says what was given, and what to give."""
    quiet(ready, training(2) + "import time; time.sleep(1)")
    with pytest.raises(UsageError, match=says):
        ready.measure_overhead(**given)


@pytest.mark.soak
def test_the_time_limit_ends_with_fewer_pairs(ready):
    """At least three pairs are measured; no other begins that would end too late."""
    quiet(ready, training(2) + "import time; time.sleep(0.2)")
    found = ready.measure_overhead(pairs=10_000, timeout=10)
    assert 3 <= found.pairs <= 10 / (2 * 0.2)


def test_a_run_that_takes_longer_than_the_limit_is_interrupted(ready):
    """As by the time limit of a cell."""
    with pytest.raises(CellTimeout):
        ready.measure_overhead(training(2) + "import time; time.sleep(30)", timeout=6)
    assert ready.recording


def test_a_cell_that_fails(ready):
    """Its error is raised, and the setting is kept."""
    with pytest.raises(RanksFailed, match="ZeroDivisionError"):
        ready.measure_overhead(training(2) + "1 / 0")
    assert ready.recording
    assert ready.timings.unrecorded == ""


@pytest.mark.soak
@pytest.mark.parametrize("on", [True, False])
def test_an_interrupt_ends_it_promptly(ready, on):
    """Within seconds, in a run with or without recording, and with the setting as before."""
    ready.recording = on
    quiet(ready, training(2))
    errors = []

    def measure():
        try:
            ready.measure_overhead("train(2)\nimport time; time.sleep(0.5)", pairs=500)
        except CellInterrupted as error:
            errors.append(error)

    thread = InThread(measure)
    time.sleep(3.0 + on)
    while thread.is_alive() and not errors:
        try:
            ready.interrupt()
            break
        except UsageError:  # between two runs
            time.sleep(0.01)
    thread.join()
    assert len(errors) == 1
    assert ready.recording is on
    start = len(ready.timings)
    quiet(ready, "train(2)")
    assert len(ready.timings) - start == 4 * on


def test_models_of_ddp_keep_a_hook(ready):
    """The result says so for a model with a hook that was registered while recording was on."""
    wrap = "model = DistributedDataParallel(net())\n"
    hook = """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model.register_comm_hook(None, default_hooks.fp16_compress_hook)
"""
    train = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 32)).square().mean().backward()
    optimizer.step()
"""
    quiet(ready, SHARED_MODEL + wrap)
    assert not ready.measure_overhead(train, pairs=3).hooked
    quiet(ready, hook)
    found = ready.measure_overhead(train, pairs=3)
    assert found.hooked
    assert "keep a communication hook" in repr(found)


def test_runs_without_recording_wait_in_the_same_way(ready):
    """Horovod's own wait polls without a pause: the waiting rank would use a core for it."""
    waits = (
        SHARED_MODEL
        + """
model = net()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters())
for _ in range(3):
    optimizer.zero_grad()
    if rank == 1: time.sleep(0.1)
    model(torch.ones(4, 32)).square().mean().backward()
    optimizer.step()
"""
    )
    found = ready.measure_overhead(waits, pairs=3)
    recorded_us, unrecorded_us = found.main_thread_us
    assert unrecorded_us < 3 * recorded_us
    assert "Both wait for collectives with pauses" in repr(found)


def test_nothing_has_run():
    """A cluster that was not started has no cell to measure."""
    import workbench as wb

    with pytest.raises(UsageError, match=r"no cell has run\. Run a training with"):
        wb.Cluster(n=2).measure_overhead()


def test_the_interval_is_students():
    """Its quantiles are those of tables, and 95 % of intervals contain the true mean."""
    tabulated = {2: 4.303, 3: 3.182, 5: 2.571, 11: 2.201, 30: 2.042, 1000: 1.962}
    for freedom, value in tabulated.items():
        assert quantile(freedom) == pytest.approx(value, abs=0.002)
    random = np.random.default_rng(0)
    found = [difference(random.normal(3.0, 2.0, 6)) for _ in range(2000)]
    assert np.mean([one.low_us <= 3.0 <= one.high_us for one in found]) == pytest.approx(
        0.95, abs=0.015
    )
