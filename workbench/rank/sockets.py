"""The TCP connections of a ring, and how to break them from within.

Gloo waits for a peer that is gone until its timeout, five times that while a
ring is formed, and Horovod's own shutdown waits with it. All of it ends at once
where the sockets are shut down.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


class RingSockets:
    """Notes which sockets a ring has opened; use as a context manager around its forming.

    Parameters
    ----------
    name
        Which ring it is, among those that are formed one after the other.

    Attributes
    ----------
    forming
        Whether the ring is being formed now.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.forming = False
        self._before: set[tuple[int, str]] = set()
        self._ring: set[tuple[int, str]] = set()

    def __enter__(self) -> RingSockets:
        self._before = _open_sockets()
        self.forming = True
        return self

    def __exit__(self, *_: object) -> None:
        self._ring = _open_sockets() - self._before
        self.forming = False

    @contextmanager
    def grows(self) -> Iterator[None]:
        """Count the sockets that the body opens as the ring's."""
        before = _open_sockets()
        try:
            yield
        finally:
            self._ring |= _open_sockets() - before

    def shut_down(self) -> None:
        """Let every read and write on them fail; the descriptors stay their owner's."""
        now = _open_sockets()
        for descriptor, inode in now - self._before if self.forming else self._ring & now:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
                # the number may be another socket's by now, such as one of the next ring
                same = inode == f"socket:[{os.fstat(one.fileno()).st_ino}]"
                if same and one.family in {socket.AF_INET, socket.AF_INET6}:
                    one.shutdown(socket.SHUT_RDWR)


def _open_sockets() -> set[tuple[int, str]]:
    """Return this process's sockets, as descriptor and inode."""
    found = set()
    for entry in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:"):
                found.add((int(entry.name), target))
    return found
