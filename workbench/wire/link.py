"""Encrypted sockets between the kernel and its ranks.

The kernel binds an `Inbox` (ROUTER), each rank connects an `Outbox` (DEALER).
Both are CURVE sockets (https://rfc.zeromq.org/spec/26/): the rank knows the kernel's public
key, and the kernel accepts only the keys that it created for its own ranks. Keys reach the ranks
through ipyparallel's signed channel. Only one thread uses each socket.
"""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from workbench.errors import WireError
from workbench.wire.address import Address as Address
from workbench.wire.message import Encoder, Message
from workbench.wire.socket_thread import SocketThread
from workbench.wire.wakeup import SignalSafeEvent

_log = logging.getLogger(__name__)
_SEND_MS = 200
"""How long a thread waits to send before it checks whether its socket is being closed."""
_NO_MEMORY_S = 5.0
"""How long a message is kept while a cell leaves no memory to encode it."""
_DOMAIN = "workbench"
_MAX_MESSAGES = 100
"""Maximum number of messages that the inbox handles before it sends again."""
_MANY_PEERS = 16
"""With more peers, the inbox waits `_GATHER_S` for further messages before it handles them."""
_GATHER_S = 0.005
_IDENTITY = re.compile(rb"-?\d{1,9}")  # of a rank, or of a VM (`address.of_vm`)


class _AcceptedKeys:
    """A credentials provider for zmq.auth that accepts the keys of this cluster."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()

    def callback(self, domain: str, key: bytes) -> bool:
        return domain == _DOMAIN and key in self.keys


class Inbox(SocketThread):
    """The kernel's socket: receives from every rank, and sends to a rank by its number.

    Parameters
    ----------
    handler
        Called in the inbox's thread with ``(rank, message)``.
    interface
        Address on which to listen; the port is chosen.
    on_error
        Called with a `WireError` for a message that cannot be read or handled. The original
        exception is its ``__cause__``. By default, both are logged.
    after
        Called after each batch of messages that have arrived. With many peers, the inbox first
        waits some milliseconds, so that batches are larger.
    state
        Result of `to_state` of the inbox in a previous kernel. This inbox uses the same address and
        keys, so that the ranks of the previous inbox connect to it.

    Raises
    ------
    WireError
        The port of the previous inbox is still in use.
    """

    def __init__(
        self,
        handler: Callable[[int, Message], None],
        *,
        interface: str = "127.0.0.1",
        on_error: Callable[[WireError], None] | None = None,
        after: Callable[[], None] | None = None,
        name: str = "inbox",
        state: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(zmq.ROUTER)
        self._handler = handler
        self._on_error = _log_error if on_error is None else on_error
        self._after = after
        self._accepted = _AcceptedKeys()
        self._auth = ThreadAuthenticator(self._context)
        try:
            self._open(f"tcp://{interface}", state)
        except BaseException:
            self._free()
            raise
        self._outgoing: deque[tuple[int, Callable[[], Message]]] = deque()
        self._start(name)
        _log.debug("Inbox %s is open at %s", name, self._endpoint)

    def _open(self, address: str, state: dict[str, Any] | None) -> None:
        self._auth.start()
        self._auth.configure_curve_callback(domain=_DOMAIN, credentials_provider=self._accepted)
        if state is None:
            self._public, self._secret = zmq.curve_keypair()
        else:
            self._public = state["public"].encode()
            self._secret = state["secret"].encode()
            self._accepted.keys |= {key.encode() for key in state["known"]}
        self._socket.curve_server = True
        self._socket.curve_publickey = self._public
        self._socket.curve_secretkey = self._secret
        self._socket.zap_domain = _DOMAIN.encode()
        # A rank may reconnect, or be replaced by a process with the same number.
        self._socket.router_handover = True
        self._socket.rcvhwm = 0
        self._endpoint = self._bind(address, state)

    def _bind(self, address: str, state: dict[str, Any] | None) -> str:
        if state is None:
            return f"{address}:{self._socket.bind_to_random_port(address)}"
        try:
            self._socket.bind(state["endpoint"])
        except zmq.ZMQError as error:
            raise WireError(
                f"{state['endpoint']}, the port of the previous kernel: cannot be opened "
                f"({error}). If that kernel is still running, shut it down."
            ) from error
        return str(state["endpoint"])

    def to_state(self) -> dict[str, Any]:
        """Return what another process needs to replace this inbox, including the secret key."""
        return {
            "endpoint": self._endpoint,
            "public": self._public.decode(),
            "secret": self._secret.decode(),
            "known": [key.decode() for key in self._accepted.keys],
        }

    def address_for(self, rank: int) -> Address:
        """Create and accept a key pair for a rank (or `address.of_vm`). Return its address."""
        public, secret = zmq.curve_keypair()
        self._accepted.keys.add(public)
        server = self._public.decode()
        return Address(self._endpoint, server, public.decode(), secret.decode(), rank)

    def send(self, rank: int, message: Message) -> None:
        """Send a message to one rank, from any thread.

        The message is dropped if the rank is not connected.
        """
        self.send_later(rank, lambda: message)

    def send_later(self, rank: int, make: Callable[[], Message]) -> None:
        """Send the message that `make` returns. The inbox's thread calls `make` when it sends."""
        self._outgoing.append((rank, make))
        self._wakeup.set()

    def _stop_helpers(self) -> None:
        self._auth.stop()

    def _woken(self) -> None:
        self._wakeup.clear()
        while self._outgoing:
            rank, make = self._outgoing.popleft()
            self._report_errors(f"Message to rank {rank}", partial(self._send, rank, make))

    def _send(self, rank: int, make: Callable[[], Message]) -> None:
        self._socket.send_multipart([str(rank).encode(), *make().encode()])

    def _readable(self) -> None:
        """Handle up to `_MAX_MESSAGES` messages that have arrived; then replies can be sent."""
        if self._after is not None and len(self._accepted.keys) > _MANY_PEERS:
            time.sleep(_GATHER_S)
        for _ in range(_MAX_MESSAGES):
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            # The identity of a replaced process does not match: another process has its number.
            if _IDENTITY.fullmatch(identity):
                rank = int(identity)
                handle = partial(self._handle, rank, frames)
                self._report_errors(f"Message of rank {rank}", handle)
        if self._after is not None:
            self._report_errors("Messages of ranks", self._after)

    def _handle(self, rank: int, frames: list[bytes]) -> None:
        self._handler(rank, Message.decode(frames))

    def _report_errors(self, subject: str, action: Callable[[], None]) -> None:
        """Run an action; pass an exception to `on_error`, since it must not end the thread."""
        try:
            action()
        except WireError as error:
            self._on_error(error)
        except Exception as error:  # noqa: BLE001 - a message must not end the thread
            failure = WireError(f"{subject}: failed, {error!r}.")
            failure.__cause__ = error
            self._on_error(failure)


def _log_error(error: WireError) -> None:
    """Log an error that no other code reports, with the traceback of its cause."""
    _log.error("%s", error, exc_info=error)


class Outbox(SocketThread):
    """A rank's socket: sends from any thread, without blocking the caller.

    Parameters
    ----------
    address
        From the kernel's `Inbox.address_for`.
    handler
        Called in the outbox's thread with each message from the kernel.
    delay_s
        Messages are sent together when the wall clock is at a multiple of this many seconds. Thus
        all ranks send at the same time, and no rank is a period behind the others. `flush` and
        `close` do not wait for this time.
    """

    def __init__(
        self,
        address: Address,
        handler: Callable[[Message], None] = lambda _: None,
        *,
        delay_s: float = 0.0,
        name: str = "outbox",
    ) -> None:
        super().__init__(zmq.DEALER)
        self._handler = handler
        self._delay_s = delay_s
        self._socket.sndtimeo = _SEND_MS
        address.connect(self._socket)
        self._queue: deque[Callable[[], list[Message]]] = deque()
        self._encoder: Encoder | None = None
        """Has the unsent messages of the first queued function."""
        self._no_memory_since: float | None = None
        """When encoding first failed for lack of memory, in monotonic seconds; None if it works."""
        self._frames: list[bytes] = []
        """The rest of the message that is being sent."""
        self._awake = False
        """Whether the thread was woken and has not finished sending."""
        self._hurry = SignalSafeEvent()
        """Ends the wait for `delay_s`."""
        self._start(name)

    def send(self, message: Message) -> None:
        """Queue a message."""
        self.send_later(lambda: [message])

    def send_later(self, make: Callable[[], list[Message]]) -> None:
        """Queue a function that returns messages. The outbox's thread calls the function."""
        self._queue.append(make)
        if not self._awake:
            self._awake = True
            self._wakeup.set()

    def flush(self, timeout_s: float = 2.0) -> bool:
        """Wait until ZeroMQ has every message, for at most `timeout_s`. Return whether it has."""
        deadline = time.monotonic() + timeout_s
        while self._queue and time.monotonic() < deadline:
            self._hurry.set()
            self._wakeup.set()
            time.sleep(0.001)
        return not self._queue

    def close(self) -> None:
        """Send the queued messages, stop the thread and free the socket."""
        if not self._closing.is_set():
            self.flush()
        self._hurry.set()
        super().close()

    def _woken(self) -> None:
        # Repeat until the queue is empty: a caller that queues often wakes this thread only once.
        self._wakeup.clear()
        while not self._closing.is_set():
            if self._delay_s:
                self._hurry.wait(self._delay_s - time.time() % self._delay_s)
            if not self._queue:
                break
            self._drain()
        self._awake = False
        self._drain()  # messages that were queued in between

    def _readable(self) -> None:
        frames = self._socket.recv_multipart()
        try:
            self._handler(Message.decode(frames))
        except Exception:  # noqa: BLE001 - a message must not end the thread
            traceback.print_exc()

    def _sends(self) -> bool:
        """Send a message, and wait for the kernel if necessary. Return False if closed before that.

        `close` frees the socket after some seconds. By then, this thread must not use the socket.
        """
        while self._frames:
            try:
                more = zmq.SNDMORE if len(self._frames) > 1 else 0
                self._socket.send(self._frames[0], more)
            except zmq.Again:
                if self._closing.is_set():
                    return False
            else:
                del self._frames[0]
        return True

    def _next_frames(self, encoder: Encoder) -> list[bytes]:
        """Return the frames of the next message; empty after the last message.

        If there is no memory, raise a MemoryError for `_NO_MEMORY_S`: the thread tries again after
        the error. Later, drop messages until there is memory for a message, so that messages that
        need less memory are sent.
        """
        since = self._no_memory_since
        try:
            last_attempt = since is not None and time.monotonic() - since > _NO_MEMORY_S
            frames = encoder.next(last_attempt=last_attempt)
        except MemoryError:
            if since is None:
                self._no_memory_since = time.monotonic()
            raise
        if frames:
            self._no_memory_since = None
        return frames

    def _drain(self) -> None:
        """Send all queued messages; continue where a MemoryError has ended the previous call."""
        while self._queue:
            if self._encoder is None:
                self._encoder = Encoder(self._queue[0])
            self._frames = self._frames or self._next_frames(self._encoder)
            if not self._frames:
                # Removed only now: `flush` takes an empty queue to mean that ZeroMQ has everything.
                self._queue.popleft()
                self._encoder = None
            elif not self._sends():
                return
