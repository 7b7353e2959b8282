"""Horovod's rendezvous server, which has no keys: it answers this user's processes alone."""

from __future__ import annotations

import http.client
import itertools
import socket
import struct

import psutil
import pytest

from workbench.cluster.backends.connection_owner import may_connect
from workbench.cluster.backends.horovod import Rendezvous, assign


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request):
    """Both ends of a connection on this machine."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        server = socket.create_server((request.param, 0), family=family)
    except OSError as error:
        pytest.skip(f"no {request.param} here: {error}")
    with server, socket.create_connection(server.getsockname()[:2]) as client:
        accepted, _ = server.accept()
        with accepted:
            yield client.getsockname()[:2], server.getsockname()[:2]


def test_a_connection_of_this_user(pair):
    client, server = pair
    assert may_connect(client, server)
    assert not may_connect((client[0], 1), server)  # there is no such connection
    assert may_connect(("192.0.2.1", client[1]), server)  # of another machine


def own_address(loopback):
    """An IPv4 address of this machine, not of the test VMs, which come and go."""
    if loopback:
        return "127.0.0.1"
    every = {name: one for name, one in psutil.net_if_addrs().items() if not name.startswith("wb")}
    found = (one.address for one in itertools.chain.from_iterable(every.values())
             if one.family == socket.AF_INET and not one.address.startswith("127."))  # fmt: skip
    return next(found, None) or pytest.skip("this machine has no address but loopback")


@pytest.mark.parametrize("linger", [None, 0])
@pytest.mark.parametrize("loopback", [True, False])
def test_a_connection_that_its_client_has_closed_is_refused(loopback, linger):
    """Nobody knows any more whose it was: its row is gone, or names root as the user."""
    with socket.create_server((own_address(loopback), 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, ends = server.accept()
        with accepted:
            client.sendall(b"PUT /global/0")
            if linger is not None:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, linger))
            client.close()
            assert not may_connect(ends, server.getsockname())


@pytest.fixture
def rendezvous():
    server = Rendezvous(assign(["vm0", "vm0"]))
    server.start()
    yield server
    server.close()


def ask(port, method, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, "/global/0", body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_second_user_gets_no_answer(rendezvous, second_user):
    """The addresses of the ranks that are in the server stay as this user has put them."""
    assert ask(rendezvous.port, "PUT", b"address of rank 0")[0] == 200
    found = second_user(ports=[("127.0.0.1", rendezvous.port)])["ports"]
    assert set(found.values()) == {"accepts, says nothing"}
    assert ask(rendezvous.port, "GET") == (200, b"address of rank 0")
