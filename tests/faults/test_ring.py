"""What goes wrong in hvd.init() itself, and only once."""

from timers import within

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
    path = box.put("meet", ONCE)
    with bounded(25), wb.Cluster(n=2) as cluster:
        assert not path.exists()
        assert quiet(cluster, "rank").values == {0: 0, 1: 1}
    assert within(5, lambda: not ours())


def test_a_replaced_rank_is_tried_again(box):
    """Its peers, which waited for it, try again as well, and keep their variables."""
    box.put("meet", ONCE)
    with bounded(20):
        box.cluster.restart([1])
    quiet(box.cluster, "kept = 10", ranks=[1])
    box.lives()
