"""The socket of a detached process, at which one kernel at a time attaches."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from pathlib import Path
from typing import Any

from workbench.wire.agent_messages import Attach, MessageReader, Replaced, encode

_WRITE_S = 5.0
"""A kernel that does not read for so long is disconnected."""
_NEWCOMERS = 16
"""Most connections that have not sent `Attach`; the oldest are closed."""
_MAX_FIRST_BYTES = 1 << 16
"""Most bytes of the first line of a connection; `Attach` has less than 200."""
_FIRST_S = 60.0


class _Parent:
    """The kernel with which this process must end; it need not be the parent in the system's sense.

    Attributes
    ----------
    descriptor
        Is readable when the kernel has ended; None if there is no kernel, or before Linux 5.3.
    ended
        Whether the kernel is known to have ended.
    """

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self.descriptor: int | None = None
        self.ended = False
        if pid is not None:
            try:
                self.descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                self.ended = True
            except OSError:  # this system cannot; the kernel is then the parent
                self.descriptor = None

    def has_ended(self) -> bool:
        """Return whether the kernel has ended."""
        if self._pid is None or self.descriptor is not None:
            return self.ended
        return self.ended or os.getppid() != self._pid


class KernelSocket:
    """Accepts kernels at the listening socket that `workbench.wire.detached` passed as stdin.

    A connection takes the place of the kernel's when its first message is `Attach`. Use it in one
    thread.

    Parameters
    ----------
    grace_s
        The process must end after so many seconds without a kernel.
    parent
        Process id of the kernel, if the process must end together with it. The kernel is its
        parent, or the parent of the warm process that has forked it.
    first_s
        The process must end after so many seconds if no kernel has attached yet: the start of
        which it is a part has failed. None if the kernel has connected before: `grace_s`, and
        at most a minute.

    Attributes
    ----------
    path
        Path of the socket.
    silence_s
        The kernel's connection counts as closed after so many seconds without a message.
    """

    def __init__(
        self, grace_s: float, parent: int | None = None, first_s: float | None = None
    ) -> None:
        self._server = socket.socket(fileno=os.dup(0))
        self._server.setblocking(False)
        with open(os.devnull, "rb") as null:  # noqa: PTH123 - there is no path to build
            os.dup2(null.fileno(), 0)
        self.path = Path(self._server.getsockname())
        self.silence_s = float("inf")
        self._grace_s = grace_s
        self._limit_s = min(grace_s, _FIRST_S) if first_s is None else first_s
        self._client: socket.socket | None = None
        self._newcomers: dict[socket.socket, MessageReader] = {}
        self._reader = MessageReader()
        self._heard = time.monotonic()
        """When the latest message arrived; without a client, when the latest one disconnected."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._parent = _Parent(parent)
        if self._parent.descriptor is not None:
            self._selector.register(self._parent.descriptor, selectors.EVENT_READ)

    def wake_by(self, descriptor: int) -> None:
        """Let bytes in this pipe end the wait of `receive`, which discards them."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def receive(self, wait_s: float) -> list[Any]:
        """Return the kernel's messages, after waiting for them up to `wait_s`."""
        messages = []
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._server:
                self._accept()
            elif key.fileobj == self._parent.descriptor:
                self._parent.ended = True
            elif isinstance(key.fileobj, int):
                os.read(key.fileobj, 4096)
            elif key.fileobj in self._newcomers:
                messages += self._read_first(key.fileobj)
            elif key.fileobj is self._client:  # it may have been closed meanwhile
                messages += self._read()
        if self._client is not None and time.monotonic() - self._heard > self.silence_s:
            self._drop()
        return messages

    def heard(self) -> None:
        """Restart the measurement of the kernel's silence, after work that delayed reading."""
        self._heard = time.monotonic()

    def send(self, message: Any) -> None:
        """Send a message; drop it if no kernel is attached or reads it."""
        if self._client is not None:
            try:
                self._client.sendall(encode(message))
            except OSError:
                self._drop()

    @property
    def abandoned(self) -> bool:
        """Whether no kernel was attached for the grace period, or the parent has ended."""
        if self._parent.has_ended():
            return True
        if self._client is not None or self._newcomers:  # one of them may be about to attach
            return False
        return time.monotonic() - self._heard > self._limit_s

    def descriptors(self) -> list[int]:
        """Return the descriptors that a forked process must close."""
        sockets = [self._server, *self._newcomers]
        if self._client is not None:
            sockets.append(self._client)
        descriptors = [*(one.fileno() for one in sockets), self._selector.fileno()]
        if self._parent.descriptor is not None:
            descriptors.append(self._parent.descriptor)
        return descriptors

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            client, _ = self._server.accept()
            client.settimeout(_WRITE_S)
            self._newcomers[client] = MessageReader()
            self._selector.register(client, selectors.EVENT_READ)
            if len(self._newcomers) > _NEWCOMERS:
                self._close(next(iter(self._newcomers)))

    def _read_first(self, client: socket.socket) -> list[Any]:
        """Read from a connection that has not attached; return its messages when it has."""
        try:
            data = client.recv(1 << 16)
        except OSError:
            data = b""
        reader = self._newcomers[client]
        messages = reader.feed(data)
        unknown = messages and not isinstance(messages[0], Attach)
        if not data or unknown or (not messages and reader.pending_bytes > _MAX_FIRST_BYTES):
            self._close(client)
            return []
        if messages:
            self.send(Replaced())
            self._drop()
            self._client, self._reader = client, reader
            del self._newcomers[client]
            self._heard, self._limit_s = time.monotonic(), self._grace_s
        return messages

    def _close(self, client: socket.socket) -> None:
        """Close a connection that has not attached."""
        del self._newcomers[client]
        self._selector.unregister(client)
        client.close()

    def _read(self) -> list[Any]:
        assert self._client is not None
        try:
            data = self._client.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop()
            return []
        self._heard = time.monotonic()
        return self._reader.feed(data)

    def _drop(self) -> None:
        if self._client is not None:
            self._selector.unregister(self._client)
            self._client.close()
            self._client = None
            self._heard = time.monotonic()
            self.silence_s = float("inf")
