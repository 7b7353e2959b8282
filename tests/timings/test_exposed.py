"""Exposed time is divided into waiting for the last rank, queueing and transfer."""

import numpy as np
import pytest
from iterations import MS, both, record, store

from workbench.advisor import explain
from workbench.timings.derive import columns
from workbench.timings.summary import summarize
from workbench.wire import Flag

PARTS = ["wait_us", "queued_us", "transfer_us"]
SEEN = Flag.TRANSFERS_SEEN


def test_transfers_while_a_rank_waits_for_another_are_waiting():
    """Rank 0 has stopped for 20 ms more than rank 1, and for transfers that rank 1 computes in."""
    rows = [
        (0, record(0, communication=30, exposed=24, flags=SEEN, transfer_ns=11 * MS)),
        (1, record(0, data=21, flags=SEEN, transfer_ns=3 * MS)),
    ]
    table = columns(store(*rows).rows())
    assert table["wait_us"].tolist() == [20_000, 0]
    assert table["transfer_us"].tolist() == [3_000, 3_000]
    assert table["queued_us"].tolist() == [1_000, 1_000]


def test_a_rank_that_computes_on_does_not_hide_the_transfer():
    """Rank 0 logs before its step while the transfer runs, for which rank 1 has stopped."""
    rows = [
        (0, record(0, communication=8, exposed=0, other=8, flags=SEEN)),
        (1, record(0, communication=8, exposed=8, flags=SEEN, transfer_ns=7 * MS)),
    ]
    table = columns(store(*rows).rows())
    assert table["wait_us"].tolist() == [0, 0]
    assert table["transfer_us"].tolist() == [0, 7_000]
    assert table["queued_us"].tolist() == [0, 1_000]


def test_parts_are_unknown_without_the_times_of_transfers():
    """Where a rank has not recorded them, or not reported, only the sum is known."""
    timed, other = (record(0, flags=flags) for flags in (SEEN, Flag.NONE))
    for rows in [(0, timed), (1, other)], [(0, timed)]:
        table = columns(store(*rows).rows())
        assert np.isnan(table["queued_us"]).all()
        assert np.isnan(table["transfer_us"]).all()
    found = summarize(store((0, timed), (1, other)).rows())
    assert found.exposed_us == 4_000
    assert found.waiting_us == 0
    assert np.isnan([found.queued_us, found.transfer_us]).all()
    found = summarize(store((0, timed)).rows())
    assert np.isnan([found.waiting_us, found.queued_us, found.transfer_us]).all()


def test_the_means_of_the_parts_add_up():
    """Iterations with unknown parts count as those in which they are known."""
    known = both(range(1, 5), late=20, flags=SEEN, transfer_ns=1 * MS)
    found = summarize(store(*known, (0, record(5, communication=40, exposed=30))).rows())
    parts = [found.waiting_us, found.queued_us, found.transfer_us]
    assert sum(parts) == pytest.approx(found.exposed_us)
    assert parts == pytest.approx([found.exposed_us * ms / 28 for ms in (20, 6, 2)])
    nothing = [(rank, record(0, exposed=0, flags=SEEN)) for rank in (0, 1)]
    assert summarize(store(*nothing).rows()).queued_us == 0


@pytest.mark.parametrize(
    ("transfer_ms", "slow"), [(860, True), (5, False)], ids=["slow-link", "long-queue"]
)
def test_few_bytes_over_a_slow_link(transfer_ms, slow):
    """0.26 MB in 860 ms are a slow link's, of which communicating less often only hides a part."""
    rows = both(
        range(10), communication=900, exposed=890, size=262_144, flags=SEEN,
        transfer_ns=transfer_ms * MS,
    )  # fmt: skip
    causes = {one.name: one for one in explain(store(*rows))}
    named = causes.get("exposed communication")
    assert (named is not None and "check the link" in named.change) == slow
    if slow:
        assert "not due to the few bytes" not in named.change
        assert "0.26 MB at 0.0023 Gbit/s bus bandwidth" in named.evidence


TRAIN = """
import time, torch
model = torch.nn.Linear(SIZE, 1024, bias=False)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters())
inputs = torch.randn(1, SIZE)
for _ in range(8):
    optimizer.zero_grad()
    loss = model(inputs).sum()
    time.sleep(0.06 * (rank == LATE))
    loss.backward()
    optimizer.step()
"""
CYCLE = "import os; os.environ['HOROVOD_CYCLE_TIME'] = '{}'; hvd.shutdown()"


@pytest.mark.timing
@pytest.mark.parametrize(
    ("size", "late", "cycle_ms", "most", "cause"),
    [
        (64, 1, 1, "wait_us", "waiting for rank 1"),
        (64, -1, 80, "queued_us", "queueing"),
        (16384, -1, 1, "transfer_us", "exposed communication"),
    ],
    ids=["a-late-rank", "long-cycles", "many-bytes"],
)
def test_planted_causes_are_told_apart(cluster, size, late, cycle_ms, most, cause):
    """A late rank, Horovod's own delay, and many bytes: each is the largest part."""
    cluster.run(CYCLE.format(cycle_ms))
    try:
        cluster.run(TRAIN.replace("SIZE", str(size)).replace("LATE", str(late)))
    finally:
        table, causes = cluster.timings.to_frame(), explain(cluster)
        cluster.run(CYCLE.format(1))
    table = table[table["iteration"] > table["iteration"].max() - 7]
    assert table[PARTS].sum(axis=1).to_numpy() == pytest.approx(table["exposed_us"].to_numpy())
    who = table[table["rank"] == 0]
    assert (who[most] / who["exposed_us"]).median() > 0.6
    assert causes[0].name == cause, causes
