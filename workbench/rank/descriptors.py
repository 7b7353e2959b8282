"""What is written past Python: by C++ libraries, by subprocesses, by forked workers."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import threading
from collections.abc import Callable

from workbench.rank.process_state import reopen_descriptors

_NAMES = {1: "stdout", 2: "stderr"}
_MARK = b"\x00workbench\x00"
_LEAST = 10
_PIPE_BYTES = 1 << 20
"""What a C library may write in one call without releasing the GIL, which our readers need."""
_MARK_S = 0.5
"""A child that writes without end must not hold up the end of a cell."""


class Descriptors:
    """Reads file descriptors 1 and 2 of this process between `redirect` and `restore`.

    Parameters
    ----------
    write
        Called with ``("stdout" or "stderr", text)`` from threads of its own.
    """

    def __init__(self, write: Callable[[str, str], None]) -> None:
        self._write = write
        self._saved: dict[int, int] = {}
        self._pipes = {number: os.pipe() for number in _NAMES}
        self._marks = {number: threading.Event() for number in _NAMES}
        for number, (_, end) in self._pipes.items():
            with contextlib.suppress(OSError):  # a user may have only so much memory in pipes
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            threading.Thread(
                target=self._read, args=(number,), name=f"workbench-fd{number}", daemon=True
            ).start()

    def redirect(self) -> None:
        """Let both descriptors lead to us."""
        reopen_descriptors()
        for number, (_, end) in self._pipes.items():
            # above the numbers that a cell may close, such as all of os.closerange(0, 3)
            self._saved[number] = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _LEAST)
            os.dup2(end, number)

    def restore(self) -> None:
        """Put them back, once all that was written before has been read."""
        for number, saved in self._saved.items():
            with contextlib.suppress(OSError):  # the cell has closed it: the next one reopens it
                os.dup2(saved, number)
                os.close(saved)
        self._saved.clear()
        for number, (_, end) in self._pipes.items():
            self._marks[number].clear()
            os.write(end, _MARK)
        for mark in self._marks.values():
            mark.wait(_MARK_S)

    def _read(self, number: int) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        source, rest = self._pipes[number][0], b""
        while chunk := os.read(source, 1 << 16):
            *texts, rest = (rest + chunk).split(_MARK)
            if texts:
                texts, rest = [*texts, rest], b""
                self._marks[number].set()
            elif not _may_be_mark(rest):
                texts, rest = [rest], b""
            for text in texts:
                if text:
                    self._write(_NAMES[number], decode(text))


def _may_be_mark(text: bytes) -> bool:
    """Whether the text ends in the first bytes of a mark, whose rest is still to come."""
    return any(text.endswith(_MARK[:length]) for length in range(1, len(_MARK)))
