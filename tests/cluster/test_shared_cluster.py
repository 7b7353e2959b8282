"""The cluster that the tests of a file share: one that a test breaks is not the next one's."""

import os
import signal

import pytest
from clusters import quiet
from timers import FAR_S, eventually


@pytest.mark.parametrize("turn", [1, 2])
def test_a_broken_cluster_is_replaced(cluster, turn):
    """Each turn finds two ranks that compute together, and loses one."""
    source = "import torch\nfloat(hvd.allreduce(torch.ones(1), op=hvd.Sum))"
    assert quiet(cluster, source, timeout=FAR_S).values == {0: 2.0, 1: 2.0}
    os.kill(cluster.ranks[1].pid, signal.SIGKILL)
    assert eventually(lambda: cluster.ranks[1].state == "dead")
