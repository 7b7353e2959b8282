"""Faults in the forming of a ring itself, which happen only once."""

import pytest
from combinations import BACKENDS
from timers import eventually

from workbench.errors import RanksFailed

from .box import MEET, bounded, ours, quiet


def each_backend(usual):
    """Run a test on each backend: on the usual one in `make test`, on the others in `make soak`."""
    cases = [
        pytest.param(backend, id=name, marks=[] if name == usual else [pytest.mark.soak])
        for name, backend in BACKENDS.items()
    ]
    return pytest.mark.parametrize("backend", cases)


@pytest.fixture
def ring(box, backend):
    """The clusters of these tests, with a backend."""
    box.use(backend)
    return box


@each_backend("ddp")
def test_a_start_is_tried_again(ring):
    """The cluster comes up, although rank 1 could not join the first ring."""
    ring.close()
    path = ring.put("init_ring", ring.backend.init_fails)
    with bounded(), ring.new(n=2) as cluster:
        assert not path.exists()
        assert quiet(cluster, "rank").values == {0: 0, 1: 1}
    assert eventually(lambda: not ours())


@pytest.mark.soak
@each_backend("horovod")
def test_a_replaced_rank_is_tried_again(ring):
    """Its peers, which waited for it, try again as well, and keep their variables."""
    cluster = ring.cluster  # up before: its start is no part of what is measured
    path = ring.put("init_ring", ring.backend.init_fails)
    with bounded():
        cluster.restart([1])
    assert not path.exists()
    quiet(cluster, "kept = 10", ranks=[1])
    ring.lives()


@pytest.mark.soak
def test_a_rank_is_lost_while_the_ring_is_rebuilt(box):
    """The message says how to replace it, as where it is lost in a cell."""
    cluster = box.cluster
    path = box.put("init_ring", "os.kill(os.getpid(), 9)")
    with pytest.raises(RanksFailed):
        quiet(cluster, f"if rank == 0: 1 / 0\n{MEET}")
    assert eventually(lambda: cluster.state == "failed")
    assert not path.exists()
    assert "Replace what is lost with %cluster restart --ranks 1" in cluster.message
    box.lives((1,))
