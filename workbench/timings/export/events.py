"""Writing a JSON trace event by event, so that its length takes no memory.

The format: "Trace Event Format" (Duffy et al., Google), which Perfetto's UI and
its trace processor read; times there are microseconds.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from workbench.errors import UsageError

_encode = json.JSONEncoder(allow_nan=False).encode
"""Made once: `json.dumps` would make one for every event."""


class EventWriter:
    """Appends events to an open file; made by `open_trace`.

    Parameters
    ----------
    file
        Where to.
    head
        The trace's other members, each on a line of its own: readers that
        look for one of them need not parse the whole.
    """

    def __init__(self, file: IO[str], head: dict[str, Any]) -> None:
        self._file = file
        file.write("{\n")
        for name, value in head.items():
            file.write(f"{json.dumps(name)}: {json.dumps(value)},\n")
        file.write('"traceEvents": [\n')
        self._between = ""

    def add(self, **event: Any) -> None:
        """Write one event; members that are None are left out."""
        known = {name: value for name, value in event.items() if value is not None}
        self._file.write(self._between + _encode(known))
        self._between = ",\n"

    def name(self, kind: str, pid: int, name: str, tid: int = 0, sort: int | None = None) -> None:
        """Name a ``"process"`` or a ``"thread"``, and give it its place among others."""
        self.add(ph="M", name=f"{kind}_name", pid=pid, tid=tid, args={"name": name})
        if sort is not None:
            args = {"sort_index": sort}
            self.add(ph="M", name=f"{kind}_sort_index", pid=pid, tid=tid, args=args)

    def end(self) -> None:
        """Complete the file."""
        self._file.write("\n]}\n")


@contextlib.contextmanager
def open_trace(path: Path, head: dict[str, Any]) -> Iterator[EventWriter]:
    """Write a trace to `path`, compressed where that ends in ``.gz``; whole, or not at all.

    Raises
    ------
    UsageError
        Its folder is not there.
    """
    if not path.parent.is_dir():
        raise UsageError(
            f"{path}: the folder {path.parent} does not exist. Create it, or choose another."
        )
    part = path.with_name(f"{path.name}.part")
    try:
        with (
            gzip.open(part, "wt", compresslevel=4, encoding="utf-8")
            if path.suffix == ".gz"
            else part.open("w", encoding="utf-8")
        ) as file:
            writer = EventWriter(file, head)
            yield writer
            writer.end()
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
