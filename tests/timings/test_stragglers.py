"""Which rank is late, in which phase and for how long, from rows of iterations."""

import math

import numpy as np
import pytest
from iterations import MS, both, record, store

from workbench.timings.derive import columns
from workbench.timings.store import ROW
from workbench.timings.stragglers import find
from workbench.timings.summary import summarize


def test_only_a_rank_that_is_late_throughout_is_named():
    """A rank late in most iterations is named with the wait; one late by noise is not."""
    assert summarize(store(*both(range(20), late=20)).rows()).slowest_rank == 1
    assert summarize(store(*both(range(20), late=20)).rows()).slowest_excess_us == 20_000
    assert summarize(store(*both(range(20))).rows()).slowest_rank is None
    now_and_then = [*both(range(0, 20, 2), late=20), *both(range(1, 20, 2))]
    assert summarize(store(*now_and_then).rows()).slowest_rank is None


def test_stragglers_are_named_by_span():
    """Each span has its rank, phase and excess; one stray iteration does not end it."""
    rows = [*both(range(10)), *both(range(10, 20), late=20)]
    rows += [(0, record(20, data=31)), (1, record(20, communication=40, exposed=34))]
    rows += [*both(range(21, 30), late=20), *both(range(30, 40))]
    (found,) = find(store(*rows).rows())
    assert math.isnan(found.pop("uncertainty_us"))  # no clock was asked
    assert found == {
        "rank": 1, "phase": "data", "excess_us": 20_000,
        "first_iteration": 10, "last_iteration": 29,
        "kind": "slow data", "how_often": "from 10 to 29", "late_us": 20_000, "vm": "",
    }  # fmt: skip


def test_a_straggler_from_first_to_last_is_always_one():
    """What is true for the complete run is reported so, in the phase in which the rank differs."""
    (found,) = find(store(*both(range(20), late=20)).rows())
    assert (found["how_often"], found["kind"]) == ("always", "slow data")


def test_one_late_iteration_is_named_as_one():
    """A pause of one iteration is reported once, and noise of the same size around it is not."""
    rows = [*both(range(30)), *both([30], late=500), *both(range(31, 60))]
    (found,) = find(store(*rows).rows())
    assert (found["rank"], found["first_iteration"], found["last_iteration"]) == (1, 30, 30)
    assert (found["how_often"], found["excess_us"]) == ("one iteration", 500_000)
    restless = [row for i in range(60) for row in both([i], late=400 if i % 7 == 3 else 0)]
    assert find(store(*restless).rows()) == []


@pytest.mark.slow
def test_noise_names_nobody():
    """Ranks whose phases vary by a third, and independently, are not named."""
    random = np.random.default_rng(1)
    rows = []
    for index in range(2_000):
        late = random.gamma(1.0, 3.0, 2)
        for rank in (0, 1):
            waited = max(0.0, late[1 - rank] - late[rank])
            rows.append((rank, record(index, data=1 + late[rank], exposed=4 + waited,
                                      communication=10 + waited)))  # fmt: skip
    assert find(store(*rows).rows()) == []
    assert summarize(store(*rows).rows(), 100).slowest_rank is None


def test_a_loader_that_is_slow_by_fits_is_named():
    """A rank whose loading takes long, but never equally long, is named over a long span."""
    random = np.random.default_rng(2)
    rows = [row for i in range(200) for row in both([i], late=random.gamma(4.0, 5.0))]
    (found,) = find(store(*rows).rows())
    assert (found["rank"], found["phase"], found["how_often"]) == (1, "data", "always")


def test_work_during_communication_costs_nobody():
    """A rank that is longer in a phase while the others do not wait for it is not named."""
    rows = [(rank, record(i, data=1 + 20 * rank)) for i in range(20) for rank in (0, 1)]
    assert find(store(*rows).rows()) == []


def test_nobody_waits_longer_than_training_waits():
    """A rank that sees the end late, because it was busy, has not waited for that long."""
    rows = [(0, record(0, communication=40, exposed=3)), (1, record(0))]
    assert columns(store(*rows).rows())["wait_us"].tolist() == [3_000, 0]


def test_a_link_that_becomes_slow_is_no_rank():
    """Collectives that take longer on all ranks alike: a link, reported where it was slow."""
    rows = [*both(range(40)), *both(range(40, 70), communication=60, exposed=54)]
    (found,) = find(store(*rows).rows())
    assert (found["kind"], found["rank"], found["phase"]) == ("slow link", -1, "communication")
    assert (found["first_iteration"], found["last_iteration"]) == (40, 69)
    assert found["excess_us"] == 50_000


def test_a_rank_that_computes_before_it_polls_is_no_link():
    """What a rank sees late, for it was busy when the others were done, took no longer."""
    rows = []
    for index in range(80):
        busy = 30 if index < 40 else 0
        rows.append((0, record(index, communication=2 + busy, exposed=2 + busy)))
        rows.append((1, record(index, communication=2 + busy, exposed=2, other=busy)))
    told = store(*rows).rows()
    clocked = np.zeros(len(told), dtype=ROW)
    for name in told.dtype.names:
        clocked[name] = told[name]
    # rank 1 comes after its last pause: the gradients are reduced 2 ms later, and rank 0 sees it
    clocked["start_ns"] += np.where(told["rank"] == 1, told["other_ns"], 0)
    clocked["last_ns"] = 14 * MS
    clocked["done_ns"] = clocked["last_ns"] + told["communication_ns"]
    clocked["uncertainty_ns"] = 0.1 * MS
    assert {one["kind"] for one in find(clocked)} == {"slow compute"}
