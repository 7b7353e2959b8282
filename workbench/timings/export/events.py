"""Writing of a JSON trace event by event, with little memory.

The format is the "Trace Event Format" (Duffy et al., Google), which Perfetto's UI and its trace
processor read. Its times are in microseconds.
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
"""Created once, because `json.dumps` would create an encoder for every event."""
_MAX_PATH_CHARACTERS = 300
"""Maximum number of characters of a path in an error message."""


class EventWriter:
    """Writer that appends events to an open trace file; created by `open_trace`.

    Parameters
    ----------
    file
        The open file.
    path
        Path of the trace, for error messages.
    head
        The members of the trace besides its events. Each is written on a line of its own, so that
        a reader can find it without parsing the whole file.

    Examples
    --------
    >>> import io
    >>> file = io.StringIO()
    >>> writer = EventWriter(file, Path("trace.json"), {"displayTimeUnit": "ms"})
    >>> writer.add(ph="X", name="forward", ts=0.0, dur=12.5, args=None)
    >>> writer.end()
    >>> json.loads(file.getvalue())["traceEvents"]
    [{'ph': 'X', 'name': 'forward', 'ts': 0.0, 'dur': 12.5}]
    """

    def __init__(self, file: IO[str], path: Path, head: dict[str, Any]) -> None:
        self._file = file
        self._path = path
        members = (f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in head.items())
        self._write("".join(("{\n", *members, '"traceEvents": [\n')))
        self._separator = ""

    def add(self, **event: Any) -> None:
        """Write one event, without the members that are None."""
        members = {name: value for name, value in event.items() if value is not None}
        self._write(self._separator + _encode(members))
        self._separator = ",\n"

    def name(self, kind: str, pid: int, name: str, tid: int = 0, sort: int | None = None) -> None:
        """Name a ``"process"`` or a ``"thread"``, and set its position if `sort` is given."""
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
            raise _write_error(self._path, error) from error


def export_path(path: FolderLike, name: str) -> Path:
    """Return an argument called `name` as a path, with the user's home for ``~``.

    Raises
    ------
    UsageError
        The argument is not a path, or is empty.

    Examples
    --------
    >>> export_path("exported/trace.json", "path").name
    'trace.json'
    """
    text = checked_path(path, name)
    if not text:
        raise UsageError(f"{name}='': no path. Name what to write, such as {name}='exported'.")
    with contextlib.suppress(RuntimeError):  # ``~name`` of an unknown user stays as it is.
        return Path(text).expanduser()
    return Path(text)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Replace an `OSError` of the body by a `UsageError`.

    Raises
    ------
    UsageError
        `path`, or a file in it, cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise _write_error(path, error) from error


def _write_error(path: Path, error: OSError) -> UsageError:
    name = shortened(str(error.filename or path), _MAX_PATH_CHARACTERS)
    return UsageError(
        f"{name}: cannot be written ({error.strerror or error}). Choose another path, or make room."
    )


@contextlib.contextmanager
def open_trace(path: Path, head: dict[str, Any], *, private: bool = False) -> Iterator[EventWriter]:
    """Create or replace the trace `path`; if the body fails, `path` is unchanged.

    Parameters
    ----------
    path
        The file; it is compressed if its name ends in ``.gz``.
    head
        The members of the trace besides its events.
    private
        Whether only this user can read the file.

    Raises
    ------
    UsageError
        The folder does not exist, or the file cannot be written.
    OSError
        The body has raised it. It is not replaced, because the writer replaces its own errors.
    """
    with writing(path):
        folder_exists = path.parent.is_dir()
    if not folder_exists:
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
            with contextlib.suppress(OSError):  # The first error is more important.
                file.close()
            raise
        with writing(path):
            file.close()
            partial.replace(path)
    finally:
        with contextlib.suppress(OSError):  # The file's name may be too long, for example.
            partial.unlink(missing_ok=True)


def _open(path: Path, *, compressed: bool) -> IO[str]:
    if compressed:
        return gzip.open(path, "wt", compresslevel=4, encoding="utf-8")
    return path.open("w", encoding="utf-8")
