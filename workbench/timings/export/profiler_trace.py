"""Reading of a trace of PyTorch's profiler event by event.

The reading thread shares the global interpreter lock with the notebook's cells. Parsing of all
events in one call would stop the kernel for seconds.
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
_MAX_VALUE_CHARACTERS = 1 << 24
"""Maximum number of characters of one value."""
_HIDDEN_ARGS = {"Record function id", "Ev Idx", "finished"}
_decode = json.JSONDecoder().raw_decode


class ProfilerEvent(NamedTuple):
    """One event of a thread.

    Attributes
    ----------
    phase
        ``"X"`` for a slice, ``"s"`` and ``"f"`` for the start and the end of an arrow.
    name
        Name of the event.
    category
        Category of the event, such as ``"cpu_op"`` or ``"kernel"``.
    pid, tid
        Process and thread, as the profiler numbers them.
    begin_ns, took_ns
        Start since the trace's base, and duration, on the profiler's clock.
    number
        Id of the arrow; None for a slice.
    args
        Arguments as JSON, because a string is smaller than a dictionary, and the garbage collector
        skips it.
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
    """The events of a trace, stored in columns.

    The garbage collector does not visit each event. With an object per event, each of its passes
    would stop the kernel for tenths of a second.
    """

    def __init__(self) -> None:
        self._columns: list[list[Any]] = [[] for _ in ProfilerEvent._fields]

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: int) -> ProfilerEvent:
        return ProfilerEvent(*(column[index] for column in self._columns))

    def __iter__(self) -> Iterator[ProfilerEvent]:
        return itertools.starmap(ProfilerEvent, zip(*self._columns, strict=True))

    def append(self, event: ProfilerEvent) -> None:
        """Add an event at the end."""
        for column, value in zip(self._columns, event, strict=True):
            column.append(value)

    def times_ns(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the starts and the durations, on the profiler's clock."""
        names = ("begin_ns", "took_ns")
        begins, durations = (self._columns[ProfilerEvent._fields.index(name)] for name in names)
        return np.array(begins, dtype=np.int64), np.array(durations, dtype=np.int64)


class ProfilerTrace(NamedTuple):
    """The content of a trace, with times on the profiler's clock.

    Attributes
    ----------
    events
        The events that are shown.
    base_ns
        The trace's base. The starts of the events are relative to it.
    marked_ns
        Starts of the slices `MARK`, as absolute times: the base is included.
    """

    events: ProfilerEvents
    base_ns: int
    marked_ns: list[int]


def read_trace(data: bytes) -> ProfilerTrace:
    """Return the content of a trace in gzip-compressed JSON.

    Raises
    ------
    UsageError
        The trace is damaged.

    Examples
    --------
    >>> event = {"ph": "X", "name": "aten::add", "pid": 1, "tid": 1, "ts": 2.0, "dur": 0.5}
    >>> data = gzip.compress(json.dumps({"traceEvents": [event]}).encode())
    >>> read_trace(data).events[0].took_ns
    500
    """
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
    for event in _events(_Json(data), facts):
        if event.get("ph") not in {"X", "s", "f"}:
            continue
        if event.get("name") == MARK:
            marked.append(round(event["ts"] * 1000))
        elif _is_shown(event):
            events.append(_to_event(event))
    base = int(facts.get("baseTimeNanoseconds", 0))  # This member may follow the events.
    return ProfilerTrace(events, base, [base + time_ns for time_ns in marked])


def _is_shown(event: dict[str, Any]) -> bool:
    if not isinstance(event.get("pid"), int) or not isinstance(event.get("tid"), int):
        return False  # These are marks of the profiler itself.
    # An unfinished event has no end. It is the optimizer's step during which the profile ends.
    return event.get("args", {}).get("finished") is not False


def _to_event(event: dict[str, Any]) -> ProfilerEvent:
    is_slice = event["ph"] == "X"
    args = {
        name: value for name, value in event.get("args", {}).items() if name not in _HIDDEN_ARGS
    }
    return ProfilerEvent(
        phase=event["ph"],
        name=event["name"] if is_slice else event.get("name", "flow"),
        category=event.get("cat", "cpu_op" if is_slice else "flow"),
        pid=event["pid"],
        tid=event["tid"],
        begin_ns=round(event["ts"] * 1000),
        took_ns=round(event.get("dur", 0) * 1000),
        number=event.get("id"),
        args=json.dumps(args) if args else "{}",
    )


def _events(text: _Json, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events, and store the trace's other members in `facts`."""
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
    """Reader of compressed JSON, value by value."""

    def __init__(self, data: bytes) -> None:
        file: Any = gzip.GzipFile(fileobj=io.BytesIO(data))
        self._file = io.TextIOWrapper(file, "utf-8", "replace")
        self._text = ""
        self._position = 0

    def value(self) -> Any:
        """Return the next value, and skip a comma after it."""
        while True:
            self._peek()
            try:
                value, end = _decode(self._text, self._position)
            except ValueError:
                end = len(self._text)  # The value is incomplete so far.
            if end < len(self._text):
                break
            self._read()
        self._position = end
        if self._peek() == ",":
            self._position += 1
        return value

    def skip(self, mark: str) -> None:
        """Skip a mark; raise `UsageError` if it does not follow."""
        if self._peek() != mark:
            raise UsageError("The trace of PyTorch's profiler is no JSON object. Profile again.")
        self._position += 1

    def next_is_not(self, mark: str) -> bool:
        """Return whether the next character is not `mark`.

        If it is, skip the mark and, after the end of a list, a comma.
        """
        if self._peek() != mark:
            return True
        self._position += 1
        if mark == "]" and self._peek() == ",":
            self._position += 1
        return False

    def _peek(self) -> str:
        """Skip white space, and return the next character without skipping it."""
        while True:
            while self._position < len(self._text) and self._text[self._position].isspace():
                self._position += 1
            if self._position < len(self._text):
                return self._text[self._position]
            self._read()

    def _read(self) -> None:
        chunk = self._file.read(_CHUNK)
        self._text = self._text[self._position :] + chunk
        self._position = 0
        if not chunk or len(self._text) > _MAX_VALUE_CHARACTERS:
            raise UsageError("The trace of PyTorch's profiler is damaged. Profile again.")
