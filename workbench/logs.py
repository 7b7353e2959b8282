"""The log of this package: what each of its processes decided and tried.

Each module logs with a logger of its own name. The newest lines of a process are kept in memory
and, in a rank, in a file; `Cluster.logs`, ``%cluster log`` and evidence bundles show the lines of
all processes. Nothing is printed, except warnings. ``GRADIENT_WORKBENCH_LOG=debug`` adds details.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections import deque
from pathlib import Path

VARIABLE = "GRADIENT_WORKBENCH_LOG"
"""The environment variable with the level: debug, info (the default), warning or error."""
MAX_LINES = 2000
"""Number of records that a process keeps."""
_LEVELS = ("debug", "info", "warning", "error")
_PACKAGE = "workbench"


class _Formatter(logging.Formatter):
    """Writes local time with milliseconds, the level, the module and the message."""

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class _Handler(logging.Handler):
    """Keeps the newest records of this process, and writes them to a file if it has one.

    It has no lock, since a signal handler of the user may raise an exception anywhere in a rank's
    main thread, which would leave the lock locked. Appending a line and writing it are atomic
    without a lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_Formatter())
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self.file: int | None = None
        self.prints = False

    def createLock(self) -> None:  # noqa: N802 - the name in the standard library
        """Create no lock."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; pass a warning on to the handlers of the process."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - a message with wrong arguments must not end its caller
            self.handleError(record)
            return
        self.lines.append(line)
        if self.file is not None:
            with contextlib.suppress(OSError):
                os.write(self.file, (line + "\n").encode(errors="backslashreplace"))
        if self.prints and sys.stderr is not None:
            sys.stderr.write(line + "\n")
        elif record.levelno >= logging.WARNING:
            _pass_on(record)


def _pass_on(record: logging.LogRecord) -> None:
    """Give a record to the root logger's handlers, unless this package's logger has them too."""
    root = logging.getLogger()
    called = logging.getLogger(_PACKAGE).handlers
    if not any(handler in called for handler in root.handlers):
        root.callHandlers(record)


_handler = _Handler()


def set_up() -> None:
    """Keep the records of this process, from the level that `VARIABLE` names.

    Call it again after the variable has changed.
    """
    logger = logging.getLogger(_PACKAGE)
    logger.propagate = False  # the root logger's handlers print what they get, at any level
    if _handler not in logger.handlers:
        logger.addHandler(_handler)
    level = os.environ.get(VARIABLE, "").strip().lower() or "info"
    logger.setLevel(level.upper() if level in _LEVELS else logging.INFO)
    if level not in _LEVELS:
        logger.warning(
            "%s=%s: not a level. Set it to one of %s.", VARIABLE, level, ", ".join(_LEVELS)
        )


def write_to(path: Path) -> None:
    """Also write the further records of this process to a file; a forked rank calls this.

    Raises
    ------
    OSError
        The file cannot be created.
    """
    _handler.lines.clear()  # the lines of the parent process, which the fork has copied
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    _handler.file = os.open(path, flags, 0o600)


def print_all() -> None:
    """Print the further records on standard error, if `VARIABLE` is set; for the command line."""
    _handler.prints = bool(os.environ.get(VARIABLE))


def recent() -> str:
    """Return the newest records of this process, a line each and its traceback.

    Examples
    --------
    >>> set_up()
    >>> logging.getLogger("workbench.example").info("rank %d joined in %.1f s", 1, 0.25)
    >>> recent().splitlines()[-1].partition(" INFO ")[2]
    'workbench.example: rank 1 joined in 0.2 s'
    """
    return "".join(f"{line}\n" for line in tuple(_handler.lines))
