"""Safe reading of untrusted files and JSON, and writing of private files.

A path from a user may refer to a pipe, a device, or a damaged file. Reading it never
blocks and uses limited memory. It raises an `OSError` for the file, or a `ValueError` for
its content; the text of the error gives the reason.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import stat
import time
from collections import Counter
from pathlib import Path
from typing import Any

_MAX_DIGITS = 20
"""Maximum number of digits of an integer; 2 to the power of 64 has 20."""
_CHUNK_BYTES = 1 << 20
_LOCK_POLL_S = 0.02


def xdg_folder(variable: str, default: str) -> Path:
    """Return the folder that an XDG variable names, or the default in the user's home.

    A relative path is ignored, as the XDG Base Directory Specification requires: it would name a
    different folder in each working directory.

    Raises
    ------
    RuntimeError
        The user has no home.

    Examples
    --------
    >>> folder = xdg_folder("UNSET_DATA_HOME", ".local/share")
    >>> folder.relative_to(Path.home())
    PosixPath('.local/share')
    """
    folder = Path(os.environ.get(variable, ""))
    if folder.is_absolute():
        return folder
    return Path.home().absolute() / default


def open_regular(path: str | os.PathLike[str]) -> int:
    """Open a regular file for reading, without waiting for a writer, and return its descriptor.

    Raises
    ------
    OSError
        The file cannot be opened, or is a folder, a pipe, a socket or a device.
    """
    file = _open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return file
    os.close(file)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, f"{_file_type(mode)}, not a file")


def read_file(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    Raises
    ------
    OSError
        The file cannot be read, is not a regular file, or is larger; `strerror` gives the reason.
    """
    file = open_regular(path)
    try:
        chunks = []
        size = 0
        while size <= limit and (chunk := os.read(file, min(_CHUNK_BYTES, limit + 1 - size))):
            chunks.append(chunk)
            size += len(chunk)
    finally:
        os.close(file)
    if size > limit:
        raise OSError(errno.EFBIG, f"larger than {format_bytes(limit)}, the most that is read")
    return b"".join(chunks)


def write_regular(path: str | os.PathLike[str], text: str) -> None:
    """Create or replace a regular file atomically, without waiting for the reader of a pipe.

    An existing file keeps its permissions. If the path is a symbolic link, its target is replaced.

    Raises
    ------
    OSError
        The file cannot be written, or is a folder, a pipe, a socket or a device. An existing file
        is then unchanged.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_regular(f"{folder}/notes.txt", "text")
    ...     read_file(f"{folder}/notes.txt", limit=100)
    b'text'
    """
    permissions = None
    try:
        file = _open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno == errno.ENXIO:  # The path is a pipe without a reader, or a socket.
            raise OSError(errno.EINVAL, "a pipe or a socket, not a file") from None
        raise
    else:
        mode = os.fstat(file).st_mode
        os.close(file)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, f"{_file_type(mode)}, not a file")
        permissions = stat.S_IMODE(mode)
    _replace(Path(path).expanduser().resolve(), text, 0o666, permissions)


def _open(path: str | os.PathLike[str], flags: int) -> int:
    try:
        return os.open(Path(path).expanduser(), flags, 0o666)
    except (
        TypeError,  # The argument is not a path.
        ValueError,  # The path contains NUL or a lone surrogate.
        RuntimeError,  # The path is in the home of an unknown user.
    ) as error:
        raise OSError(errno.EINVAL, f"not a valid path ({error})") from error


def wait_for_lock(descriptor: int, operation: int, timeout_s: float) -> None:
    """Lock an open file; wait up to a time limit if another process has locked it.

    Parameters
    ----------
    operation
        ``fcntl.LOCK_SH`` or ``fcntl.LOCK_EX``.

    Raises
    ------
    TimeoutError
        Another process still holds the lock after `timeout_s`.
    OSError
        The file system does not support locks.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"another process has locked it for {timeout_s:g} s") from None
            time.sleep(_LOCK_POLL_S)
        else:
            return


def modified_s(path: str | os.PathLike[str]) -> float:
    """Return a file's modification time, in seconds since the epoch; 0 if unknown."""
    try:
        return Path(path).expanduser().stat().st_mtime
    except (OSError, ValueError, RuntimeError):
        return 0.0


def load_json(text: str | bytes, *, finite: bool = True, max_brackets: int | None = None) -> Any:
    """Parse untrusted JSON, more strictly than `json.loads`.

    Parameters
    ----------
    text
        The content; bytes are UTF-8, with or without a byte order mark.
    finite
        Reject NaN and Infinity, which are not valid JSON.
    max_brackets
        Maximum number of opening brackets and braces; None for no limit. While a text with many
        brackets is parsed, other threads of the process, such as a server's, cannot run.

    Raises
    ------
    ValueError
        The text is not complete JSON in UTF-8, has too many brackets, is nested too deeply, has a
        field twice, or has a number that is not finite or has more than 20 digits.

    Examples
    --------
    >>> load_json(b'{"ranks": [0, 1]}')
    {'ranks': [0, 1]}
    >>> load_json('{"rank": 0, "rank": 1}')
    Traceback (most recent call last):
        ...
    ValueError: it has the field 'rank' twice
    """
    read_float = _finite if finite else float
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        if max_brackets is not None and text.count("[") + text.count("{") > max_brackets:
            raise ValueError(f"it has more than {max_brackets:,} opening brackets")
        return json.loads(
            text.removeprefix("\ufeff"),
            parse_int=_int,
            parse_float=read_float,
            parse_constant=read_float,
            object_pairs_hook=_object,
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not in UTF-8: {error.reason}") from error


def format_bytes(count: float) -> str:
    """Return a size in binary units.

    Examples
    --------
    >>> format_bytes(85_520_809_984)
    '79.65 GiB'
    >>> format_bytes(512)
    '512 B'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def make_private_folder(path: Path) -> None:
    """Create a folder and its missing parents, with access for the owner only.

    Raises
    ------
    OSError
        The folder or a parent cannot be created.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
            except FileExistsError as error:
                reason = os.strerror(errno.ENOTDIR)
                raise NotADirectoryError(errno.ENOTDIR, reason, str(folder)) from error


def write_private(path: Path, text: str) -> None:
    """Create or replace a file atomically, readable by its owner only.

    Raises
    ------
    OSError
        The file cannot be written. An existing file is then unchanged.
    """
    _replace(path, text, 0o600)


def _replace(path: Path, text: str, mode: int, permissions: int | None = None) -> None:
    """Create or replace a file atomically.

    The file gets `permissions`, or if they are None, `mode` restricted by the umask.
    """
    temporary = path.with_name(f"{path.name}.part")
    temporary.unlink(missing_ok=True)
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            stream.write(text)
        if permissions is not None:
            temporary.chmod(permissions)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _int(text: str) -> int:
    """Parse an integer; raise `ValueError` if it has too many digits."""
    if len(text.lstrip("-")) > _MAX_DIGITS:
        raise ValueError(f"it has an integer of {len(text.lstrip('-'))} digits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("it has a number that is not finite (NaN or Infinity)")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object; raise `ValueError` if a field is repeated."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name in fields if counts[name] > 1)
        raise ValueError(f"it has the field {repeated[:60]!r} twice")
    return fields


def _file_type(mode: int) -> str:
    """Return the type of a file that is neither regular nor a folder, in words."""
    types = (
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for is_type, name in types if is_type(mode)), "something else")
