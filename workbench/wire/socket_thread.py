"""A thread that uses one ZeroMQ socket. Other threads can wake it."""

from __future__ import annotations

import threading
import time

import zmq

from workbench.wire.wakeup import Wakeup

_LINGER_MS = 500
_NO_MEMORY_S = 0.05


class SocketThread:
    """A socket, and the only thread that uses it.

    The thread calls `_woken` after another thread has set the wakeup, because there is something to
    send, and `_readable` when the peer has sent something. After a MemoryError the thread tries
    again, because no other thread would serve the socket. A cell that uses all memory frees it when
    the cell ends.
    """

    def __init__(self, kind: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(kind)
        self._socket.linger = _LINGER_MS
        self._wakeup = Wakeup()
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wakeup.fd, zmq.POLLIN)
        self._closing = threading.Event()

    def _start(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=f"workbench-{name}", daemon=True)
        self._thread.start()

    @property
    def is_closing(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is the thread that uses the socket."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Stop the thread and free the socket. Further calls have no effect."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wakeup.set()
        self._thread.join(timeout=5)
        self._free()

    def _free(self) -> None:
        self._stop_helpers()
        self._socket.close()
        self._context.term()
        self._wakeup.close()

    def _run(self) -> None:
        failed = False
        while True:
            try:
                if failed:
                    time.sleep(_NO_MEMORY_S)
                    self._wakeup.set()  # unsent messages are still queued
                    failed = False
                if self._closing.is_set():
                    return
                self._serve()
            except MemoryError:  # no other statement here: it could raise another MemoryError
                failed = True

    def _serve(self) -> None:
        """Wait for the next event, and handle it."""
        ready = dict(self._poller.poll())
        if self._wakeup.fd in ready:
            self._woken()
        if self._socket in ready:
            self._readable()

    def _woken(self) -> None:
        raise NotImplementedError

    def _readable(self) -> None:
        raise NotImplementedError

    def _stop_helpers(self) -> None:
        """Stop threads that use the socket's context. Called when the socket's thread has ended."""
