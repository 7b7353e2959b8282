"""The kernel's connection to the agent of a VM, which reconnects automatically.

Each channel is a task of the I/O thread (`threads.io_loop`). Its callbacks run in that thread,
and must not block; its public methods are called in other threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
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

GRACE_S = 15.0
"""An agent that is not kept ends after this time without a kernel; a reconnect takes less."""
RECONNECT_S = 8.0
"""A VM is lost if its connection is closed and nothing has arrived from it for this time."""
_RETRY_S = 4.0
"""The least time for reconnecting: this machine may have been suspended meanwhile."""
_PAUSE_S = 0.2
_ATTEMPT_S = 12.0
"""How long a relay may take to connect, once its VM answers."""
_PING_S = 1.0
_SILENCE_S = 45.0
"""After this time without a message, the agent of a VM assumes that its kernel has ended."""
_REAP_S = 1.0
_POLL_S = 0.2
"""How long a wait takes to notice an interrupt."""
_SAID_LINES = 60


class Question:
    """A question to an agent; if it is deleted, its answer is dropped.

    Attributes
    ----------
    asked
        When, by `time.monotonic`.
    answer
        The answer, or why there is none; None until it arrives.
    took_s
        Seconds until the answer arrived.
    line
        The encoded question, which is sent again if its answer was lost.
    """

    def __init__(self) -> None:
        self.asked = time.monotonic()
        self.answer: messages.Answer | None = None
        self.took_s = float("inf")
        self.line = b""

    def take(self, answer: messages.Answer) -> None:
        """Keep the answer."""
        self.took_s = time.monotonic() - self.asked
        self.answer = answer


class AgentChannel:
    """Sends messages to an agent, each once and in order, and receives its reports.

    Parameters
    ----------
    launcher, host, folder
        How the agent is reached, on which VM, and the folder of its socket.
    take
        Called in the I/O thread with each report.
    on_change
        Called in the I/O thread after reports, and when the connection is lost or made again.
    interrupted
        While it is set, nothing is waited for; None for never.

    Attributes
    ----------
    reconnecting
        Whether the connection has been lost and is being made again.
    code
        Exit status of the agent or of the relay, once it is known.
    why_lost
        Why the agent can no longer be reached; empty while it can.
    """

    def __init__(
        self,
        launcher: Launcher,
        host: Host | None,
        folder: Path,
        take: Callable[[Any], None],
        on_change: Callable[[], None],
        interrupted: threading.Event | None,
    ) -> None:
        self._launcher, self._host, self._folder = launcher, host, folder
        self._take, self._on_change = take, on_change
        self._interrupted = threading.Event() if interrupted is None else interrupted
        self._session = secrets.token_hex(8)
        self._ids = itertools.count()
        self._questions: weakref.WeakValueDictionary[str, Question] = weakref.WeakValueDictionary()
        self._unreceived: deque[bytes] = deque()
        """Messages that the agent has not confirmed; `_received` is the number of the first."""
        self._received = self._sent = 0
        self._said: deque[str] = deque(maxlen=_SAID_LINES)
        self._connection: Connection | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._attached = self._agent_ended = False
        self._closing = self._leaving = self._finished = False
        self._heard = 0.0
        self._changed = threading.Condition()
        self.reconnecting = False
        self.code: int | None = None
        self.why_lost = ""

    def start(self, grace_s: float, *, keep: bool) -> None:
        """Start the agent and connect to it; if that fails, `said` and `code` show why.

        Raise `StartFailed` if it cannot be tried.
        """
        connection = self._launcher.start(self._host, self._folder, grace_s, keep=keep)
        asyncio.run_coroutine_threadsafe(self._run(connection, 0.0), io_loop())

    def attach(self, patience_s: float) -> None:
        """Connect to a running agent within `patience_s`; after a failure, `why_lost` shows why."""
        try:
            connection = self._launcher.attach(self._host, self._folder, patience_s)
        except OSError:
            self._agent_ended = True
            self._finish(self._why(""))
        else:
            asyncio.run_coroutine_threadsafe(self._run(connection, patience_s), io_loop())

    # called in any thread

    def send(self, message: Any) -> None:
        """Send a message, after a reconnect if necessary; drop it if the agent is lost."""
        with self._changed:
            if self._finished:
                return
            self._unreceived.append(messages.encode(message))
        io_loop().call_soon_threadsafe(self._flush)

    def post(self, question: str, arguments: dict[str, Any]) -> Question:
        """Send a question, and return immediately."""
        asked = Question()
        message = messages.Ask(f"{self._session}-{next(self._ids)}", question, arguments)
        asked.line = messages.encode(message)
        with self._changed:
            self._questions[message.id] = asked
        self.send(message)
        return asked

    def wait(self, reached: Callable[[], bool], deadline: float) -> bool:
        """Wait until `reached` returns True after a report; return whether it did."""
        with self._changed:
            while not reached():
                left = deadline - time.monotonic()
                if self._finished or left <= 0 or self._interrupted.is_set():
                    return False
                self._changed.wait(min(left, _POLL_S))
        return True

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the agent is lost or closed; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._finished, timeout_s)

    def said(self) -> str:
        """Return the last lines from the VM that are not messages."""
        rest = self._connection.log_tail() if self._connection else []
        return "\n".join([*self._said, *rest][-_SAID_LINES:])

    def close(self, timeout_s: float) -> None:
        """End the agent; return when it has ended, or after twice the time limit."""
        self._closing = True
        self.send(messages.End())
        if not self.join(timeout_s):
            self._leaving = True
            io_loop().call_soon_threadsafe(self._abort)
            self.join(timeout_s)

    def detach(self) -> None:
        """Close the connection; the agent goes on."""

        def hang_up() -> None:
            if self._writer is not None:
                self._writer.close()

        self._leaving = True
        io_loop().call_soon_threadsafe(hang_up)
        self.join(_REAP_S)

    # in the I/O thread

    async def _run(self, connection: Connection, patience_s: float) -> None:
        may_retry, why = patience_s > 0, "its connection could not be served"  # if it raises
        self._heard = time.monotonic()
        deadline = self._heard + patience_s
        try:
            while True:
                attached = await self._serve(connection)
                await self._reap(connection)
                if attached:
                    may_retry = True
                    deadline = max(self._heard + RECONNECT_S, time.monotonic() + _RETRY_S)
                why = self._why(self.said())
                if not (self._closing or self._leaving or self.why_lost):
                    gone = await asyncio.to_thread(self._launcher.unavailable_reason, self._host)
                    self.why_lost = self.why_lost or gone
                if self._agent_ended or self._leaving or self.why_lost:
                    return
                if not may_retry or time.monotonic() > deadline:
                    return
                self.reconnecting = True
                self._on_change()
                await asyncio.sleep(_PAUSE_S)
                left_s = deadline - time.monotonic()
                again = self._launcher.attach(self._host, self._folder, left_s)
                connection = Connection(
                    again.socket, again.process or connection.process, again.log or connection.log
                )
        except OSError:
            self._agent_ended = True
            why = self._why("")
        except StartFailed as error:
            why = str(error)
        finally:
            self._finish(self.why_lost or why)

    def _why(self, said: str) -> str:
        """Return why the agent can no longer be reached."""
        name = self._host.shown if self._host else "this machine"
        if self._closing or self._leaving:
            return f"the agent of {name} was stopped"
        if self._agent_ended:
            return f"the agent of {name} {'is gone' if self.code is None else exit_text(self.code)}"
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "").strip()
        return f"{name} does not answer any more" + (f" ({last})" if last else "")

    async def _serve(self, connection: Connection) -> bool:
        """Serve a connection until it is closed; return whether the agent has answered."""
        self._connection, self._attached = connection, False
        reader, writer = await asyncio.open_unix_connection(sock=connection.socket)
        self._writer = writer
        if self._leaving:  # there was no connection that `detach` or `close` could have closed
            writer.transport.abort()
            self._writer = None
            return False
        lines = messages.MessageReader(self._said.append)
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
        attached, self._attached, self._writer = self._attached, False, None
        return attached

    def _receive(self, received: list[Any]) -> None:
        self._heard = time.monotonic()
        with self._changed:
            for message in received:
                if isinstance(message, messages.Answer):
                    if (question := self._questions.get(message.id)) and question.answer is None:
                        question.take(message)
                elif isinstance(message, messages.Pong):
                    self._confirm(message.received)
                else:
                    self._take_in(message)
            self._changed.notify_all()
        if not all(isinstance(message, messages.Answer | messages.Pong) for message in received):
            self._on_change()

    def _take_in(self, message: Any) -> None:
        if isinstance(message, messages.Hello):
            self._attached, self.reconnecting = True, False
            self._confirm(message.received)
            self._sent = self._received
            # answers may have been lost with the previous connection
            lines = [one.line for one in self._questions.values() if one.answer is None]
            again = set(lines) - set(self._unreceived)
            self._unreceived.extend(line for line in lines if line in again)
            io_loop().call_soon(self._flush)
        elif isinstance(message, messages.AgentEnded):
            self._agent_ended, self.code = True, message.code
            self.why_lost = message.why or self.why_lost
            self._said.extend(message.log.splitlines())
        elif isinstance(message, messages.Replaced):
            self.why_lost = "another kernel has attached to this cluster"
        self._take(message)

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
        """Wait for the end of a connection's process; an agent of this machine may go on."""
        if connection.process is None:
            return
        deadline = time.monotonic() + _REAP_S
        while (code := connection.process.poll()) is None and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if code is None and self._host is not None:
            connection.process.kill()
            code = connection.process.wait()
        if code is not None and not self._agent_ended:
            self._agent_ended, self.code = self._host is None, code

    def _abort(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()  # unlike close(), does not wait until all is sent
        if self._connection is not None and self._connection.process is not None:
            self._connection.process.kill()

    def _finish(self, why: str) -> None:
        with self._changed:
            self.why_lost, self.reconnecting, self._finished = why, False, True
            self._said.extend(self._connection.close_log() if self._connection else [])
            self._changed.notify_all()
        self._on_change()
