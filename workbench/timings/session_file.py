"""A session file: the files of one run in a ZIP archive, to send and to replay."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path

from workbench.errors import RunError
from workbench.timings.folder import RunFolder, is_run_file

SUFFIX = ".gwsession"
_MAX_BYTES = 1 << 30
"""Most bytes that a session file may unpack to."""
_MAX_FILES = 1000
_ENCRYPTED = 1
"""A bit of the flags of a ZIP entry."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_unpacked: dict[tuple[str, int, int], Path] = {}
"""Where files were unpacked in this process, by path, size and time of change."""


def pack(folder: RunFolder, path: Path) -> Path:
    """Write a run's files to the session file `path`, and return the path, with its suffix.

    Only this user can read it, as the files of the run.
    """
    path = path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)  # it may have been left behind with other permissions
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with (
            os.fdopen(descriptor, "w+b") as target,
            # ZIP has no times before 1980; those are written as 1980.
            zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive,
        ):
            for file in folder.files():
                archive.write(file, file.name)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RunError(
            f"{path}: the session cannot be written ({error.strerror}). Name another file."
        ) from error
    return path


def unpack(path: Path) -> RunFolder:
    """Return the run of a session file, in a temporary folder that is removed at exit.

    Raises
    ------
    RunError
        It is not a session file.
    """
    try:
        status = path.stat()
        key = str(path.absolute()), status.st_size, status.st_mtime_ns
        if key not in _unpacked:
            _unpacked[key] = _unpack(path)
        return RunFolder(_unpacked[key])
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise RunError(
            f"{path}: cannot be read as a session ({error}). Write one with Run.save."
        ) from error


def _unpack(path: Path) -> Path:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        odd = [one.filename for one in entries if not is_run_file(one.filename)]
        size = sum(one.file_size for one in entries)
        for one in entries:
            if one.flag_bits & _ENCRYPTED or one.compress_type not in _METHODS:
                why = "is encrypted" if one.flag_bits & _ENCRYPTED else "is compressed otherwise"
                raise RunError(
                    f"{path}: not a session file ({one.filename!r} {why}). Write one with Run.save."
                )
        if odd or not entries or len(entries) > _MAX_FILES or size > _MAX_BYTES:
            why = f"it has {odd[0]!r}" if odd else f"{len(entries)} files of {size} bytes"
            raise RunError(f"{path}: not a session file ({why}). Write one with Run.save.")
        home = Path(tempfile.mkdtemp(prefix="workbench-session-"))
        atexit.register(_remove, home, os.getpid())
        folder = home / path.stem
        folder.mkdir()
        for one in entries:
            with archive.open(one) as source, (folder / one.filename).open("wb") as target:
                shutil.copyfileobj(source, target)
    return folder


def _remove(folder: Path, owner: int) -> None:
    """Remove a temporary folder at the end of the process that made it, not of a fork."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
