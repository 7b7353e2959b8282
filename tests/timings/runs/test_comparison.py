"""Two runs side by side."""

import numpy as np
import pytest
from recorded_training import MS

import workbench as wb
from workbench.errors import UsageError
from workbench.wire import Flag


def test_two_runs_are_compared_figure_by_figure(training):
    """Each figure of both, their difference and its uncertainty; clear where it is larger."""
    first, second = training("first"), training("second")
    first.train(20)
    second.train(20, exposed=6)
    a, b = wb.open_run(first.timings.path), second.timings
    found = a.compare(b)
    assert found.names == (a.name, b.path.name)
    assert (found.iterations, found.ranks) == ((20, 20), (2, 2))
    frame = found.to_frame().set_index("figure")
    assert frame.loc["exposed_us", ["a", "b", "difference"]].tolist() == [4000, 6000, 2000]
    assert frame.loc["exposed_us", "clear"]
    assert frame.loc["forward_us", "difference"] == 0
    assert not frame.loc["forward_us", "clear"]


def test_the_uncertainty_of_a_difference_covers_noise(training):
    """Of runs that differ by noise alone, nearly all differences are within their uncertainty."""
    from workbench.timings.compare import compare
    from workbench.timings.store import ROW

    noise = np.random.default_rng(1)

    def rows():
        found = np.zeros(200, dtype=ROW)
        found["iteration"] = np.arange(200)
        found["iteration_ns"] = noise.normal(20 * MS, MS, 200)
        found["world_size"] = 1
        return found

    clear = [
        next(d for d in compare(rows(), rows(), ("a", "b")).differences).clear for _ in range(200)
    ]
    assert 1 <= sum(clear) <= 25  # 5 % of 200 are expected


def test_a_comparison_needs_two_runs(training):
    """A run without an iteration is named."""
    one, other = training("one"), training("other")
    one.train(2)
    with pytest.raises(UsageError, match=r"other.*has no iteration"):
        one.timings.compare(other.timings)


def test_the_first_iteration_of_a_cell_is_not_compared(training):
    """It allocates and warms up, as in the summary."""
    one, other = training("one"), training("other")
    one.train(3)
    other.train(1, exposed=100, flags=Flag.FIRST_OF_CELL)
    other.train(3)
    assert one.timings.compare(other.timings).iterations == (3, 3)
