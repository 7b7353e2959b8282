"""Ranks that are late, how late, and for how long the others wait."""

import re

import numpy as np
import pytest
from clusters import QUEUED
from recorded import MS
from true_figures import causes, record

from workbench.timings.store import ROW, Store
from workbench.timings.stragglers import find
from workbench.timings.summary import summarize


def contended(longer, waited, count=40, seed=1):
    """Rows of two ranks: rank 1 loads `longer` ms more, for which rank 0 waits `waited` ms."""
    random = np.random.default_rng(seed)
    filled = Store()
    for index in range(count):
        late = waited * (1 + 0.2 * random.standard_normal())
        for rank in (0, 1):
            one = record(index, 4.0 + (late if rank == 0 else 0.0))
            more = round(MS * ((longer if rank else 0.0) + 0.2 * random.random()))
            one.data_ns += more
            one.duration_ns += more
            filled.add(rank, one)
    return filled.rows()


def test_a_late_rank_is_named_with_both_figures():
    """23 ms longer, exactly measured, for which the others wait 9 ms on cores that all share."""
    rows = contended(23, 9)
    (found,) = find(rows)
    assert (found["rank"], found["phase"]) == (1, "data")
    assert found["excess_us"] == pytest.approx(23_000, abs=500)
    assert found["late_us"] == pytest.approx(9_000, abs=1_500)
    evidence = causes(rows)["waiting for rank 1"].evidence
    assert re.search(r"its data takes 2\d\.\d\d ms longer, and the others wait", evidence)
    assert find(contended(23, 0.5)) == []  # nobody waits for it
    assert summarize(rows).slowest_rank == 1


def test_a_rank_that_is_late_for_no_reason_of_its_own_is_said_in_words():
    """Not "its unknown takes longer"."""
    filled = Store()
    for index in range(40):
        for rank in (0, 1):
            filled.add(rank, record(index, 4.0 + (45 if rank == 0 else 0)))
    evidence = causes(filled.rows())["waiting for rank 1"].evidence
    assert "unknown takes" not in evidence
    assert "45.00 ms later than the others" in evidence
    assert "none of its phases" in evidence


def out_of_step(behind_ms, exposed_ms, count=40):
    """Rows of two ranks on one clock: rank 0 submits later, and rank 1 waits for part of it."""
    filled = Store()
    for index in range(count):
        for rank in (0, 1):
            filled.add(rank, record(index, exposed=exposed_ms if rank else 0.1, other=60))
    rows = filled.rows()
    aligned = np.zeros(len(rows), ROW)
    for name in rows.dtype.names:
        aligned[name] = rows[name]
    aligned["start_ns"] = rows["iteration"].astype(np.int64) * 200 * MS
    aligned["last_ns"] = np.where(rows["rank"] == 0, behind_ms, 0) * MS + 14 * MS
    aligned["done_ns"] = (14 + behind_ms + 1) * MS
    aligned["uncertainty_ns"] = 1_000
    return aligned


def test_nobody_waits_for_a_rank_that_is_late_while_the_others_compute():
    """Rank 0 is 50 ms behind, and its gradients come while rank 1 sleeps before its step."""
    for name, cause in causes(out_of_step(50, exposed_ms=0.1)).items():
        assert not name.startswith("waiting"), cause
    waited = causes(out_of_step(50, exposed_ms=50))["waiting for rank 0"]
    assert waited.saving_us == pytest.approx(50_000, rel=0.1)


LOADING = """
class Items(Dataset):
    def __init__(self, count, pause): self.count, self.pause = count, pause
    def __len__(self): return self.count
    def __getitem__(self, place):
        if self.pause: time.sleep(self.pause)
        return inputs
def load_and_train(late, count=30):
    m = net(); optimizer = distributed(m)
    before = queued_us()
    for x in DataLoader(Items(count, 0.02 if rank == late else 0), batch_size=None):
        optimizer.zero_grad(); m(x).sum().backward(); optimizer.step()
    return (queued_us() - before) / count
"""


@pytest.mark.soak
@pytest.mark.timing
def test_a_planted_straggler_is_found_and_nobody_without_one(trained):
    """A slow loader on one rank or on none, several times over."""
    for late in (0, None, 1, None, 0, None):
        queued, rows = trained(f"{QUEUED}{LOADING}load_and_train({late})")
        # a busy machine makes a rank late for a while, in any phase but the loader's sleep
        named = [one for one in find(rows) if one["how_often"] == "always"]
        if late is None:
            # but for one that had no core for most of that time
            assert [one for one in named if queued[one["rank"]] < one["excess_us"] / 2] == []
            assert "data" not in [one["phase"] for one in find(rows)]
        else:
            assert [(one["rank"], one["phase"]) for one in named] == [(late, "data")]
            assert named[0]["excess_us"] == pytest.approx(20_000, rel=0.15)
