"""Shuts down the TCP connections of a ring, to end operations that wait for a lost rank.

Gloo waits for a lost rank until its timeout, or five times as long while a ring is formed, and
Horovod's shutdown waits for Gloo. When the sockets are shut down, all of this ends immediately.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_CONNECTED = (0, 1, 10)
"""No TCP socket, ESTABLISHED, and LISTEN."""


class RingSockets:
    """The sockets of a ring; the ring is formed in the body of this context manager.

    Parameters
    ----------
    name
        Identifies the ring.
    listeners
        Whether `shut_down` includes listening sockets; PyTorch's Gloo would then end the process.

    Attributes
    ----------
    name
        Identifies the ring.
    forming
        Whether the ring is currently being formed.
    peers
        The ends of the ring's connections in all ranks, in the form of `ends`; None if unknown.
    """

    def __init__(self, name: str = "", *, listeners: bool = True) -> None:
        self.name = name
        self._listeners = listeners
        self.forming = False
        self.peers: set[tuple[str, int]] | None = None
        self._before: set[tuple[int, str]] = set()
        self._formed: set[tuple[int, str]] = set()
        self._ring: set[tuple[int, str]] = set()
        self._growing: set[tuple[int, str]] | None = None
        """The sockets before the body of `grows`; None while no such body runs."""

    def __enter__(self) -> RingSockets:
        self._before = _open_sockets()
        self.forming = True
        return self

    def __exit__(self, *_: object) -> None:
        self._ring = self._formed = _open_sockets() - self._before
        if (peers := self.peers) is not None:  # exclude sockets that other threads have opened
            self._formed = {entry for entry in self._formed if _end(*entry, remote=True) in peers}
        self.forming = False

    def ends(self) -> list[tuple[str, int]]:
        """Return this end (address, port) of each connection since the forming began."""
        remote_ends = (_end(*entry, remote=False) for entry in _open_sockets() - self._before)
        return [end for end in remote_ends if end is not None]

    def addresses(self, store: tuple[str, int] | None = None) -> set[str]:
        """Return this rank's addresses of the connections that the ring was formed with.

        Parameters
        ----------
        store
            Address and port of the store; its connections carry no collectives.
        """
        addresses = set()
        for entry in self._formed:
            local = _end(*entry, remote=False)
            other = _end(*entry, remote=True)
            if local and other and store not in {local, other}:
                addresses.add(local[0])
        return addresses

    def are_connected(self) -> bool:
        """Return whether all connections that the ring was formed with are intact."""
        return all(_tcp_state(*entry) in _CONNECTED for entry in self._formed)

    @contextmanager
    def grows(self) -> Iterator[None]:
        """Add the sockets that the body opens."""
        before = self._growing = _open_sockets()
        try:
            yield
        finally:
            self._ring = self._ring | (_open_sockets() - before)
            self._growing = None

    def shut_down(self) -> None:
        """Make every read and write fail, without closing the descriptors."""
        now = _open_sockets()
        growing = self._growing
        chosen = now - self._before if self.forming else self._ring & now
        if growing is not None:
            chosen |= now - growing
        for descriptor, inode in chosen:
            with contextlib.suppress(OSError), _opened(descriptor, inode) as tcp_socket:
                if tcp_socket is None:
                    continue
                if self._listeners or not tcp_socket.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ACCEPTCONN
                ):
                    tcp_socket.shutdown(socket.SHUT_RDWR)


@contextmanager
def _opened(descriptor: int, inode: str) -> Iterator[socket.socket | None]:
    """Duplicate a socket for the body; None if the socket is not TCP.

    Raises
    ------
    OSError
        The socket was closed; its descriptor may now belong to another socket.
    """
    with socket.socket(fileno=os.dup(descriptor)) as opened:
        if inode != f"socket:[{os.fstat(opened.fileno()).st_ino}]":
            raise OSError(errno.EBADF, "closed meanwhile")
        tcp = (
            opened.family in {socket.AF_INET, socket.AF_INET6} and opened.type == socket.SOCK_STREAM
        )
        yield opened if tcp else None


def _tcp_state(descriptor: int, inode: str) -> int:
    """Return a socket's state as in ``linux/tcp_states.h``; 0 without TCP, -1 if closed."""
    try:
        with _opened(descriptor, inode) as tcp_socket:
            return (
                tcp_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
                if tcp_socket
                else 0
            )
    except OSError:
        return -1


def _end(descriptor: int, inode: str, *, remote: bool) -> tuple[str, int] | None:
    """Return the address and port of one end of a TCP connection; None without a connection."""
    with contextlib.suppress(OSError), _opened(descriptor, inode) as tcp_socket:
        if tcp_socket is not None:
            address, port = (tcp_socket.getpeername() if remote else tcp_socket.getsockname())[:2]
            return address.removeprefix("::ffff:").partition("%")[0], port
    return None


def _open_sockets() -> set[tuple[int, str]]:
    """Return this process's sockets, as descriptor and inode."""
    sockets = set()
    for entry in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:"):
                sockets.add((int(entry.name), target))
    return sockets
