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
    """The sockets that a ring opens while it is formed in the body of this context manager.

    Parameters
    ----------
    name
        Identifies the ring.
    listeners
        Whether `shut_down` includes listening sockets: with these, PyTorch's Gloo ends the process.

    Attributes
    ----------
    name
        Identifies the ring.
    forming
        Whether the ring is currently being formed.
    peers
        The ends of the ring's connections in all ranks, as `ends` returns them; None if unknown.
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
        """The sockets before the body of `grows`, while that runs."""

    def __enter__(self) -> RingSockets:
        self._before = _open_sockets()
        self.forming = True
        return self

    def __exit__(self, *_: object) -> None:
        self._ring = self._formed = _open_sockets() - self._before
        if (peers := self.peers) is not None:  # without those that other threads have opened
            self._formed = {one for one in self._formed if _end(*one, remote=True) in peers}
        self.forming = False

    def ends(self) -> list[tuple[str, int]]:
        """Return the address and port of this end of each connection opened since it is formed."""
        found = (_end(*one, remote=False) for one in _open_sockets() - self._before)
        return [end for end in found if end is not None]

    def addresses(self, store: tuple[str, int] | None = None) -> set[str]:
        """Return the addresses of this end of the connections that the ring was formed with.

        Parameters
        ----------
        store
            Where the store listens, whose connections carry no collectives.
        """
        found = set()
        for one in self._formed:
            own = _end(*one, remote=False)
            other = _end(*one, remote=True)
            if own and other and store not in {own, other}:
                found.add(own[0])
        return found

    def are_connected(self) -> bool:
        """Return whether all connections that the ring was formed with are intact."""
        return all(_tcp_state(*one) in _CONNECTED for one in self._formed)

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
            with contextlib.suppress(OSError), _opened(descriptor, inode) as one:
                if one is None:
                    continue
                if self._listeners or not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    one.shutdown(socket.SHUT_RDWR)


@contextmanager
def _opened(descriptor: int, inode: str) -> Iterator[socket.socket | None]:
    """Open a socket again for the body; None if it is not TCP.

    Raises
    ------
    OSError
        It was closed; its number may meanwhile belong to another socket.
    """
    with socket.socket(fileno=os.dup(descriptor)) as one:
        if inode != f"socket:[{os.fstat(one.fileno()).st_ino}]":
            raise OSError(errno.EBADF, "closed meanwhile")
        tcp = one.family in {socket.AF_INET, socket.AF_INET6} and one.type == socket.SOCK_STREAM
        yield one if tcp else None


def _tcp_state(descriptor: int, inode: str) -> int:
    """Return a socket's state as in ``linux/tcp_states.h``; 0 without TCP, -1 if it is closed."""
    try:
        with _opened(descriptor, inode) as one:
            return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] if one else 0
    except OSError:
        return -1


def _end(descriptor: int, inode: str, *, remote: bool) -> tuple[str, int] | None:
    """Return the address and port of one end of a TCP connection; None if there is none."""
    with contextlib.suppress(OSError), _opened(descriptor, inode) as one:
        if one is not None:
            address, port = (one.getpeername() if remote else one.getsockname())[:2]
            return address.removeprefix("::ffff:").partition("%")[0], port
    return None


def _open_sockets() -> set[tuple[int, str]]:
    """Return this process's sockets, as descriptor and inode."""
    found = set()
    for entry in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:"):
                found.add((int(entry.name), target))
    return found
