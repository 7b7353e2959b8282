"""The encrypted sockets between the kernel and its ranks.

The kernel binds an `Inbox` (ROUTER), each rank connects an `Outbox` (DEALER).
Both are CURVE sockets (https://rfc.zeromq.org/spec/26/): the rank knows the
kernel's public key, the kernel lets in only the public keys that it made for
its own ranks. Keys reach the ranks through ipyparallel's signed channel.
Each end owns one thread, the only one that touches its socket.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from workbench.errors import WireError
from workbench.wire.message import Message

_LINGER_MS = 500
_DOMAIN = "workbench"


@dataclass(frozen=True)
class Address:
    """All that one rank needs to connect: an endpoint and its keys (Z85 text)."""

    endpoint: str
    server_key: str
    public_key: str
    secret_key: str
    rank: int

    def to_content(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


class _Wakeup:
    """Lets any thread wake the one that polls; a pipe, so that zmq can poll it."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)

    def set(self) -> None:
        try:
            os.write(self._write, b"x")
        except (BlockingIOError, OSError):
            return  # full: it is awake already; closed: nobody polls any more

    def clear(self) -> None:
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write)


class _KnownKeys:
    """zmq.auth's credentials provider: only the keys made for this cluster."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()

    def callback(self, domain: str, key: bytes) -> bool:
        return domain == _DOMAIN and key in self.keys


class _Link:
    """A socket, and the one thread that touches it.

    Other threads hand over what to send and set the wakeup; the thread calls
    `_woken` then, and `_readable` when the peer has sent something.
    """

    def __init__(self, kind: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(kind)
        self._socket.linger = _LINGER_MS
        self._wakeup = _Wakeup()
        self._closing = threading.Event()

    def _start(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=f"workbench-{name}", daemon=True)
        self._thread.start()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is the thread that touches the socket."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Stop the thread and free the socket; may be called again."""
        if self._closing.is_set():
            return
        self._before_close()
        self._closing.set()
        self._wakeup.set()
        self._thread.join(timeout=5)
        self._after_close()
        self._socket.close()
        self._context.term()
        self._wakeup.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wakeup.fd, zmq.POLLIN)
        while not self._closing.is_set():
            ready = dict(poller.poll())
            if self._wakeup.fd in ready:
                self._woken()
            if self._socket in ready:
                self._readable()

    def _woken(self) -> None:
        raise NotImplementedError

    def _readable(self) -> None:
        raise NotImplementedError

    def _before_close(self) -> None:
        """Called by the one who closes, while the thread still runs."""

    def _after_close(self) -> None:
        """The same, once it has ended."""


class Inbox(_Link):
    """The kernel's end: receives from every rank, answers by rank.

    Parameters
    ----------
    handler
        Called in the inbox's thread with ``(rank, message)``.
    interface
        Address to listen on; a port is chosen.
    on_error
        Called with a `WireError` for a message that cannot be read.
    state
        What `to_state` gave: take the place of that inbox, to which ranks connect anew.

    Raises
    ------
    WireError
        The port of that inbox is taken.
    """

    def __init__(
        self,
        handler: Callable[[int, Message], None],
        *,
        interface: str = "127.0.0.1",
        on_error: Callable[[WireError], None] = lambda _: None,
        name: str = "inbox",
        state: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(zmq.ROUTER)
        self._handler = handler
        self._on_error = on_error
        self._known = _KnownKeys()
        self._auth = ThreadAuthenticator(self._context)
        self._auth.start()
        self._auth.configure_curve_callback(domain=_DOMAIN, credentials_provider=self._known)
        if state is None:
            self._public, self._secret = zmq.curve_keypair()
        else:
            self._public, self._secret = state["public"].encode(), state["secret"].encode()
            self._known.keys |= {key.encode() for key in state["known"]}
        self._socket.curve_server = True
        self._socket.curve_publickey = self._public
        self._socket.curve_secretkey = self._secret
        self._socket.zap_domain = _DOMAIN.encode()
        # a rank may come back under its number, or a new one in its place
        self._socket.router_handover = True
        self._socket.rcvhwm = 0
        self._endpoint = self._bind(f"tcp://{interface}", state)
        self._outgoing: deque[tuple[int, Callable[[], Message]]] = deque()
        self._start(name)

    def _bind(self, address: str, state: dict[str, Any] | None) -> str:
        if state is None:
            return f"{address}:{self._socket.bind_to_random_port(address)}"
        try:
            self._socket.bind(state["endpoint"])
        except zmq.ZMQError as error:
            raise WireError(
                f"the port of the earlier kernel, {state['endpoint']}, cannot be opened ({error}): "
                "if that kernel still runs, shut it down"
            ) from error
        return str(state["endpoint"])

    def to_state(self) -> dict[str, Any]:
        """Return what another process needs to take this one's place; it holds the secret key."""
        return {
            "endpoint": self._endpoint,
            "public": self._public.decode(),
            "secret": self._secret.decode(),
            "known": [key.decode() for key in self._known.keys],
        }

    def address_for(self, rank: int) -> Address:
        """Make a key pair for `rank`, let it in, and return how it connects."""
        public, secret = zmq.curve_keypair()
        self._known.keys.add(public)
        server = self._public.decode()
        return Address(self._endpoint, server, public.decode(), secret.decode(), rank)

    def send(self, rank: int, message: Message) -> None:
        """Send to one rank, from any thread; without a connection it is dropped."""
        self.send_later(rank, lambda: message)

    def send_later(self, rank: int, make: Callable[[], Message]) -> None:
        """Send what the inbox's thread makes when it sends it: a stamp in it is of that moment."""
        self._outgoing.append((rank, make))
        self._wakeup.set()

    def _after_close(self) -> None:
        self._auth.stop()

    def _woken(self) -> None:
        self._wakeup.clear()
        while self._outgoing:
            rank, make = self._outgoing.popleft()
            self._socket.send_multipart([str(rank).encode(), *make().encode()])

    def _readable(self) -> None:
        """Take what has arrived, at most 100 messages, so that replies are not starved."""
        for _ in range(100):
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._handler(int(identity), Message.decode(frames))
            except WireError as error:
                self._on_error(error)
            except Exception as error:  # noqa: BLE001 - one message must not end the thread
                self._on_error(WireError(f"a message could not be handled: {error!r}"))


class Outbox(_Link):
    """A rank's end: sends from any thread, never blocks the caller.

    Parameters
    ----------
    address
        From the kernel's `Inbox.address_for`.
    handler
        Called in the outbox's thread with each message from the kernel.
    delay_s
        Messages leave together when the wall clock is at a multiple of this, so
        that all ranks' leave at the same time, and who reads them all reads
        none that is a turn older than another's; `flush` and `close` do not wait.
    limit
        Messages kept while the kernel does not take them; beyond it, the
        oldest is dropped and counted in `dropped`. None: nothing is dropped.
    """

    def __init__(
        self,
        address: Address,
        handler: Callable[[Message], None] = lambda _: None,
        *,
        delay_s: float = 0.0,
        limit: int | None = 100_000,
        name: str = "outbox",
    ) -> None:
        super().__init__(zmq.DEALER)
        self.dropped = 0
        self._handler = handler
        self._delay_s = delay_s
        self._limit = limit
        self._socket.curve_serverkey = address.server_key.encode()
        self._socket.curve_publickey = address.public_key.encode()
        self._socket.curve_secretkey = address.secret_key.encode()
        self._socket.identity = str(address.rank).encode()
        self._socket.connect(address.endpoint)
        self._queue: deque[Callable[[], list[Message]]] = deque()
        self._awake = False
        self._hurry = threading.Event()
        self._start(name)

    def send(self, message: Message) -> None:
        """Queue a message."""
        self.send_later(lambda: [message])

    def send_later(self, make: Callable[[], list[Message]]) -> None:
        """Queue messages that the outbox's thread makes, so that the caller does not."""
        if self._limit is not None and len(self._queue) >= self._limit:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(make)
        if not self._awake:
            self._awake = True
            self._wakeup.set()

    def flush(self, timeout_s: float = 2.0) -> bool:
        """Wait until the queue is handed to ZeroMQ; False where it took longer."""
        deadline = time.monotonic() + timeout_s
        while self._queue and time.monotonic() < deadline:
            self._hurry.set()
            self._wakeup.set()
            time.sleep(0.001)
        return not self._queue

    def _before_close(self) -> None:
        self.flush()

    def _woken(self) -> None:
        if self._delay_s:
            self._hurry.wait(self._delay_s - time.time() % self._delay_s)
        self._hurry.clear()
        self._wakeup.clear()
        self._awake = False
        self._drain()

    def _readable(self) -> None:
        frames = self._socket.recv_multipart()
        try:
            self._handler(Message.decode(frames))
        except Exception:  # noqa: BLE001 - one message must not end the thread
            traceback.print_exc()

    def _drain(self) -> None:
        while self._queue:
            try:
                messages = self._queue[0]()
            except Exception:  # noqa: BLE001 - one message that cannot be made must not end the rest
                self.dropped += 1
                messages = []
            for message in messages:
                self._socket.send_multipart(message.encode())
            # removed only now, so that an empty queue means "all handed over"
            self._queue.popleft()
