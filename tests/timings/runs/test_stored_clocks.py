"""The clock offsets of a run on disk: those of the live timings, corrected by later pings."""

import numpy as np
import pytest
from recorded_training import MS, same
from timers import eventually

import workbench as wb

AHEAD_NS = 5_000 * MS
"""By how much rank 1's clock is ahead of the kernel's."""
DRIFT = 40e-6
"""By how much rank 1's clock is faster."""


def ping(timings, kernel_ns, delay_ns):
    """Both ranks answer a ping; rank 1's clock is ahead and drifts."""
    for rank, ahead in ((0, 0), (1, AHEAD_NS + round(DRIFT * kernel_ns))):
        answered = kernel_ns + ahead + MS // 10
        timings.clocks.current.add(rank, kernel_ns, answered, kernel_ns + delay_ns)


@pytest.fixture
def one(training):
    """A cell of 20 iterations between a slow ping and exact ones."""
    one = training()
    ping(one.timings, -100 * MS, 30 * MS)
    one.train(20)
    for late_ns in range(1, 5):
        ping(one.timings, late_ns * 1_000 * MS, MS // 5)
    return one


def test_a_stored_run_has_the_offsets_that_the_live_timings_ended_with(one):
    """Pings after a cell correct its offsets, in memory and on disk."""
    first = wb.open_run(one.timings.path).rows()
    one.close()
    live, stored = one.timings.rows(), wb.open_run(one.timings.path).rows()
    assert not np.array_equal(first["offset_ns"], live["offset_ns"])
    assert np.isfinite(live["uncertainty_ns"]).all()
    assert np.array_equal(stored, live)
    same(wb.open_run(one.timings.path), one.timings)


def test_offsets_are_corrected_while_the_run_is_written(one, monkeypatch):
    """A reader in another process sees the corrections before the run ends."""
    monkeypatch.setattr("workbench.timings.writer._OFFSETS_EVERY_S", 0.1)
    run = wb.open_run(one.timings.path)
    assert eventually(lambda: np.array_equal(run.rows(), one.timings.rows()))
    assert run.state == "running"


def test_the_next_kernel_keeps_the_offsets_of_earlier_cells(one, training):
    """Its pings measure the clocks during its own cells only."""
    one.close()
    second = training(state=one.timings.to_state())
    assert np.array_equal(second.timings.rows(), one.timings.rows())
    second.cell = 1
    second.train(2, layout=None)
    second.close()
    assert np.array_equal(wb.open_run(one.timings.path).rows(), second.timings.rows())


def test_a_run_without_pings_has_no_corrections(ended):
    assert not list(ended.path.glob("offsets-*"))
