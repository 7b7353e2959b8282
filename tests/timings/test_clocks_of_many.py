"""The clocks of many ranks are read at once, with the result of one after the other."""

import numpy as np
import pytest

from workbench.timings.cell_clocks import CellClocks

S = 10**9


def some_clocks(random, ranks):
    """Clocks of one or two rings: some ranks never answer, some clocks step."""
    clocks = CellClocks()
    rings = {}
    for cell in range(1, 1 + int(random.integers(1, 3))):
        clocks.begin_ring()
        clocks.begin_cell(cell)
        rings[cell] = clocks.current
        for rank in range(ranks):
            if random.random() < 0.15:
                continue
            offset, drift = int(random.integers(-(10**12), 10**12)), random.uniform(-2e-5, 2e-5)
            for burst in range(int(random.integers(1, 7))):
                offset += S * int(random.random() < 0.05)
                for ping in range(3):
                    answered = 10**15 + burst * 15 * S + ping * 10**6
                    there, back = random.integers(10**4, 10**6, 2).tolist()
                    sent = answered + offset + round(drift * (answered - 10**15)) - there
                    clocks.current.add(rank, sent, answered, sent + there + back)
    return clocks, rings


@pytest.mark.parametrize("seed", range(40))
def test_all_ranks_at_once_are_as_each_rank(seed):
    """Times before, between and after pings, of known and unknown ranks and cells."""
    random = np.random.default_rng(seed)
    ranks = int(random.integers(1, 8))
    clocks, rings = some_clocks(random, ranks)
    cells, numbers = random.integers(1, 4, 200), random.integers(0, ranks + 1, 200)
    given = 10**15 + random.integers(-10 * S, 120 * S, 200)
    found, error = clocks.to_kernel(cells, numbers, given)
    for place in range(200):
        expected, doubt = given[place], np.inf
        if (ring := rings.get(int(cells[place]))) is not None:
            expected, doubt = ring.to_kernel(int(numbers[place]), given[place])
        assert (found[place], error[place]) == (expected, doubt)
