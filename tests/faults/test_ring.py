"""Faults in hvd.init() itself, which happen only once."""

from timers import eventually

import workbench as wb

from .box import bounded, ours, quiet

ONCE = """
import horovod.torch as hvd
real = hvd.init
def init(*args, **options):
    hvd.init = real
    raise ValueError("Horovod initialization failed: boom")
hvd.init = init
"""


def test_a_start_is_tried_again(box):
    """The cluster comes up, although rank 1 could not join the first ring."""
    box.close()
    path = box.put("init_ring", ONCE)
    with bounded(), wb.Cluster(n=2) as cluster:
        assert not path.exists()
        assert quiet(cluster, "rank").values == {0: 0, 1: 1}
    assert eventually(lambda: not ours())


def test_a_replaced_rank_is_tried_again(box):
    """Its peers, which waited for it, try again as well, and keep their variables."""
    cluster = box.cluster  # up before: its start is no part of what is measured
    path = box.put("init_ring", ONCE)
    with bounded():
        cluster.restart([1])
    assert not path.exists()
    quiet(cluster, "kept = 10", ranks=[1])
    box.lives()
