"""Orders to the agent of a VM, and what it reports and answers."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from workbench.cluster.child import Child
from workbench.errors import WireError
from workbench.wire.lines import LineReader, encode_line

_POLL_S = 0.2
"""How long a wait takes to notice an interrupt."""


class Question:
    """What an agent was asked; the answer to one that nobody holds any more is dropped.

    Attributes
    ----------
    asked
        When, on the clock of `time.monotonic`.
    answer
        ``{"answer": ...}`` or ``{"error": ...}``, or None as long as there is none.
    took_s
        Seconds until the answer was there.
    """

    def __init__(self) -> None:
        self.asked = time.monotonic()
        self.answer: dict[str, Any] | None = None
        self.took_s = float("inf")

    def take(self, answer: dict[str, Any]) -> None:
        """Keep the answer."""
        self.took_s = time.monotonic() - self.asked
        self.answer = answer


class AgentChannel:
    """Both directions of what an agent's process writes and reads.

    Parameters
    ----------
    child
        The process.
    said
        Called with each line that is no report.
    take
        Called, in a thread, with each report: kind and content.
    on_change
        Called, in a thread, after reports were taken.
    on_end
        Called, in a thread, when nothing more will come.
    interrupted
        While it is set, nothing is waited for.
    """

    def __init__(
        self,
        child: Child,
        *,
        said: Callable[[str], None],
        take: Callable[[str, dict[str, Any]], None],
        on_change: Callable[[], None],
        on_end: Callable[[], None],
        interrupted: threading.Event | None = None,
    ) -> None:
        self._child = child
        self._said = said
        self._take = take
        self._on_change = on_change
        self._on_end = on_end
        # an answer to an earlier kernel's question may still come over a kept agent's socket
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._questions: weakref.WeakValueDictionary[str, Question] = weakref.WeakValueDictionary()
        self._ended = False
        self._interrupted = threading.Event() if interrupted is None else interrupted
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._listen, name="workbench-agent", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def order(self, kind: str, **content: Any) -> None:
        """Send an order; where nobody reads it, the end tells."""
        try:
            self._child.write(encode_line(kind, content))
        except (OSError, ValueError):
            return

    def ask(self, kind: str, of: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """Ask, and return the answer or the error told; None where neither came."""
        question = self.post(kind, of)
        self.wait(lambda: question.answer is not None, time.monotonic() + timeout_s)
        return question.answer

    def post(self, kind: str, of: dict[str, Any]) -> Question:
        """Ask, and return at once."""
        question = Question()
        number = f"{self._prefix}-{next(self._numbers)}"
        self._questions[number] = question
        self.order(kind, id=number, of=of)
        return question

    def wait(self, reached: Callable[[], bool], deadline: float) -> bool:
        """Wait until reports have brought something about; whether they have."""
        with self._changed:
            while not reached():
                left = deadline - time.monotonic()
                if self._ended or left <= 0 or self._interrupted.is_set():
                    return False
                self._changed.wait(min(left, _POLL_S))
        return True

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until nothing more will come."""
        self._thread.join(timeout_s)

    def _listen(self) -> None:
        reader = LineReader(self._said)
        while data := self._child.read():
            try:
                messages = reader.feed(data)
            except WireError as error:
                self._said(str(error))
                continue
            reports = [message for message in messages if "id" not in message[1]]
            with self._changed:
                for _, content in messages:
                    question = self._questions.get(str(content.get("id")))
                    if question is not None:
                        question.take(content)
                for kind, content in reports:
                    self._take(kind, content)
                self._changed.notify_all()
            if reports:
                self._on_change()
        with self._changed:
            self._ended = True
            self._on_end()
            self._changed.notify_all()
