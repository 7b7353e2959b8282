"""The messages of a live view, and when each kind is sent.

The receiving side is `labextension/src/live/protocol.ts`.
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
    KeyFigures,
    RowWindow,
    Status,
    TimingSource,
    TimingsReading,
)

MIME_TYPE = "application/vnd.gradient-workbench.timings+json"
COMM_TARGET = "workbench.timings"
VERSION = 2

WINDOW_EVERY_S = 1.0
"""How often a full window is sent, which also replaces lost messages."""

WINDOW_ROWS = 2048
"""Rows of a window (120 KB) during a run. Jupyter's server drops a kernel's
messages above 1 MB/s, and a view sends each message to two listeners."""

MAX_ROWS = 8192
"""Rows of the window at the end of a run, and after a burst."""

SAVED_ROWS = 2048
"""Rows saved in the notebook (160 KB as base64)."""


SUMMARY_EVERY_S = 0.2
SHARE = 0.02
"""Key figures and details are computed rarely enough to use at most this share of a core."""

T = TypeVar("T")


@dataclass(frozen=True)
class ViewMessage:
    """One message of the stream.

    Attributes
    ----------
    content
        Plain JSON values.
    buffers
        Column-major float32, little-endian; empty without rows.
    """

    content: dict[str, Any]
    buffers: list[bytes] = field(default_factory=list)


def make_snapshot(reading: TimingsReading, view_id: str, seq: int) -> dict[str, Any]:
    """Return everything that a view needs to draw, as JSON values.

    The view's comm is ``timings-<view_id>``; `seq` is the number of the last message sent.
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


class _RateLimited(Generic[T]):
    """A function with a cached result; the slower the function, the longer the cache is valid."""

    def __init__(self, function: Callable[[], T], min_interval_s: float) -> None:
        self._function = function
        self._min_interval_s = min_interval_s
        self._value: T | None = None
        self._due = float("-inf")

    def get(self, now: float, *, fresh: bool) -> T:
        """Return the last result; compute a new one if it is due or `fresh` is true."""
        if self._value is None or fresh or now >= self._due:
            began = time.perf_counter()
            self._value = self._function()
            cost_s = time.perf_counter() - began
            self._due = now + max(self._min_interval_s, cost_s / SHARE)
        return self._value


class Composer:
    """The choice of the next message: the new rows, a full window, or no message."""

    def __init__(self, source: TimingSource) -> None:
        self._source = source
        self._summary = _RateLimited(source.summary, SUMMARY_EVERY_S)
        self._details = _RateLimited(source.details, WINDOW_EVERY_S)
        self._fresh = True
        self._seq = 0
        self._cursor = 0
        self._last_window_cursor = -1
        self._last_window_at = float("-inf")
        self._sent_status: Status | None = None

    @property
    def seq(self) -> int:
        """Number of the last message."""
        return self._seq

    def next(self, now: float) -> ViewMessage | None:
        """Return the next message, or None if nothing has changed; `now` is a monotonic time."""
        # The status is read first, because rows that arrive after a cell's end do not belong to it.
        status = self._source.status()
        changed = status != self._sent_status
        self._fresh = changed or status.state == "ended"
        if self._sent_status is None or status.run != self._sent_status.run:
            self._cursor = 0
            self._last_window_cursor = -1
        new_rows = self._source.since(self._cursor)
        self._sent_status = status
        window_is_due = (
            self._window_due(status, changed, new_rows, now) if new_rows is not None else True
        )
        if new_rows is None or window_is_due or new_rows.rows > MAX_ROWS:
            return self._compose_window(status, now)
        if new_rows.rows:
            self._cursor = new_rows.cursor
            return self._compose("delta", status, new_rows, now)
        return self._compose("state", status, None, now) if changed else None

    def _window_due(self, status: Status, changed: bool, new_rows: RowWindow, now: float) -> bool:
        """Return whether to send a full window instead of only the new rows."""
        has_unsent_rows = new_rows.cursor != self._last_window_cursor
        if status.state == "ended":
            return has_unsent_rows or changed
        return (
            has_unsent_rows and new_rows.cursor > 0 and now - self._last_window_at >= WINDOW_EVERY_S
        )

    def _compose_window(self, status: Status, now: float) -> ViewMessage:
        # At least twice the rows since the last window, so that windows overlap.
        rows = max(WINDOW_ROWS, 2 * (self._cursor - max(0, self._last_window_cursor)))
        rows = MAX_ROWS if status.state == "ended" else min(rows, MAX_ROWS)
        window = self._source.window(rows)
        self._cursor = self._last_window_cursor = window.cursor
        self._last_window_at = now
        return self._compose("window", status, window, now)

    def _compose(
        self, kind: str, status: Status, window: RowWindow | None, now: float
    ) -> ViewMessage:
        self._seq += 1
        summary = self._summary.get(now, fresh=self._fresh)
        if window is not None and window.rows:
            summary = replace(
                summary, iteration=float(window.data[COLUMNS.index("iteration")].max())
            )
        content = {"type": kind, **_status_fields(status, summary, self._seq)}
        if window is None:
            return ViewMessage(content)
        if kind == "window":
            content["details"] = encode(self._details.get(now, fresh=self._fresh))
        return _with_rows(content, window)


def answer(source: TimingSource, request: dict[str, Any]) -> ViewMessage | None:
    """Answer a page's request; return None if the request is not valid.

    The requests are:

    - ``{"type": "details", "first": 10, "last": 20}``: the cost of a range of iterations
    - ``{"type": "rows", "before": 10}``: older rows
    - ``{"type": "explain"}``: what slows down the newest iterations
    - ``{"type": "profile", "seconds": 5}``: profile the ranks
    - ``{"type": "runs"}``: the names of stored runs
    - ``{"type": "earlier", "name": "first"}``: the iteration times of a stored run
    """
    status = source.status()
    content = {"type": "answer", "run": status.run, "asked": request}
    try:
        numbers = {
            name: int(request[name])
            for name in ("first", "last", "before", "seconds")
            if name in request
        }
    except (TypeError, ValueError, OverflowError):
        return None
    if request.get("type") == "details" and {"first", "last"} <= numbers.keys():
        details: Details = source.details(numbers["first"], numbers["last"])
        return ViewMessage({**content, "details": encode(details)})
    if request.get("type") == "explain":
        return ViewMessage({**content, "explanation": encode(source.explain())})
    if request.get("type") == "profile" and "seconds" in numbers:
        return ViewMessage({**content, "refusal": source.profile(numbers["seconds"])})
    if request.get("type") == "runs":
        return ViewMessage({**content, "runs": encode(source.earlier_runs())})
    if request.get("type") == "earlier" and isinstance(request.get("name"), str):
        return ViewMessage({**content, "earlier": encode(source.earlier_run(request["name"]))})
    if request.get("type") == "rows" and "before" in numbers:
        return _with_rows(content, source.before(numbers["before"], MAX_ROWS))
    return None


def _with_rows(content: dict[str, Any], window: RowWindow) -> ViewMessage:
    layout = {"columns": list(COLUMNS), "rows": window.rows}
    return ViewMessage(content | layout, [_pack(window)])


def _status_fields(status: Status, summary: KeyFigures, seq: int) -> dict[str, Any]:
    return {"seq": seq, **encode(status), "summary": encode(summary)}


def _pack(window: RowWindow) -> bytes:
    """Return the data of a window as little-endian float32, one column after another."""
    return window.data.astype("<f4", order="C", copy=False).tobytes()
