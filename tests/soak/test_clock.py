"""The wall clock of this machine is set: by NTP, or after its VM was suspended."""

import time

import pytest
from clusters import quiet
from timers import FAR_S

import workbench as wb

from . import clock


@pytest.mark.slow
@pytest.mark.skipif(clock.why_not() is not None, reason=str(clock.why_not()))
def test_a_rank_is_replaced_after_the_clock_was_set_back(tmp_path, monkeypatch):
    """The timers of the controller, without which no rank can join, do not depend on the clock."""
    for name, value in clock.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    with wb.Cluster(n=2, start_timeout_s=FAR_S) as cluster:
        quiet(cluster, "kept = rank")
        clock.step(3600)
        time.sleep(1)  # some periods of the controller's timers
        clock.step(0)
        cluster.restart([1])
        assert quiet(cluster, "globals().get('kept')").values == {0: 0, 1: None}
