"""Process sets that are added while the ring runs, and rings without them."""

import socket
import textwrap

import pytest
from clusters import quiet
from timers import FAR_S

import workbench as wb
from workbench.errors import RanksFailed

SUM = "float(hvd.allreduce(torch.ones(1), op=hvd.Sum, name='{0}', process_set={0}))"


@pytest.fixture(scope="module")
def dynamic():
    """Three ranks in a ring to which process sets can be added."""
    running = wb.Cluster(n=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        running.start()
    quiet(running, "import torch")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def usual():
    with wb.Cluster(n=2) as running:
        yield running


def rendezvous(cluster):
    """Return where the ring's ranks connect; None if nobody listens there."""
    source = "import os\n[os.environ[f'HOROVOD_GLOO_RENDEZVOUS_{end}'] for end in ('ADDR', 'PORT')]"
    host, port = quiet(cluster, source).values[0]
    address = host, int(port)
    try:
        socket.create_connection(address, 2).close()
    except OSError:
        return None
    return address


def test_sets_are_added_used_and_removed(dynamic):
    """Again and again, with and without a failure between."""
    quiet(dynamic, "pair = hvd.add_process_set([1, 2])")
    asked = f"{SUM.format('pair')} if rank else None"
    assert quiet(dynamic, asked).values == {0: None, 1: 2.0, 2: 2.0}
    assert quiet(dynamic, "hvd.remove_process_set(pair)").values == {0: True, 1: True, 2: True}
    quiet(dynamic, "other = hvd.add_process_set([0, 2])")
    with pytest.raises(RanksFailed, match="boom"):
        quiet(dynamic, "if rank == 0: raise ValueError('boom')\nhvd.barrier()", timeout=FAR_S)
    quiet(dynamic, "again = hvd.add_process_set([0, 1])")
    asked = f"{SUM.format('again')} if rank < 2 else None"
    assert quiet(dynamic, asked).values == {0: 2.0, 1: 2.0, 2: None}


def test_the_server_is_on_the_cluster_s_own_address_and_goes_with_it():
    """It listens for as long as the ring may need it, and no longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        with wb.Cluster(n=2) as cluster:
            first = rendezvous(cluster)
            assert first[0] == "127.0.0.1"
            cluster.resize(1)
            assert rendezvous(cluster) not in {None, first}
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(first, 2)
            last = rendezvous(cluster)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(last, 2)


def test_a_usual_ring_has_no_server_and_refuses_in_a_line(usual):
    """No process is ended, and the line says what to do; which then works."""
    assert rendezvous(usual) is None
    with pytest.raises(RanksFailed, match="HOROVOD_DYNAMIC_PROCESS_SETS is not set") as caught:
        quiet(usual, "hvd.add_process_set([0, 1])", timeout=FAR_S)
    (message,) = {error.message for error in caught.value.errors.values()}
    assert "\n" not in message
    assert quiet(usual, "rank").values == {0: 0, 1: 1}
    quiet(usual, "os.environ['HOROVOD_DYNAMIC_PROCESS_SETS'] = '1'\nhvd.shutdown()")
    quiet(usual, "import torch; alone = hvd.add_process_set([1])")
    assert quiet(usual, f"{SUM.format('alone')} if rank else None").values == {0: None, 1: 1.0}


def test_a_server_that_is_gone_is_said(dynamic):
    """Such as after the kernel that formed the ring has gone; Horovod would end the process."""
    source = """
    port = os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = "1"
    try:
        hvd.add_process_set([0, 1, 2])
    finally:
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = port
    """
    with pytest.raises(RanksFailed, match=r"127\.0\.0\.1:1 .* cannot be reached"):
        quiet(dynamic, "import os\n" + textwrap.dedent(source), timeout=FAR_S)
    assert quiet(dynamic, "rank").values == {0: 0, 1: 1, 2: 2}
