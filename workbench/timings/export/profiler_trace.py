"""Reads a trace of PyTorch's profiler event by event.

The thread that reads it shares Python's lock with the notebook's cells: parsing all events in one
call would stop the kernel for seconds.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.errors import UsageError
from workbench.wire.profile_messages import MARK

_CHUNK = 1 << 18
_LONGEST = 1 << 24
"""Most characters of one value."""
_HIDDEN = {"Record function id", "Ev Idx", "finished"}
_decode = json.JSONDecoder().raw_decode


class ProfilerEvent(NamedTuple):
    """One event of a thread.

    Attributes
    ----------
    phase
        ``"X"`` for a slice, ``"s"`` and ``"f"`` for the ends of an arrow.
    begin_ns, took_ns
        On the profiler's clock, the begin since the trace's base.
    number
        The id of the arrow; None for a slice.
    args
        As JSON: a string is smaller than a dictionary, and the garbage collector skips it.
    """

    phase: str
    name: str
    category: str
    pid: int
    tid: int
    begin_ns: int
    took_ns: int
    number: Any
    args: str


class ProfilerEvents:
    """The events of a trace, in columns: the garbage collector need not visit each event.

    With an object per event, each of its passes would stop the kernel for tenths of a second.
    """

    def __init__(self) -> None:
        self._columns: list[list[Any]] = [[] for _ in ProfilerEvent._fields]

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, place: int) -> ProfilerEvent:
        return ProfilerEvent(*(column[place] for column in self._columns))

    def __iter__(self) -> Iterator[ProfilerEvent]:
        return itertools.starmap(ProfilerEvent, zip(*self._columns, strict=True))

    def append(self, event: ProfilerEvent) -> None:
        """Add an event at the end."""
        for column, value in zip(self._columns, event, strict=True):
            column.append(value)

    def times_ns(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the begins and the durations, on the profiler's clock."""
        names = ("begin_ns", "took_ns")
        begins, took = (self._columns[ProfilerEvent._fields.index(name)] for name in names)
        return np.array(begins, dtype=np.int64), np.array(took, dtype=np.int64)


class ProfilerTrace(NamedTuple):
    """The events that are shown, and the times of the slices `MARK`, on the profiler's clock.

    Attributes
    ----------
    base_ns
        What must be added to the begins of events; it is added in `marked_ns`.
    """

    events: ProfilerEvents
    base_ns: int
    marked_ns: list[int]


def read_trace(data: bytes) -> ProfilerTrace:
    """Return the content of a trace in gzip-compressed JSON; raise UsageError if it is damaged."""
    try:
        return _read_trace(data)
    except (OSError, EOFError, zlib.error, ValueError, TypeError, LookupError,
            AttributeError, RecursionError) as error:  # fmt: skip
        raise UsageError(
            f"The trace of PyTorch's profiler is damaged ({type(error).__name__}: {error}). "
            "Profile again."
        ) from error


def _read_trace(data: bytes) -> ProfilerTrace:
    facts: dict[str, Any] = {}
    events = ProfilerEvents()
    marked: list[int] = []
    for one in _events(_Json(data), facts):
        if one.get("ph") not in {"X", "s", "f"}:
            continue
        if one.get("name") == MARK:
            marked.append(round(one["ts"] * 1000))
        elif _is_shown(one):
            events.append(_event(one))
    base = int(facts.get("baseTimeNanoseconds", 0))  # may follow the events
    return ProfilerTrace(events, base, [base + at for at in marked])


def _is_shown(event: dict[str, Any]) -> bool:
    if not isinstance(event.get("pid"), int) or not isinstance(event.get("tid"), int):
        return False  # the profiler's own marks
    # one that has not finished has no end: the optimizer's step in which the profile ends
    return event.get("args", {}).get("finished") is not False


def _event(one: dict[str, Any]) -> ProfilerEvent:
    is_slice = one["ph"] == "X"
    args = {name: value for name, value in one.get("args", {}).items() if name not in _HIDDEN}
    return ProfilerEvent(
        phase=one["ph"],
        name=one["name"] if is_slice else one.get("name", "flow"),
        category=one.get("cat", "cpu_op" if is_slice else "flow"),
        pid=one["pid"],
        tid=one["tid"],
        begin_ns=round(one["ts"] * 1000),
        took_ns=round(one.get("dur", 0) * 1000),
        number=one.get("id"),
        args=json.dumps(args) if args else "{}",
    )


def _events(text: _Json, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events, and add the trace's other members to `facts`."""
    text.skip("{")
    while text.next_is_not("}"):
        name = text.value()
        text.skip(":")
        if name != "traceEvents":
            facts[name] = text.value()
            continue
        text.skip("[")
        while text.next_is_not("]"):
            yield text.value()


class _Json:
    """Reads compressed JSON value by value."""

    def __init__(self, data: bytes) -> None:
        file: Any = gzip.GzipFile(fileobj=io.BytesIO(data))
        self._file = io.TextIOWrapper(file, "utf-8", "replace")
        self._text, self._at = "", 0

    def value(self) -> Any:
        """Return the next value, and pass a comma after it."""
        while True:
            self._peek()
            try:
                value, end = _decode(self._text, self._at)
            except ValueError:
                end = len(self._text)  # incomplete so far
            if end < len(self._text):
                break
            self._read()
        self._at = end
        if self._peek() == ",":
            self._at += 1
        return value

    def skip(self, mark: str) -> None:
        """Pass a mark that must follow."""
        if self._peek() != mark:
            raise UsageError("The trace of PyTorch's profiler is no JSON object. Profile again.")
        self._at += 1

    def next_is_not(self, mark: str) -> bool:
        """Return whether something else follows than a mark; pass the mark and a comma after it."""
        if self._peek() != mark:
            return True
        self._at += 1
        if mark == "]" and self._peek() == ",":
            self._at += 1
        return False

    def _peek(self) -> str:
        """Pass white space, and return the next character."""
        while True:
            while self._at < len(self._text) and self._text[self._at].isspace():
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            self._read()

    def _read(self) -> None:
        more = self._file.read(_CHUNK)
        self._text, self._at = self._text[self._at :] + more, 0
        if not more or len(self._text) > _LONGEST:
            raise UsageError("The trace of PyTorch's profiler is damaged. Profile again.")
