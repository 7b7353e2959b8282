"""The sockets of a ring, and where its store listens."""

import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest
from namespaces import skip_unless_it_runs
from timers import FAR_S

from workbench.rank.backends.ring_sockets import RingSockets


def connected(stack):
    """Return both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = stack.enter_context(socket.create_connection(listener.getsockname()))
        return one, stack.enter_context(listener.accept()[0])


@pytest.fixture
def stack():
    with ExitStack() as found:
        yield found


@pytest.mark.parametrize("listeners", [True, False])
def test_a_datagram_socket_is_no_connection(stack, listeners):
    """It is neither checked nor shut down."""
    with RingSockets(listeners=listeners) as ring:
        datagrams = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", 0))
        datagrams.connect(datagrams.getsockname())
    assert ring.are_connected()
    ring.shut_down()
    datagrams.send(b"x")
    assert datagrams.recv(1) == b"x"


def test_sockets_of_other_threads_are_not_checked(stack):
    """Only connections with another rank or the store."""
    with RingSockets(listeners=False) as ring:
        (ours, peer), (logger, _) = connected(stack), connected(stack)
        stack.enter_context(socket.create_server(("127.0.0.1", 0))).close()
        assert {ours.getsockname(), logger.getsockname()} < set(ring.ends())
        ring.peers = {peer.getsockname()}
    assert ring.are_connected()
    logger.close()
    assert ring.are_connected()
    ours.close()
    assert not ring.are_connected()


def test_a_connection_whose_peer_has_ended(stack):
    """It is closed, even though nobody has read from it."""
    with RingSockets() as ring:
        ours, peer = connected(stack)
        ring.peers = {peer.getsockname()}
    assert ring.are_connected()
    peer.close()
    ours.recv(1)
    assert not ring.are_connected()


SERVE = """
from workbench.rank.backends.process_groups import serve
store, address, port = serve("nic")
store.set("key", "value")
print(address)
"""


def test_the_store_on_an_interface_without_ipv4():
    """It listens at the global address, not at the link-local one."""
    apart = ["unshare", "--map-root-user", "--net"]
    skip_unless_it_runs(apart, "a network namespace")
    script = (
        "ip link set lo up; ip link add nic type veth peer name other;"
        "ip link set other up; ip link set nic up;"
        "ip addr add fd00::17/64 dev nic nodad; ip addr show nic >&2;"
        'exec "$@"'
    )
    done = subprocess.run(
        [*apart, "sh", "-ec", script, "sh", sys.executable, "-c", SERVE],
        capture_output=True,
        text=True,
        timeout=FAR_S,
        check=False,
    )
    assert "fe80:" in done.stderr
    assert done.stdout == "fd00::17\n", done.stderr
