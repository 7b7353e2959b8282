"""Output written to file descriptors: by C++ libraries, subprocesses and forked workers."""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import fcntl
import os
import select
import sys
import termios
import threading
import time
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from ipykernel.iostream import OutStream

from workbench.wire.rank_messages import OutputKind

_KINDS: dict[int, OutputKind] = {1: "stdout", 2: "stderr"}
_SAVED_FROM = 10
"""Lowest number for a saved descriptor: cells may close small ones, as in os.closerange(0, 3)."""
_PIPE_BYTES = 1 << 20
"""Large: the reader thread needs the GIL, and a C library may write without releasing it."""
_LINE_MS = 50
"""How long the reader thread waits for the end of a line."""
_MAX_LINE_BYTES = 1 << 16
"""Longer lines are sent in pieces."""
_CHUNK_BYTES = 1 << 16
_NO_MEMORY_S = 0.05
_EPOLL_EVENT_BYTES = 16
"""The size of ``struct epoll_event``; 12 on x86."""


class Descriptors:
    """Reads the output to descriptors 1 and 2 between `redirect` and `restore`.

    A thread waits for bytes and calls `on_bytes`. That function holds its own lock while it calls
    `read`. Other holders of this lock can call `read` too, so that text of Python follows all bytes
    that were written before it. The order is kept between Python's streams and each descriptor.
    Output of a program to both descriptors may be read in another order.

    Parameters
    ----------
    on_bytes
        Called in the reader thread with the value of `ahead` for `read`.
    """

    def __init__(self, on_bytes: Callable[[bool], None]) -> None:
        self._on_bytes = on_bytes
        self._saved: dict[int, int] = {}
        self._pipes = {number: _Pipe(kind) for number, kind in _KINDS.items()}
        self._has_line = False
        """Whether the beginning of a line was read, but not returned yet."""
        self._ready = select.epoll()
        for pipe in self._pipes.values():
            self._ready.register(pipe.source, select.EPOLLIN)
        # unlike select.epoll.poll, this call does not release the GIL: otherwise a thread that
        # computes would take the GIL for 5 ms at each write
        self._event = ctypes.create_string_buffer(_EPOLL_EVENT_BYTES)
        self._count_ready = partial(
            ctypes.PyDLL(None).epoll_wait, self._ready.fileno(), ctypes.byref(self._event), 1, 0
        )
        threading.Thread(target=self._run, name="workbench-fd", daemon=True).start()

    def redirect(self) -> None:
        """Replace both descriptors by pipes to the reader."""
        _reopen_standard_descriptors()
        for number, pipe in self._pipes.items():
            self._saved[number] = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _SAVED_FROM)
            os.dup2(pipe.end, number)

    def restore(self) -> None:
        """Restore the descriptors; earlier output can still be read."""
        for number, saved in self._saved.items():
            with contextlib.suppress(OSError):  # the cell has closed it; the next one reopens it
                os.dup2(saved, number)
                os.close(saved)
        self._saved.clear()

    def has_text(self) -> bool:
        """Return whether `read` may return text; fast enough to be called before each write."""
        return self._has_line or self._count_ready() > 0

    def read(self, *, ahead: bool = False) -> list[tuple[OutputKind, str]]:
        """Return the output since the last call, without waiting.

        Parameters
        ----------
        ahead
            Whether the caller only reads ahead. The beginning of a line is then kept for the
            next call, so that text of the other stream does not divide the line. At most 64 KiB
            of each descriptor are read.
        """
        texts = [(pipe.kind, pipe.read(ahead)) for pipe in self._pipes.values()]
        self._has_line = any(pipe.line for pipe in self._pipes.values())
        return [(kind, text) for kind, text in texts if text]

    def _run(self) -> None:
        arrival = select.poll()
        for pipe in self._pipes.values():
            arrival.register(pipe.source, select.POLLIN)
        open_pipes = len(self._pipes)
        while open_pipes:
            events = arrival.poll(_LINE_MS if self._has_line else None)
            try:
                self._on_bytes(bool(events))
            except MemoryError:  # the cell has used all memory, and frees it at its end
                time.sleep(_NO_MEMORY_S)
            for source, event in events:
                if not event & select.POLLIN:  # the cell has closed the other end
                    arrival.unregister(source)
                    open_pipes -= 1


class _Pipe:
    """A pipe that replaces a descriptor.

    Attributes
    ----------
    kind
        The stream that is written to it.
    source, end
        The descriptors to read from and to write to.
    line
        The beginning of a line that was read, but not returned yet.
    """

    def __init__(self, kind: OutputKind) -> None:
        self.kind = kind
        self.line = b""
        self.source, self.end = os.pipe()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        os.set_blocking(self.source, False)
        with contextlib.suppress(OSError):  # the user's limit on memory for pipes is reached
            fcntl.fcntl(self.end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def read(self, ahead: bool) -> str:
        """Return the output before this call; see `Descriptors.read`."""
        text = self.line + self._read_bytes(_CHUNK_BYTES if ahead else sys.maxsize)
        end = len(text)
        if ahead:
            line_start = text.rfind(b"\n") + 1
            if end - line_start <= _MAX_LINE_BYTES:
                end = line_start
        self.line = text[end:]
        return self._decode(text[:end])

    def _read_bytes(self, max_bytes: int) -> bytes:
        chunks = []
        with contextlib.suppress(OSError):  # the cell has closed the descriptor
            size = array("i", [0])
            fcntl.ioctl(self.source, termios.FIONREAD, size)
            # reading is limited to this size, because a child process may write without end
            remaining = min(size[0], max_bytes)
            while remaining > 0:
                chunk = os.read(self.source, min(remaining, _CHUNK_BYTES))
                if not chunk:
                    break
                chunks.append(chunk)
                remaining -= len(chunk)
        return b"".join(chunks)


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

    The descriptors lead to the rank's log, and the agent reports the end of this log if the rank
    fails. ipykernel's own stream replaces them by a pipe, and loses the last output of a library
    that aborts.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, watchfd=False, **options)
