"""Records of ranks as they arrive: the store, the channel, and what is missing."""

from array import array

import numpy as np
import pytest
from iterations import both, record, store
from timers import FAR_S

from workbench.timings import Timings
from workbench.timings.store import Store
from workbench.wire import Layout, Outbox
from workbench.wire.rank_messages import Records


def test_a_store_forgets_the_oldest_half_and_counts_it():
    """Memory is bounded; the newest rows are all there."""
    small = Store(max_rows=100)
    for index in range(250):
        small.add(0, record(index))
    assert len(small.rows()) <= 100
    assert small.total == 250
    assert small.deleted_rows == 250 - len(small.rows())
    assert small.rows()["iteration"][-1] == 249
    assert (np.diff(small.rows()["iteration"]) == 1).all()
    assert small.rows(start=240)["iteration"].tolist() == list(range(240, 250))


def test_iterations_of_a_second_cell_go_on():
    """A cell's numbers begin after the last of the cells before, whichever rank is first."""
    rows = [*both(range(3)), *((1, record(i, cell=2)) for i in range(2))]
    rows += [(0, record(i, cell=2)) for i in range(2)]
    assert store(*rows).rows()["iteration"].tolist() == [0, 0, 1, 1, 2, 2, 3, 4, 3, 4]


@pytest.fixture
def timings():
    door = Timings()
    door.listen()
    yield door
    door.close()


def test_records_come_in_over_the_channel(timings):
    """What a rank sends is in the table; collectives have their names and intervals."""
    outbox = Outbox(timings.address_for(0))
    layout = Layout(
        0, ("a", "b"), (400, 800), (1, 2), ("allreduce",) * 2, (0, 0), (2, 2),
        ("optimizer", "cell"), ("GLOO_ALLREDUCE",) * 2,
    )  # fmt: skip
    intervals = {
        "submitted": array("I", [10, 20]),
        "responded": array("I", [15, 25]),
        "began": array("I", [16, 26]),
        "ended": array("I", [28, 38]),
        "finished": array("I", [30, 40]),
    }
    timings.begin_cell(1)
    outbox.send(layout)
    for index in range(3):
        outbox.send(Records((record(index, **intervals).pack(),)))
    assert timings.end_cell(1, {0: 3}, timeout_s=FAR_S)
    assert timings.to_frame()["iteration"].tolist() == [0, 1, 2]
    found = timings.collectives()
    assert found[found["iteration"] == 0]["name"].tolist() == ["a", "b"]
    assert found["duration_us"].tolist() == [2.0, 2.0] * 3
    assert found["tensors"].tolist() == [1, 2] * 3
    assert found["by"].tolist() == ["optimizer", "cell"] * 3
    outbox.close()


def test_an_unreadable_record_is_counted(timings):
    """A record that is cut short is counted as dropped, and the next one arrives."""
    outbox = Outbox(timings.address_for(0))
    timings.begin_cell(1)
    outbox.send(Records((record(0).pack()[:50],)))
    outbox.send(Records((record(1).pack(),)))
    assert timings.end_cell(1, {0: 1}, timeout_s=FAR_S)
    assert timings.dropped == 1
    assert "cut short" in timings.errors[0]
    outbox.close()


def test_what_is_missing_at_a_cells_end_is_reported(timings):
    """Waiting for records that never come ends, and says that some are missing."""
    timings.begin_cell(1)
    assert not timings.end_cell(1, {0: 5}, timeout_s=0.05)
