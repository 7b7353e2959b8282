"""Output written to file descriptors: by C++ libraries, subprocesses and forked workers."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import select
import termios
import threading
import time
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from ipykernel.iostream import OutStream

from workbench.wire.rank_messages import OutputKind

_NAMES: dict[int, OutputKind] = {1: "stdout", 2: "stderr"}
_SAVED_FROM = 10
"""Lowest number for a saved descriptor: cells may close small ones, as in os.closerange(0, 3)."""
_PIPE_BYTES = 1 << 20
"""Our readers need the GIL, and a C library may write without releasing it."""
_LINE_MS = 50
"""How long to wait for the rest of a line."""
_FORWARD_S = 0.001
_READER_S = 0.05
"""How long output of Python waits for the reader of earlier output."""
_MOST_BYTES = 1 << 16
"""Longer lines are sent in pieces."""
_CHUNK_BYTES = 1 << 16


class Descriptors:
    """Reads what is written to descriptors 1 and 2 between `redirect` and `restore`.

    Parameters
    ----------
    write
        Called with ``"stdout"`` or ``"stderr"`` and the text, in two threads or in `restore`.
    """

    def __init__(self, write: Callable[[OutputKind, str], None]) -> None:
        self._saved: dict[int, int] = {}
        self._forwarded = 0.0
        self._pipes = {number: _Pipe(partial(write, name)) for number, name in _NAMES.items()}

    def redirect(self) -> None:
        """Replace both descriptors by pipes to the readers."""
        _reopen_standard_descriptors()
        for number, pipe in self._pipes.items():
            self._saved[number] = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _SAVED_FROM)
            os.dup2(pipe.end, number)

    def restore(self) -> None:
        """Restore the descriptors, and send everything that was written before."""
        for number, saved in self._saved.items():
            with contextlib.suppress(OSError):  # the cell has closed it; the next one reopens it
                os.dup2(saved, number)
                os.close(saved)
        self._saved.clear()
        for pipe in self._pipes.values():
            pipe.drain()

    def forward(self) -> None:
        """Send the complete lines that were written before, so that those of Python come after.

        To cost nothing in a loop that prints, it reads at most once in `_FORWARD_S`: a subprocess
        takes longer.
        """
        now = time.monotonic()
        if now - self._forwarded < _FORWARD_S:
            return
        self._forwarded = now
        for pipe in self._pipes.values():
            pipe.forward()


class _Pipe:
    """A pipe and the thread that reads it.

    Parameters
    ----------
    write
        Called with text: complete lines, if the rest of a line arrives in time.

    Attributes
    ----------
    end
        The descriptor to write to.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._line = b""
        """The beginning of an unfinished line."""
        self._reads = threading.Lock()
        self._source, self.end = os.pipe()
        os.set_blocking(self._source, False)
        with contextlib.suppress(OSError):  # the user's limit on memory for pipes is reached
            fcntl.fcntl(self.end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        threading.Thread(target=self._run, name="workbench-fd", daemon=True).start()

    def drain(self) -> None:
        """Send everything that was written before; a child process may go on writing."""
        with self._reads:
            self._read_all()
            self._send_line()

    def forward(self) -> None:
        """Send the complete lines that were written before, unless the reader takes too long.

        It may wait for the kernel, or be this thread, which a signal handler has interrupted.
        """
        if (self._reads.locked() or self._waiting()) and self._reads.acquire(timeout=_READER_S):
            try:
                self._read_all()
            finally:
                self._reads.release()

    def _waiting(self) -> int:
        """Return how many bytes have arrived and were not read."""
        waiting = array("i", [0])
        fcntl.ioctl(self._source, termios.FIONREAD, waiting)
        return waiting[0]

    def _read_all(self) -> None:
        left = self._waiting()
        while left > 0 and (read := self._read(left)):
            left -= read

    def _run(self) -> None:
        arrives = select.poll()
        arrives.register(self._source, select.POLLIN)
        while True:
            arrived = arrives.poll(_LINE_MS if self._line else None)
            with self._reads:
                if not arrived:
                    self._send_line()
                elif not self._read(_CHUNK_BYTES) and not arrived[0][1] & select.POLLIN:
                    return  # the cell has closed the other end

    def _read(self, most: int) -> int:
        """Read at most so many bytes, send the complete lines, and return the number of bytes."""
        try:
            chunk = os.read(self._source, min(most, _CHUNK_BYTES))
        except BlockingIOError:  # `drain` has read what had arrived
            return 0
        text = self._line + chunk
        # send complete lines: text of the other stream could divide an unfinished one
        end = text.rfind(b"\n") + 1
        if len(text) - end > _MOST_BYTES:
            end = len(text)
        self._line = text[end:]
        if end:
            self._write(self._decode(text[:end]))
        return len(chunk)

    def _send_line(self) -> None:
        if self._line:
            line, self._line = self._line, b""
            self._write(self._decode(line))


def _reopen_standard_descriptors() -> None:
    """Open descriptors 0 to 2 that a cell has closed, so that no file gets their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            if null != number:
                os.dup2(null, number)
                os.close(null)


class EngineStream(OutStream):
    """Standard output of the engine outside cells; does not capture file descriptors.

    They lead to the rank's log, whose end the agent reports if the rank fails. ipykernel's
    own stream replaces them by a pipe, and loses what a library writes before it aborts.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, watchfd=False, **options)
