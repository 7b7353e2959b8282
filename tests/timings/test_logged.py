"""`workbench.log`: values of iterations, from the ranks to tables and runs on disk."""

import math

import numpy as np
import pytest
import torch

import workbench as wb
from workbench.rank.recording.logged import LoggedQueue, Mark
from workbench.timings import logged as module
from workbench.timings.logged import MAX_NAMES, VALUE, LoggedStore, LoggedTable
from workbench.wire.logged_values import LoggedValues

TRAINS = """
import torch, workbench as wb
from torch import nn
model = nn.Linear(8, 8)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.0), named_parameters=model.named_parameters())
for number in range(20):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).square().mean()
    wb.log(early=number)
    loss.backward()
    wb.log(middle=number, loss=loss)
    optimizer.step()
    wb.log(late=number, rank=rank, samples=float("nan") if number == 7 else number)
"""


@pytest.mark.slow
def test_from_the_ranks_to_a_run(tmp_path):
    """Each value is in the row of its iteration, wherever in it the cell has logged it."""
    with wb.Cluster(n=2, runs=tmp_path) as cluster:
        cluster.run(TRAINS)
        cluster.run(TRAINS.replace("range(20)", "range(5)"))
        live = cluster.timings.to_frame()
        path = cluster.timings.path
        with pytest.raises(wb.RanksFailed, match="9 different names"):
            cluster.run("wb.log(**{f'n{one}': 1 for one in range(9)})")
        cluster.run("wb.log(**{f'm{one}': 1 for one in range(3)})")  # counted for each cell
    number = live["iteration"] % 20
    for name in ("early", "middle", "late"):
        assert (live[name] == number).all(), name
    assert (live["logged_rank"] == live["rank"]).all()  # the table has a column "rank"
    assert (live["loss"] > 0).all()
    assert set(live["iteration"][live["logged_samples"].isna()]) == {7}
    stored = wb.open_run(path)
    assert stored.problems == []
    columns = ["iteration", "rank", "early", "middle", "late", "loss", "logged_samples"]
    assert stored.to_frame()[columns].equals(live[columns])
    assert "loss" in stored.to_arrow().column_names


def test_outside_a_cluster():
    """A script that logs runs without a cluster too; bad values are refused there as well."""
    wb.log(loss=torch.tensor([0.5], requires_grad=True), steps=3)
    with pytest.raises(TypeError, match=r"log\(loss=...\): a tensor of shape \(2,\) is not one"):
        wb.log(loss=torch.ones(2))
    with pytest.raises(TypeError, match=r"log\(loss='0.5'\): not a number"):
        wb.log(loss="0.5")
    with pytest.raises(TypeError, match="not a number"):
        wb.log(loss=10**400)
    with pytest.raises(wb.UsageError, match="41 letters"):
        wb.log(**{"x" * 41: 1})


def test_values_that_arrive_before_their_records():
    """They are kept until their cell's first iteration has a number; a lost cell stops none."""
    first_of_cell = {3: 10}
    store = LoggedStore(lambda: first_of_cell)
    store.add(0, LoggedValues(3, (0, 1), ("loss", "loss"), (0.5, math.inf)))
    store.add(1, LoggedValues(5, (0,), ("loss",), (2.0,)))
    end, logged = store.read(0)
    assert (end, logged.values["iteration"].tolist()) == (2, [10, 11])
    first_of_cell[5] = 20
    end, logged = store.read(end)
    assert (end, logged.values.tolist()) == (3, [(20, 1, 0, 2.0)])
    store.add(0, LoggedValues(6, (0,), ("loss",), (1.0,)))  # whose records were lost
    store.add(0, LoggedValues(7, (0,), ("loss",), (4.0,)))
    first_of_cell[7] = 30
    end, logged = store.read(end)
    assert (end, logged.values["value"].tolist()) == (5, [4.0])
    recent = store.since(20)
    assert recent.values["iteration"].tolist() == [20, 30]


def one_value(cell, index, value, name="loss"):
    return LoggedValues(cell, (index,), (name,), (value,))


def test_more_values_than_memory_keeps(monkeypatch):
    """Of a long run that is attached to, the newest values are kept; new ones follow."""
    monkeypatch.setattr(module, "MAX_VALUES", 16)
    stored = np.zeros(20, VALUE)
    stored["iteration"] = stored["value"] = range(20)
    store = LoggedStore(lambda: {3: 20})
    store.restore(LoggedTable(("loss",), stored))
    assert store.total == 20
    store.add(0, one_value(3, 0, 99.0))
    end, new = store.read(20)
    assert (end, new.values.tolist()) == (21, [(20, 0, 0, 99.0)])
    _, kept = store.read(0)
    assert kept.values["value"].tolist() == [*range(12, 20), 99.0]


def test_values_in_parts():
    """Each part continues where the one before has ended, over values that have no iteration."""
    store = LoggedStore(lambda: {4: 0})
    for index in range(3):
        store.add(0, one_value(4, index, index))
    store.add(0, one_value(3, 0, 7.0))  # of a cell whose records were lost
    store.add(0, one_value(4, 3, 3.0))
    start, seen = 0, []
    while (part := store.read(start, 2))[0] > start:
        start = part[0]
        seen.append(part[1].values["value"].tolist())
    assert (start, seen) == (5, [[0.0, 1.0], [2.0], [3.0]])


def test_names_beyond_the_limit_are_known():
    """They are not kept, and the store knows which."""
    store = LoggedStore(dict)
    for number in range(MAX_NAMES + 2):
        store.add(0, one_value(1, 0, 1.0, f"n{number}"))
    assert store.refused == (f"n{MAX_NAMES}", f"n{MAX_NAMES + 1}")
    assert len(store.names) == store.total == MAX_NAMES


class Broken:
    """A value, or an event, that an error of CUDA has made unreadable."""

    def query(self):
        raise RuntimeError("CUDA error")

    def __float__(self):
        raise RuntimeError("CUDA error")


def test_a_value_that_cannot_be_read_stops_no_other():
    """It is NaN; the records that are sent with it are sent."""
    logged, mark = LoggedQueue(), Mark()
    logged.add(1, mark, {"loss": Broken(), "step": 2})
    logged.add(1, mark, {"step": 3})
    mark.index = 0
    (sent,) = logged.take()
    assert sent.names == ("loss", "step", "step")
    assert math.isnan(sent.values[0])
    assert sent.values[1:] == (2.0, 3.0)


def test_names_are_counted_for_each_cell():
    """Those of an earlier cell do not use up the limit."""
    logged = LoggedQueue()
    for cell in range(3):
        logged.clear()
        logged.add(cell, Mark(), {f"{cell}-{number}": 1 for number in range(8)})
    with pytest.raises(wb.UsageError, match="9 different names"):
        logged.add(2, Mark(), {"one more": 1})
