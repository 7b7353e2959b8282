"""The socket of a detached process. One kernel at a time attaches to it."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import time
from pathlib import Path
from typing import Any

from workbench.wire.agent_messages import Attach, MessageReader, Replaced, encode

_log = logging.getLogger(__name__)

_WRITE_S = 5.0
"""Maximum time for sending a message; a kernel that has not read it by then is disconnected."""
_MAX_UNATTACHED = 16
"""Maximum number of connections that have not sent `Attach`; beyond it the oldest is closed."""
_MAX_FIRST_BYTES = 1 << 16
"""Maximum size of the first line of a connection; `Attach` has less than 200 bytes."""
_MAX_FIRST_S = 60.0
"""Maximum time without a kernel before the first attach, unless `first_s` is specified."""


class _Parent:
    """The kernel with which this process must end. It need not be this process's parent.

    Attributes
    ----------
    descriptor
        File descriptor that becomes readable when the kernel ends; None if there is no kernel, or
        before Linux 5.3.
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
            except OSError:  # not supported by this system; the kernel is then the parent
                self.descriptor = None

    def has_ended(self) -> bool:
        """Return whether the kernel has ended."""
        if self._pid is None or self.descriptor is not None:
            return self.ended
        return self.ended or os.getppid() != self._pid


class KernelSocket:
    """Accepts kernels at the listening socket that `workbench.wire.detached` passed as stdin.

    A new connection replaces the kernel's connection when its first message is `Attach`. Only one
    thread may use an instance.

    Parameters
    ----------
    grace_s
        The process must end after this many seconds without a kernel.
    parent
        Process id of the kernel, if the process must end together with the kernel. The kernel is
        the parent of this process, or of the warm process that has forked it.
    first_s
        The process must end after this many seconds if no kernel has attached yet, because the
        start that created it has failed. None if the kernel has connected before: then the limit
        is `grace_s`, and at most a minute.

    Attributes
    ----------
    path
        Path of the socket.
    silence_s
        The kernel's connection counts as closed after this many seconds without a message.
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
        self._limit_s = min(grace_s, _MAX_FIRST_S) if first_s is None else first_s
        self._client: socket.socket | None = None
        self._unattached: dict[socket.socket, MessageReader] = {}
        self._reader = MessageReader()
        self._last_received_s = time.monotonic()
        """When the latest message arrived; without a client, when the latest one disconnected."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._parent = _Parent(parent)
        if self._parent.descriptor is not None:
            self._selector.register(self._parent.descriptor, selectors.EVENT_READ)

    def add_wakeup(self, descriptor: int) -> None:
        """Make bytes in a pipe end the wait of `receive`, which discards the bytes.

        Parameters
        ----------
        descriptor
            The end of the pipe that can be read.
        """
        self._selector.register(descriptor, selectors.EVENT_READ)

    def receive(self, wait_s: float) -> list[Any]:
        """Return the kernel's messages, after waiting for them for at most `wait_s`."""
        messages = []
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._server:
                self._accept()
            elif key.fileobj == self._parent.descriptor:
                self._parent.ended = True
            elif isinstance(key.fileobj, int):
                os.read(key.fileobj, 4096)
            elif key.fileobj in self._unattached:
                messages += self._read_first(key.fileobj)
            elif key.fileobj is self._client:  # an earlier event may have closed it
                messages += self._read()
        if self._client is not None and time.monotonic() - self._last_received_s > self.silence_s:
            _log.info("Disconnecting the kernel: no message for %g s", self.silence_s)
            self._drop()
        return messages

    def restart_silence(self) -> None:
        """Measure the kernel's silence from now on, because other work has delayed reading."""
        self._last_received_s = time.monotonic()

    def send(self, message: Any) -> None:
        """Send a message. Drop it if no kernel is attached or the kernel does not read."""
        if self._client is not None:
            try:
                self._client.sendall(encode(message))
            except OSError:
                self._drop()

    @property
    def abandoned(self) -> bool:
        """Whether no kernel was attached for the grace period, or the kernel has ended."""
        if self._parent.has_ended():
            return True
        # A connection that has not attached yet may be about to do so.
        if self._client is not None or self._unattached:
            return False
        return time.monotonic() - self._last_received_s > self._limit_s

    def descriptors(self) -> list[int]:
        """Return the descriptors that a forked process must close."""
        sockets = [self._server, *self._unattached]
        if self._client is not None:
            sockets.append(self._client)
        descriptors = [*(each.fileno() for each in sockets), self._selector.fileno()]
        if self._parent.descriptor is not None:
            descriptors.append(self._parent.descriptor)
        return descriptors

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            client, _ = self._server.accept()
            client.settimeout(_WRITE_S)
            self._unattached[client] = MessageReader()
            self._selector.register(client, selectors.EVENT_READ)
            if len(self._unattached) > _MAX_UNATTACHED:
                self._close(next(iter(self._unattached)))

    def _read_first(self, client: socket.socket) -> list[Any]:
        """Read from a connection that has not attached; return its messages once it has."""
        try:
            data = client.recv(1 << 16)
        except OSError:
            data = b""
        reader = self._unattached[client]
        messages = reader.feed(data)
        unknown = messages and not isinstance(messages[0], Attach)
        if not data or unknown or (not messages and reader.pending_bytes > _MAX_FIRST_BYTES):
            self._close(client)
            return []
        if messages:
            self.send(Replaced())
            self._drop()
            self._client = client
            self._reader = reader
            del self._unattached[client]
            self._last_received_s = time.monotonic()
            self._limit_s = self._grace_s
            _log.debug("A kernel attached, session %s", messages[0].session)
        return messages

    def _close(self, client: socket.socket) -> None:
        """Close a connection that has not attached."""
        del self._unattached[client]
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
        self._last_received_s = time.monotonic()
        return self._reader.feed(data)

    def _drop(self) -> None:
        if self._client is not None:
            self._selector.unregister(self._client)
            self._client.close()
            self._client = None
            self._last_received_s = time.monotonic()
            _log.debug("The kernel is disconnected")
            self.silence_s = float("inf")
