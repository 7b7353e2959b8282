"""Files of recorded runs that users download: evidence bundles, and traces of profiles."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from pathlib import Path

from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.iostream import StreamClosedError

from workbench.errors import printable, shortened
from workbench.server.handlers import RestHandler

_CHUNK_BYTES = 256 << 10
_MAX_NAME_CHARACTERS = 200
"""Maximum length of a name in an error message."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class RunFileError(Exception):
    """A file of a run cannot be sent; the message gives the reason."""


def open_run_file(run: str, name: str, folder: Path | None = None) -> int:
    """Open a file of a run for a download, and return its descriptor.

    Parameters
    ----------
    run, name
        Names of the run's folder and of the file in it. No symbolic link is followed.
    folder
        The folder of all runs; by default this user's folder.

    Raises
    ------
    RunFileError
        There is no such file, users may not download it, or it belongs to another user.
    """
    # Imported here, because it loads NumPy, and few servers send files of runs.
    from workbench.timings.folder import download_type
    from workbench.timings.runs import runs_folder

    shown = printable(shortened(f"{run}/{name}", _MAX_NAME_CHARACTERS))
    if download_type(name) is None:
        raise RunFileError(f"{shown}: neither an evidence bundle nor the trace of a profile.")
    if not re.fullmatch(r"[\w.-]+", run) or run in {".", ".."}:
        raise RunFileError(f"{shown}: not the name of a run. %timings list shows all.")
    parent = folder or runs_folder()
    try:
        return _open(parent, run, name)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunFileError(f"{shown}: cannot be read in {parent} ({reason}).") from error


def _open(folder: Path, run: str, name: str) -> int:
    runs = os.open(folder, _FOLDER_FLAGS)
    try:
        parent = os.open(run, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=runs)
    finally:
        os.close(runs)
    try:
        file = os.open(name, _FILE_FLAGS, dir_fd=parent)
        problem = _problem(os.fstat(parent), os.fstat(file))
    finally:
        os.close(parent)
    if problem:
        os.close(file)
        raise OSError(problem)
    return file


def _problem(folder: os.stat_result, file: os.stat_result) -> str:
    """Return why an open file must not be sent; empty if it may be sent."""
    if not stat.S_ISREG(file.st_mode):
        return "not a regular file"
    user = os.geteuid()
    return "" if folder.st_uid == file.st_uid == user else "it belongs to another user"


class RunFileHandler(RestHandler):
    """``GET runs/NAME/files/FILE``: sends the file in chunks, as an attachment."""

    @web.authenticated
    @authorized
    async def get(self, run: str, name: str) -> None:
        """Answer with the content of the file."""
        try:
            file = await asyncio.to_thread(open_run_file, run, name)
        except RunFileError as error:
            self.refuse(404, str(error))
            return
        try:
            await self._send(file, name)
        except StreamClosedError:  # the user has cancelled the download
            pass
        finally:
            os.close(file)

    async def _send(self, file: int, name: str) -> None:
        from workbench.timings.folder import download_type

        kind = download_type(name) or ""
        remaining = os.fstat(file).st_size
        self.set_header("Content-Type", kind)
        self.set_header("Content-Length", str(remaining))
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        self.set_header("Cache-Control", "no-store")
        while remaining:
            size = min(_CHUNK_BYTES, remaining)
            chunk = await asyncio.to_thread(os.read, file, size)
            if not chunk:
                raise web.HTTPError(500, "the file has become shorter")
            remaining -= len(chunk)
            self.write(chunk)
            await self.flush()
        self.finish(set_content_type=kind)
