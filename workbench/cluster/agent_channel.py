"""The kernel's connection to the agent of a VM, which reconnects automatically.

Each channel is a task of the I/O thread (`threads.io_loop`). Callbacks run in that thread, and
must not block. The public methods are called in other threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.cluster.launchers import Connection, Launcher
from workbench.cluster.threads import io_loop
from workbench.errors import StartFailed
from workbench.hosts import Host
from workbench.wire import agent_messages as messages
from workbench.wire.detached import exit_text

_log = logging.getLogger(__name__)

GRACE_S = 15.0
"""An agent that is not kept ends after this time without a kernel; a reconnect takes less."""
RECONNECT_S = 8.0
"""A VM is lost if its connection is closed and nothing has arrived from it for this time."""
_RETRY_S = 4.0
"""The shortest time for reconnecting, because this machine may have been suspended."""
_PAUSE_S = 0.2
_ATTEMPT_S = 12.0
"""Time limit for a relay to connect, once its VM answers."""
_PING_S = 1.0
_SILENCE_S = 45.0
"""After this time without a message, the agent of a VM assumes that its kernel has ended."""
_REAP_S = 1.0
_POLL_S = 0.2
"""A wait notices an interrupt after this time at the latest."""
_MAX_LOG_LINES = 60


class Question:
    """A question to an agent; if it is deleted, its answer is dropped.

    Attributes
    ----------
    asked
        When the question was asked, by `time.monotonic`.
    answer
        The answer, or why there is none; None until it arrives.
    took_s
        Seconds until the answer arrived.
    line
        The encoded question, which is sent again if its answer was lost.

    Examples
    --------
    >>> question = Question()
    >>> question.answer is None, question.took_s
    (True, inf)
    """

    def __init__(self) -> None:
        self.asked = time.monotonic()
        self.answer: messages.Answer | None = None
        self.took_s = float("inf")
        self.line = b""

    def resolve(self, answer: messages.Answer) -> None:
        """Store the answer, and how long it took."""
        self.took_s = time.monotonic() - self.asked
        self.answer = answer


class AgentChannel:
    """Sends messages to an agent, each once and in order, and receives its reports.

    Parameters
    ----------
    launcher, host, folder
        How the agent is reached, on which VM, and the folder of the agent's socket.
    on_report
        Called in the I/O thread with each report.
    on_change
        Called in the I/O thread after reports, and when the connection is lost or restored.
    interrupted
        While this event is set, no method waits; None for never.

    Attributes
    ----------
    reconnecting
        Whether the connection was lost and is being restored.
    code
        Exit status of the agent or of the relay, once it is known.
    lost_reason
        Why the agent can no longer be reached; empty while it can.
    """

    def __init__(
        self,
        launcher: Launcher,
        host: Host | None,
        folder: Path,
        on_report: Callable[[Any], None],
        on_change: Callable[[], None],
        interrupted: threading.Event | None,
    ) -> None:
        self._launcher = launcher
        self._host = host
        self._folder = folder
        self._on_report = on_report
        self._on_change = on_change
        self._interrupted = threading.Event() if interrupted is None else interrupted
        self._session = secrets.token_hex(8)
        self._ids = itertools.count()
        self._questions: weakref.WeakValueDictionary[str, Question] = weakref.WeakValueDictionary()
        self._unreceived: deque[bytes] = deque()
        """Messages that the agent has not confirmed; `_received` is the number of the first."""
        self._received = self._sent = 0
        self._log_lines: deque[str] = deque(maxlen=_MAX_LOG_LINES)
        """The latest lines from the VM that are not messages."""
        self._connection: Connection | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._attached = self._agent_ended = False
        self._closing = self._leaving = self._finished = False
        self._last_received = 0.0
        self._changed = threading.Condition()
        self.reconnecting = False
        self.code: int | None = None
        self.lost_reason = ""

    def start(self, grace_s: float, *, keep: bool) -> None:
        """Start the agent and connect to it; if that fails, `log_tail` and `code` show why.

        Raise `StartFailed` if the start cannot be attempted.
        """
        connection = self._launcher.start(self._host, self._folder, grace_s, keep=keep)
        asyncio.run_coroutine_threadsafe(self._run(connection, 0.0), io_loop())

    def attach(self, patience_s: float) -> None:
        """Connect to a running agent within `patience_s` seconds.

        After a failure, `lost_reason` shows why.
        """
        try:
            connection = self._launcher.attach(self._host, self._folder, patience_s)
        except OSError:
            self._agent_ended = True
            self._finish(self._unreachable_reason(""))
        else:
            asyncio.run_coroutine_threadsafe(self._run(connection, patience_s), io_loop())

    # called in any thread

    def send(self, message: Any) -> None:
        """Send a message, after a reconnect if necessary. Drop it if the agent is lost."""
        with self._changed:
            if self._finished:
                return
            self._unreceived.append(messages.encode(message))
        io_loop().call_soon_threadsafe(self._flush)

    def post(self, question: str, arguments: dict[str, Any]) -> Question:
        """Send a question, and return immediately."""
        pending = Question()
        message = messages.Ask(f"{self._session}-{next(self._ids)}", question, arguments)
        pending.line = messages.encode(message)
        with self._changed:
            self._questions[message.id] = pending
        self.send(message)
        return pending

    def wait(self, reached: Callable[[], bool], deadline: float) -> bool:
        """Wait until `reached` returns True, called after each report; return whether it did."""
        with self._changed:
            while not reached():
                remaining_s = deadline - time.monotonic()
                if self._finished or remaining_s <= 0 or self._interrupted.is_set():
                    return False
                self._changed.wait(min(remaining_s, _POLL_S))
        return True

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the agent is lost or closed; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._finished, timeout_s)

    def log_tail(self) -> str:
        """Return the last lines from the VM that are not messages."""
        rest = self._connection.log_tail() if self._connection else []
        return "\n".join([*self._log_lines, *rest][-_MAX_LOG_LINES:])

    def close(self, timeout_s: float) -> None:
        """End the agent; return when it has ended, or after twice the time limit."""
        self._closing = True
        self.send(messages.End())
        if not self.join(timeout_s):
            self._leaving = True
            io_loop().call_soon_threadsafe(self._abort)
            self.join(timeout_s)

    def detach(self) -> None:
        """Close the connection; the agent continues to run."""

        def disconnect() -> None:
            if self._writer is not None:
                self._writer.close()

        self._leaving = True
        io_loop().call_soon_threadsafe(disconnect)
        self.join(_REAP_S)

    # in the I/O thread

    async def _run(self, connection: Connection, patience_s: float) -> None:
        may_retry = patience_s > 0
        reason = "its connection could not be served"  # this remains if `_serve` raises
        self._last_received = time.monotonic()
        deadline = self._last_received + patience_s
        try:
            while True:
                attached = await self._serve(connection)
                await self._reap(connection)
                if attached:
                    may_retry = True
                    deadline = max(self._last_received + RECONNECT_S, time.monotonic() + _RETRY_S)
                reason = self._unreachable_reason(self.log_tail())
                if not (self._closing or self._leaving or self.lost_reason):
                    reported = await asyncio.to_thread(
                        self._launcher.unavailable_reason, self._host
                    )
                    self.lost_reason = self.lost_reason or reported
                if self._agent_ended or self._leaving or self.lost_reason:
                    return
                if not may_retry or time.monotonic() > deadline:
                    return
                if not self.reconnecting:
                    _log.info("lost the connection to %s, reconnecting", self._name)
                self.reconnecting = True
                self._on_change()
                await asyncio.sleep(_PAUSE_S)
                remaining_s = deadline - time.monotonic()
                again = self._launcher.attach(self._host, self._folder, remaining_s)
                connection = Connection(
                    again.socket, again.process or connection.process, again.log or connection.log
                )
        except OSError:
            self._agent_ended = True
            reason = self._unreachable_reason("")
        except StartFailed as error:
            reason = str(error)
        finally:
            self._finish(self.lost_reason or reason)

    @property
    def _name(self) -> str:
        return self._host.shown if self._host else "this machine"

    def _unreachable_reason(self, log: str) -> str:
        """Return why the agent can no longer be reached; `log` is the end of its output."""
        name = self._name
        if self._closing or self._leaving:
            return f"the agent of {name} was stopped"
        if self._agent_ended:
            return f"the agent of {name} {'is gone' if self.code is None else exit_text(self.code)}"
        last = next((line for line in reversed(log.splitlines()) if line.strip()), "").strip()
        return f"{name} does not answer any more" + (f" ({last})" if last else "")

    async def _serve(self, connection: Connection) -> bool:
        """Serve a connection until it is closed; return whether the agent has answered."""
        self._connection = connection
        self._attached = False
        reader, writer = await asyncio.open_unix_connection(sock=connection.socket)
        self._writer = writer
        if self._leaving:
            # `detach` or `close` came before this connection, and could not close it
            writer.transport.abort()
            self._writer = None
            return False
        lines = messages.MessageReader(self._log_lines.append)
        silence_s = _SILENCE_S if self._host is not None else None
        writer.write(messages.encode(messages.Attach(self._session, silence_s)))
        began = pinged = time.monotonic()
        with contextlib.suppress(OSError):
            while True:
                if time.monotonic() - pinged >= _PING_S and self._attached:
                    pinged = time.monotonic()
                    if not writer.transport.get_write_buffer_size():
                        writer.write(messages.encode(messages.Ping()))
                try:
                    data = await asyncio.wait_for(reader.read(1 << 16), _PING_S)
                except asyncio.TimeoutError:
                    late = time.monotonic() - began > _ATTEMPT_S and not self._attached
                    if late and self.reconnecting and self._host is not None:
                        self._abort()
                    continue
                if not data:
                    break
                self._receive(lines.feed(data))
        writer.close()
        attached = self._attached
        self._attached = False
        self._writer = None
        return attached

    def _receive(self, received: list[Any]) -> None:
        self._last_received = time.monotonic()
        with self._changed:
            for message in received:
                if isinstance(message, messages.Answer):
                    if (question := self._questions.get(message.id)) and question.answer is None:
                        question.resolve(message)
                elif isinstance(message, messages.Pong):
                    self._confirm(message.received)
                else:
                    self._handle(message)
            self._changed.notify_all()
        if not all(isinstance(message, messages.Answer | messages.Pong) for message in received):
            self._on_change()

    def _handle(self, message: Any) -> None:
        if isinstance(message, messages.Hello):
            self._attached = True
            if self.reconnecting:
                _log.info("reconnected to %s", self._name)
            self.reconnecting = False
            self._confirm(message.received)
            self._sent = self._received
            # answers may have been lost with the previous connection
            lines = [
                question.line for question in self._questions.values() if question.answer is None
            ]
            unsent = set(lines) - set(self._unreceived)
            self._unreceived.extend(line for line in lines if line in unsent)
            io_loop().call_soon(self._flush)
        elif isinstance(message, messages.AgentEnded):
            self._agent_ended = True
            self.code = message.code
            self.lost_reason = message.why or self.lost_reason
            self._log_lines.extend(message.log.splitlines())
        elif isinstance(message, messages.Replaced):
            self.lost_reason = "another kernel has attached to this cluster"
        self._on_report(message)

    def _confirm(self, received: int) -> None:
        while self._unreceived and self._received < received:
            self._unreceived.popleft()
            self._received += 1

    def _flush(self) -> None:
        if self._writer is None or not self._attached:
            return
        with self._changed:
            for line in itertools.islice(self._unreceived, self._sent - self._received, None):
                self._writer.write(line)
                self._sent += 1

    async def _reap(self, connection: Connection) -> None:
        """Wait for the end of a connection's process.

        An agent on this machine may outlive the process.
        """
        if connection.process is None:
            return
        deadline = time.monotonic() + _REAP_S
        while (code := connection.process.poll()) is None and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if code is None and self._host is not None:
            connection.process.kill()
            code = connection.process.wait()
        if code is not None and not self._agent_ended:
            self._agent_ended = self._host is None
            self.code = code

    def _abort(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()  # close() would wait until all is sent
        if self._connection is not None and self._connection.process is not None:
            self._connection.process.kill()

    def _finish(self, reason: str) -> None:
        _log.info("the connection to %s has ended: %s", self._name, reason)
        with self._changed:
            self.lost_reason = reason
            self.reconnecting = False
            self._finished = True
            self._log_lines.extend(self._connection.close_log() if self._connection else [])
            self._changed.notify_all()
        self._on_change()
