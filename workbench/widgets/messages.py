"""What a live view sends: snapshots and messages, and when it sends which.

The other side is `labextension/src/live/protocol.ts`.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from workbench.resources.codec import encode
from workbench.widgets.source import (
    COLUMNS,
    Details,
    Reading,
    Status,
    Summary,
    TimingSource,
    Window,
)

MIME_TYPE = "application/vnd.gradient-workbench.timings+json"
COMM_TARGET = "workbench.timings"
VERSION = 2

WINDOW_EVERY_S = 1.0
"""A whole window comes this often: it mends what was lost on the way."""

WINDOW_ROWS = 2048
"""Rows of a window (120 KB) while a run goes on. Jupyter's server drops a kernel's
messages above 1 MB/s, and a view sends each to two listeners."""

MOST_ROWS = 8192
"""Rows of the window that ends a run, and of one after a burst."""

SAVED_ROWS = 2048
"""Rows that are saved in the notebook (160 KB as base64)."""


SUMMARY_EVERY_S = 0.2
SHARE = 0.02
"""Key figures and details are taken so seldom that they cost at most this much of a core."""

T = TypeVar("T")


@dataclass(frozen=True)
class Message:
    """One message of the stream.

    Attributes
    ----------
    content
        Plain JSON values.
    buffers
        Column-major float32, little-endian; empty where there are no rows.
    """

    content: dict[str, Any]
    buffers: list[bytes] = field(default_factory=list)


def make_snapshot(reading: Reading, view_id: str, seq: int) -> dict[str, Any]:
    """Everything that a view needs to draw, as plain JSON values.

    Parameters
    ----------
    reading
        What to show.
    view_id
        The view's id; its comm is ``timings-<view_id>``.
    seq
        Number of the last message sent.
    """
    window = reading.window
    return {
        "version": VERSION,
        "view_id": view_id,
        **_status_fields(reading.status, reading.summary, seq),
        "details": encode(reading.details),
        "window": {
            "columns": list(COLUMNS),
            "rows": window.rows,
            "data": base64.b64encode(_pack(window)).decode("ascii"),
        },
    }


class _Paced(Generic[T]):
    """An answer that is not asked for more often than it is worth."""

    def __init__(self, take: Callable[[], T], least_s: float) -> None:
        self._take = take
        self._least_s = least_s
        self._value: T | None = None
        self._due = float("-inf")

    def get(self, now: float, *, fresh: bool) -> T:
        """Give the last answer, or a new one where that is old, or where it must be fresh."""
        if self._value is None or fresh or now >= self._due:
            began = time.perf_counter()
            self._value = self._take()
            cost = time.perf_counter() - began
            self._due = now + max(self._least_s, cost / SHARE)
        return self._value


class Composer:
    """Decides what the next message is: rows that came, a whole window, or nothing.

    Parameters
    ----------
    source
        What to tell about.
    """

    def __init__(self, source: TimingSource) -> None:
        self._source = source
        self._summary = _Paced(source.summary, SUMMARY_EVERY_S)
        self._details = _Paced(source.details, WINDOW_EVERY_S)
        self._fresh = True
        self._seq = 0
        self._cursor = 0
        self._windowed_cursor = -1
        self._windowed_at = float("-inf")
        self._sent: Status | None = None

    @property
    def seq(self) -> int:
        """Number of the last message."""
        return self._seq

    def next(self, now: float) -> Message | None:
        """Compose the next message; None where there is nothing to tell.

        Parameters
        ----------
        now
            Seconds on a monotonic clock.
        """
        # The status first: rows that come after an end was read are of no end.
        status = self._source.status()
        changed = status != self._sent
        self._fresh = changed or status.state == "ended"
        if self._sent is None or status.run != self._sent.run:
            self._cursor, self._windowed_cursor = 0, -1
        news = self._source.since(self._cursor)
        self._sent = status
        if news is None or news.rows > MOST_ROWS or self._window_due(status, changed, news, now):
            return self._compose_window(status, now)
        if news.rows:
            self._cursor = news.cursor
            return self._compose("delta", status, news, now)
        return self._compose("state", status, None, now) if changed else None

    def _window_due(self, status: Status, changed: bool, news: Window, now: float) -> bool:
        unseen = news.cursor != self._windowed_cursor
        if status.state == "ended":
            return unseen or changed
        return unseen and news.cursor > 0 and now - self._windowed_at >= WINDOW_EVERY_S

    def _compose_window(self, status: Status, now: float) -> Message:
        # At least twice what came since the last one, so that each overlaps it.
        rows = max(WINDOW_ROWS, 2 * (self._cursor - max(0, self._windowed_cursor)))
        rows = MOST_ROWS if status.state == "ended" else min(rows, MOST_ROWS)
        window = self._source.window(rows)
        self._cursor = self._windowed_cursor = window.cursor
        self._windowed_at = now
        return self._compose("window", status, window, now)

    def _compose(self, kind: str, status: Status, window: Window | None, now: float) -> Message:
        self._seq += 1
        summary = self._summary.get(now, fresh=self._fresh)
        if window is not None and window.rows:
            summary = replace(summary, iteration=float(window.data[0].max()))
        content = {"type": kind, **_status_fields(status, summary, self._seq)}
        if window is None:
            return Message(content)
        if kind == "window":
            content["details"] = encode(self._details.get(now, fresh=self._fresh))
        return _with_rows(content, window)


def answer(source: TimingSource, request: dict[str, Any]) -> Message | None:
    """Answer what a page asks for; None where it asks for nothing that is known here.

    Parameters
    ----------
    source
        What is shown.
    request
        ``{"type": "details", "first": 10, "last": 20}`` asks what a stretch of
        iterations cost, ``{"type": "rows", "before": 10}`` for older rows.
    """
    status = source.status()
    content = {"type": "answer", "run": status.run, "asked": request}
    try:
        numbers = {
            name: int(request[name]) for name in ("first", "last", "before") if name in request
        }
    except (TypeError, ValueError, OverflowError):
        return None
    if request.get("type") == "details" and {"first", "last"} <= numbers.keys():
        details: Details = source.details(numbers["first"], numbers["last"])
        return Message({**content, "details": encode(details)})
    if request.get("type") == "rows" and "before" in numbers:
        return _with_rows(content, source.before(numbers["before"], MOST_ROWS))
    return None


def _with_rows(content: dict[str, Any], window: Window) -> Message:
    more = {"columns": list(COLUMNS), "rows": window.rows}
    return Message(content | more, [_pack(window)])


def _status_fields(status: Status, summary: Summary, seq: int) -> dict[str, Any]:
    return {"seq": seq, **encode(status), "summary": encode(summary)}


def _pack(window: Window) -> bytes:
    return window.data.astype("<f4", order="C", copy=False).tobytes()
