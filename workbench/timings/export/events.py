"""Writes a JSON trace event by event, with little memory.

The format is the "Trace Event Format" (Duffy et al., Google), which Perfetto's UI and its trace
processor read; its times are microseconds.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from workbench.errors import UsageError, shortened
from workbench.timings.runs import FolderLike, checked_path

_encode = json.JSONEncoder(allow_nan=False).encode
"""Created once: `json.dumps` would create an encoder for every event."""
_SHOWN = 300
"""Most characters of a path in an error message."""


class EventWriter:
    """Appends events to an open file, that of `path`; created by `open_trace`.

    The trace's other members, `head`, are written on a line each, so that a reader can find one
    without parsing the whole file.
    """

    def __init__(self, file: IO[str], path: Path, head: dict[str, Any]) -> None:
        self._file = file
        self._path = path
        members = (f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in head.items())
        self._write("".join(("{\n", *members, '"traceEvents": [\n')))
        self._between = ""

    def add(self, **event: Any) -> None:
        """Write one event, without the members that are None."""
        known = {name: value for name, value in event.items() if value is not None}
        self._write(self._between + _encode(known))
        self._between = ",\n"

    def name(self, kind: str, pid: int, name: str, tid: int = 0, sort: int | None = None) -> None:
        """Name a ``"process"`` or a ``"thread"``, and set its position."""
        self.add(ph="M", name=f"{kind}_name", pid=pid, tid=tid, args={"name": name})
        if sort is not None:
            args = {"sort_index": sort}
            self.add(ph="M", name=f"{kind}_sort_index", pid=pid, tid=tid, args=args)

    def end(self) -> None:
        """Write the end of the trace."""
        self._write("\n]}\n")

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError as error:
            raise _not_written(self._path, error) from error


def export_path(path: FolderLike, name: str) -> Path:
    """Return an argument `name` as a path, with the user's home for ``~``.

    Raises
    ------
    UsageError
        It is not a path, or empty.
    """
    text = checked_path(path, name)
    if not text:
        raise UsageError(f"{name}='': no path. Name what to write, such as {name}='exported'.")
    with contextlib.suppress(RuntimeError):  # no such user
        return Path(text).expanduser()
    return Path(text)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Replace an `OSError` of the body.

    Raises
    ------
    UsageError
        `path`, or a file in it, cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> UsageError:
    name = shortened(str(error.filename or path), _SHOWN)
    return UsageError(
        f"{name}: cannot be written ({error.strerror or error}). Choose another path, or make room."
    )


@contextlib.contextmanager
def open_trace(path: Path, head: dict[str, Any], *, private: bool = False) -> Iterator[EventWriter]:
    """Write a trace to `path`, compressed if it ends in ``.gz``; completely, or not at all.

    With `private`, only this user can read it.

    An `OSError` of the body is not one of writing, and is raised unchanged.

    Raises
    ------
    UsageError
        The folder does not exist, or the file cannot be written.
    """
    with writing(path):
        there = path.parent.is_dir()
    if not there:
        raise UsageError(
            f"{path}: the folder {path.parent} does not exist. Create it, or choose another."
        )
    partial = path.with_name(f"{path.name}.part")
    try:
        with writing(path):
            if private:
                os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            file = _open(partial, compressed=path.suffix == ".gz")
        try:
            writer = EventWriter(file, path, head)
            yield writer
            writer.end()
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is more important
                file.close()
            raise
        with writing(path):
            file.close()
            partial.replace(path)
    finally:
        with contextlib.suppress(OSError):  # such as a name that is too long
            partial.unlink(missing_ok=True)


def _open(path: Path, *, compressed: bool) -> IO[str]:
    if compressed:
        return gzip.open(path, "wt", compresslevel=4, encoding="utf-8")
    return path.open("w", encoding="utf-8")
