"""Causes of time that training loses, from rows of iterations."""

from types import SimpleNamespace

import numpy as np
import pytest
from iterations import both, record, store

from workbench.advisor import explain
from workbench.errors import UsageError
from workbench.fabric import fit
from workbench.widgets.views import Causes


def cluster_of(rows, fabric=None):
    """All that `explain` asks of a cluster."""
    filled = store(*rows)
    return SimpleNamespace(timings=SimpleNamespace(rows=filled.rows), fabric=fabric)


def test_causes_are_ranked_by_saving():
    """A late rank, exposed communication and data loading, the dearest first."""
    causes = explain(cluster_of(both(range(20), late=20)))
    assert [cause.name for cause in causes] == sorted(
        (cause.name for cause in causes),
        key=lambda name: -{c.name: c.saving_us for c in causes}[name],
    )
    assert causes[0].name == "waiting for rank 1"
    assert causes[0].saving_us == 20_000
    assert "slow data, throughout: its data takes 20.00 ms longer" in causes[0].evidence


def test_waiting_for_a_late_rank_is_not_counted_as_communication_too():
    """What the others wait for a rank is that rank's to save; communication has the rest."""
    causes = {cause.name: cause for cause in explain(cluster_of(both(range(20), late=20)))}
    prompt = {cause.name: cause for cause in explain(cluster_of(both(range(20))))}
    alone = prompt["exposed communication"].saving_us
    assert causes["waiting for rank 1"].saving_us == 20_000
    assert causes["exposed communication"].saving_us == pytest.approx(alone, abs=1)
    assert (
        "10.00 ms of it is waiting for the late ranks" in causes["exposed communication"].evidence
    )
    assert "waiting" not in prompt["exposed communication"].evidence


def test_waiting_after_a_late_optimizer_is_not_counted_as_communication_too():
    """An optimizer, or a checkpoint after it, delays the next iteration: the others wait there."""
    rows = list(both(range(40)))
    rows[40] = (0, record(20, other=300))
    rows[43] = (1, record(21, communication=310, exposed=304))
    causes = {cause.name: cause for cause in explain(cluster_of(rows))}
    assert causes["waiting for rank 0"].saving_us == pytest.approx(300_000 / 40)
    communication = causes["exposed communication"]
    assert communication.saving_us == pytest.approx(4_000)
    assert "3.75 ms of it is waiting for the late ranks" in communication.evidence


def in_turn(late_ms):
    """Rows of two ranks; in each iteration one rank is late, by what is given for both."""
    for index, late in enumerate(late_ms):
        for rank, own in enumerate(late):
            waited = max(late) - own
            yield (
                rank,
                record(index, data=1 + own, communication=10 + waited, exposed=4 + waited),
            )


def test_ranks_that_are_late_in_turn_are_a_cause():
    """Batches of different lengths: no rank is always late, and fewer bytes would save nothing."""
    noise = np.random.default_rng(1)
    cluster = cluster_of(in_turn(noise.permutation([0, 30]) for _ in range(60)))
    causes = {cause.name: cause for cause in explain(cluster)}
    assert set(causes) == {"uneven iterations", "data loading", "exposed communication"}
    uneven = causes["uneven iterations"]
    assert uneven.saving_us == pytest.approx(15_000)
    assert "wait 15.00 ms per iteration for the last one, which is not always" in uneven.evidence
    communication = causes["exposed communication"]
    assert communication.saving_us == pytest.approx(4_000)
    assert "15.00 ms of it is due to uneven iterations" in communication.evidence


def test_a_rank_that_is_late_now_and_then_is_named():
    """A checkpoint of one rank in every tenth iteration is no span, and the others wait for it."""
    late = [(300 if index % 10 == 9 else 0, 0) for index in range(80)]
    causes = {cause.name: cause for cause in explain(cluster_of(in_turn(late)))}
    uneven = causes["uneven iterations"]
    assert "(100% of such waiting), which is late by varying times" in uneven.evidence
    waits = f"the others wait {uneven.saving_us / 1e3:.2f} ms per iteration for rank 0 "
    assert uneven.evidence.startswith(waits)
    assert "np." not in repr(uneven)
    assert uneven.saving_us == pytest.approx(30_000)
    assert causes["exposed communication"].saving_us == pytest.approx(4_000)


def test_ranks_that_wait_little_for_each_other_are_even():
    """What noise alone makes ranks wait is no cause."""
    noise = np.random.default_rng(2)
    for cluster in (
        cluster_of(in_turn(noise.uniform(0, 4, (200, 2)))),
        cluster_of(in_turn([(0, 30), (30, 0)])),  # too few iterations to say how they vary
    ):
        assert "uneven iterations" not in {cause.name for cause in explain(cluster)}


def test_one_rank_has_no_communication_to_explain():
    """What Horovod takes for one rank's gradients is nothing that fewer bytes would save."""
    alone = [(0, record(index, world=1)) for index in range(20)]
    assert "exposed communication" not in {cause.name for cause in explain(cluster_of(alone))}


def test_the_latest_iterations_can_be_explained_alone():
    """A rank that was late only before is a cause of all iterations, and none of the latest."""
    cluster = cluster_of([*both(range(20), late=20), *both(range(20, 60))])
    assert "waiting for rank 1" in {cause.name for cause in explain(cluster)}
    assert "waiting for rank 1" not in {cause.name for cause in explain(cluster, latest=30)}


def test_a_known_fabric_shows_what_compression_saves():
    """With a fitted line, halving the bytes saves half of what they take."""
    fabric = fit([1_000, 1_000_000], [1_000, 5_000], 2)
    causes = {cause.name: cause for cause in explain(cluster_of(both(range(20)), fabric))}
    expected = fabric.us_per_byte * 500_000
    assert causes["bytes on the wire"].saving_us == pytest.approx(expected)
    assert not causes["bytes on the wire"].bound


def test_a_training_without_a_cause_is_said_in_text_too():
    """In a terminal there is the same sentence as in a notebook, not an empty line."""
    alone = [(0, record(index, world=1, data=0)) for index in range(20)]
    found = Causes(explain(cluster_of(alone)))
    assert repr(found) in found._repr_html_()
    assert repr(found).startswith("Nothing visible here slows down this training")


def test_nothing_recorded_cannot_be_explained():
    """Before a training ran there is a clear error."""
    with pytest.raises(UsageError, match="no iteration"):
        explain(cluster_of([]))
