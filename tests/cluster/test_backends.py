"""The choice of a backend."""

import http.client
import socket
import struct
import time

import pytest
from IPython.core.interactiveshell import InteractiveShell

import workbench as wb
from workbench.cluster import backends
from workbench.cluster.backends import RING_NOT_FORMED, KernelBackend
from workbench.cluster.backends.horovod import Rendezvous, assign
from workbench.cluster.options import Options
from workbench.errors import UsageError
from workbench.magics import WorkbenchMagics
from workbench.rank import backends as rank_backends
from workbench.rank.backends.backend import Backend as RankBackend
from workbench.rank.backends.backend import RingNotFormed


@pytest.mark.parametrize("name", ["DDP", "Horovod", "", None, 3])
def test_an_unknown_backend(name):
    """The error lists the known ones; nothing was started."""
    with pytest.raises(UsageError) as caught:
        wb.Cluster(backend=name)
    assert str(caught.value) == f"backend={name!r}: not a backend. Write 'horovod' or 'ddp'."


@pytest.mark.parametrize("name", rank_backends.BACKENDS)
def test_every_backend_has_a_class(name):
    """The table's entry leads to a complete class, and the cluster's options keep its name."""
    found = backends.backend_class(name)
    assert issubclass(found, KernelBackend)
    assert not found.__abstractmethods__
    cluster = wb.Cluster(backend=name)
    assert cluster.options.backend == name
    assert Options.from_plain(cluster.options.to_plain()) == cluster.options


@pytest.mark.parametrize("name", rank_backends.BACKENDS)
def test_every_backend_has_a_class_for_ranks(name):
    """It names its library's version, which the kernel compares between VMs."""
    found = rank_backends.backend_class(name)
    assert issubclass(found, RankBackend)
    assert not found.__abstractmethods__
    assert all(isinstance(version, str) for version in found.versions().values())


def test_both_sides_agree():
    """The kernel knows by its name the error after which a ring is tried again."""
    assert RingNotFormed.__name__ == RING_NOT_FORMED


def test_options_of_an_earlier_version():
    """A kept cluster whose state names no backend has the usual one."""
    plain = wb.Cluster().options.to_plain()
    del plain["backend"]
    assert Options.from_plain(plain) == wb.Cluster().options


def test_the_magic_takes_a_backend():
    """It is given to the cluster; a known one is accepted, and the next mistake is named."""
    magics = WorkbenchMagics(InteractiveShell())
    with pytest.raises(UsageError, match="backend='gloo': not a backend"):
        magics.cluster("start --backend gloo")
    with pytest.raises(UsageError, match="n=0: must be"):
        magics.cluster("start --backend horovod -n 0")


@pytest.mark.parametrize("answer_bytes", [1, 4 << 20])
def test_a_rank_that_goes_before_its_answer_is_no_error_of_the_server(capfd, answer_bytes):
    """Nothing is printed in the notebook when a rank that was freed closes its connection."""
    server = Rendezvous(assign(["here"]))
    server.start()
    try:
        client = http.client.HTTPConnection("127.0.0.1", server.port)
        client.request("PUT", "/global/0", bytes(answer_bytes))
        assert client.getresponse().read() == b""
        client.request("GET", "/global/0")
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        time.sleep(0.5)
    finally:
        server.close()
    assert capfd.readouterr().err == ""
