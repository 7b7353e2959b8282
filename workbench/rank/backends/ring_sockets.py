"""Shuts down the TCP connections of a ring, to end operations that wait for a lost rank.

Gloo waits for a lost rank until its timeout, or five times as long while a ring is formed, and
Horovod's shutdown waits for Gloo. When the sockets are shut down, all of this ends immediately.
"""

from __future__ import annotations

import contextlib
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
    """

    def __init__(self, name: str = "", *, listeners: bool = True) -> None:
        self.name = name
        self._listeners = listeners
        self.forming = False
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
        self.forming = False

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
        now, growing = _open_sockets(), self._growing
        chosen = now - self._before if self.forming else self._ring & now
        if growing is not None:
            chosen |= now - growing
        for descriptor, inode in chosen:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
                # the number may meanwhile belong to another socket, such as of the next ring
                same = inode == f"socket:[{os.fstat(one.fileno()).st_ino}]"
                if not self._listeners and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    continue
                if same and one.family in {socket.AF_INET, socket.AF_INET6}:
                    one.shutdown(socket.SHUT_RDWR)


def _tcp_state(descriptor: int, inode: str) -> int:
    """Return a socket's state as in ``linux/tcp_states.h``; 0 without TCP, -1 if it is closed."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as one:
            if inode != f"socket:[{os.fstat(one.fileno()).st_ino}]":
                return -1
            if one.family not in {socket.AF_INET, socket.AF_INET6}:
                return 0
            return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return -1


def _open_sockets() -> set[tuple[int, str]]:
    """Return this process's sockets, as descriptor and inode."""
    found = set()
    for entry in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:"):
                found.add((int(entry.name), target))
    return found
