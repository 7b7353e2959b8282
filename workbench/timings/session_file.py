"""A session file: a ZIP archive with the files of one run, to send and to replay."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path

from workbench.errors import RunError
from workbench.timings.folder import RunFolder, is_run_file

_log = logging.getLogger(__name__)

SUFFIX = ".gwsession"
"""Suffix of session files."""
_MAX_BYTES = 1 << 30
"""Maximum number of bytes that a session file may unpack to."""
_MAX_FILES = 1000
"""Maximum number of files in a session file."""
_ENCRYPTED = 1
"""The bit that marks an encrypted entry in the flags of a ZIP entry."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_unpacked: dict[tuple[str, int, int], Path] = {}
"""Folders of the files that this process has unpacked, by path, size and modification time."""


def pack(folder: RunFolder, path: Path) -> Path:
    """Write a run's files to the session file `path`, and return its path with the suffix.

    Only this user can read the file, like the files of the run.

    Raises
    ------
    RunError
        The file cannot be written.
    """
    path = path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)
    part = path.with_name(f"{path.name}.part")
    try:
        # an earlier process may have left the file behind, with other permissions
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with (
            os.fdopen(descriptor, "w+b") as target,
            # ZIP has no times before 1980; those are written as 1980.
            zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive,
        ):
            for file in folder.files():
                archive.write(file, file.name)
        part.replace(path)
        _log.debug("packed the run %s into %s", folder.path, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RunError(
            f"{path}: the session cannot be written ({error.strerror}). Name another file."
        ) from error
    return path


def unpack(path: Path) -> RunFolder:
    """Unpack a session file into a temporary folder, and return the folder of its run.

    The folder is removed when this process exits.

    Raises
    ------
    RunError
        The file is not a session file.
    """
    try:
        status = path.stat()
        key = str(path.absolute()), status.st_size, status.st_mtime_ns
        if key not in _unpacked:
            _unpacked[key] = _unpack(path)
            _log.debug("unpacked the session file %s into %s", path, _unpacked[key])
        return RunFolder(_unpacked[key])
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise RunError(
            f"{path}: cannot be read as a session ({error}). Write one with Run.save."
        ) from error


def _unpack(path: Path) -> Path:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        foreign = [entry.filename for entry in entries if not is_run_file(entry.filename)]
        size = sum(entry.file_size for entry in entries)
        for entry in entries:
            is_encrypted = entry.flag_bits & _ENCRYPTED
            if is_encrypted or entry.compress_type not in _METHODS:
                problem = "is encrypted" if is_encrypted else "is compressed otherwise"
                raise RunError(
                    f"{path}: not a session file ({entry.filename!r} {problem}). "
                    "Write one with Run.save."
                )
        if foreign or not entries or len(entries) > _MAX_FILES or size > _MAX_BYTES:
            problem = (
                f"it has {foreign[0]!r}" if foreign else f"{len(entries)} files of {size} bytes"
            )
            raise RunError(f"{path}: not a session file ({problem}). Write one with Run.save.")
        home = Path(tempfile.mkdtemp(prefix="workbench-session-"))
        atexit.register(_remove, home, os.getpid())
        folder = home / path.stem
        folder.mkdir()
        for entry in entries:
            with archive.open(entry) as source, (folder / entry.filename).open("wb") as target:
                shutil.copyfileobj(source, target)
    return folder


def _remove(folder: Path, owner: int) -> None:
    """Remove a temporary folder when the process that made it exits, but not when a fork exits."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
