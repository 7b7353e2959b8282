"""The process behind an agent or a controller: a child of this kernel, or kept by a holder."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workbench.errors import StartFailed, WireError
from workbench.wire.lines import END, LineReader

_CONNECT_S = 10.0
_WRITE_S = 2.0
"""How long a process may take to read what is sent to it: one that was stopped never does."""
_POLL_S = 0.01
_PATH_BYTES = 107
"""Longest name of a Unix socket (unix(7))."""
UNSEEN = -1000
"""Stands for the exit status of a process whose holder is gone: nobody saw how it ended."""


@dataclass(frozen=True)
class Keep:
    """How a process outlives its kernel: the socket of its holder, and seconds without a kernel."""

    path: Path
    grace_s: float


class Child(Protocol):
    """Bytes to and from a process, and how it ended."""

    def write(self, data: bytes) -> None:
        """Send to its standard input; OSError where it is gone."""

    def read(self) -> bytes:
        """Wait for what it writes; empty at its end."""

    def poll(self) -> int | None:
        """Return its exit status, or None while it runs."""

    def end(self, timeout_s: float) -> None:
        """Close its input, and wait for its end; then kill it."""

    def leave(self) -> None:
        """Go, and let it run where it is kept."""


class Piped:
    """A child of this process; it does not outlive it.

    Parameters
    ----------
    command
        Program and arguments.
    said
        Called with each line on its standard error.
    """

    def __init__(self, command: list[str], said: Callable[[str], None]) -> None:
        self._said = said
        self._writing = threading.Lock()
        self._stalled = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C in a terminal is for the cell, not for this process
            start_new_session=True,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._listener = threading.Thread(target=self._overhear, daemon=True)
        self._listener.start()

    def write(self, data: bytes) -> None:
        """See `Child`."""
        stdin = self._process.stdin
        assert stdin is not None
        with self._writing:
            if stdin.closed or self._stalled:
                raise BrokenPipeError("the process reads no more")
            deadline, left = time.monotonic() + _WRITE_S, memoryview(data)
            while left:
                try:
                    left = left[os.write(stdin.fileno(), left) :]
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        self._stalled = True  # what follows would not be whole lines
                        raise TimeoutError("the process reads nothing") from None
                    time.sleep(_POLL_S)

    def read(self) -> bytes:
        """See `Child`."""
        assert self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        if not data:
            self._process.wait()
            self._listener.join(timeout=1)
        return data

    def poll(self) -> int | None:
        """See `Child`."""
        return self._process.poll()

    def end(self, timeout_s: float) -> None:
        """See `Child`."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.write(END)
        with contextlib.suppress(OSError, ValueError), self._writing:
            self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the system
                self._process.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it has forked goes with it

    def leave(self) -> None:
        """End it: nobody else would."""
        self.end(0.5)

    def _overhear(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self._said(line.decode("utf-8", "replace").rstrip())


class Held:
    """A process that a holder keeps, so that the next kernel finds it.

    Parameters
    ----------
    path
        Of the holder's socket.
    """

    def __init__(self, path: Path) -> None:
        self._code: int | None = None
        self._ended = False
        self._reader = LineReader()
        self._writing = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            limit = struct.pack("ll", int(_WRITE_S), 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise

    @classmethod
    def find(cls, path: Path) -> Held:
        """Connect to the holder of an earlier kernel.

        Raises
        ------
        StartFailed
            It is gone.
        """
        try:
            return cls(path)
        except OSError as error:
            raise StartFailed(f"the process behind {path} is gone: {error}") from error

    @classmethod
    def start(cls, path: Path, grace_s: float, command: list[str]) -> Held:
        """Start a command under a holder of its own, and connect to it.

        Raises
        ------
        StartFailed
            There is no holder.
        """
        length = len(os.fsencode(path))
        if length > _PATH_BYTES:
            raise StartFailed(
                f"the cluster was to be kept: {path} is too long for a socket ({length} bytes, "
                f"{_PATH_BYTES} at most): name a shorter folder in JUPYTER_RUNTIME_DIR"
            )
        holder = [sys.executable, "-m", "workbench.cluster.holder", str(path), str(grace_s)]
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                [*holder, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
            # it is this process's child for now, and must not stay behind as a zombie
            threading.Thread(target=process.wait, daemon=True).start()
            deadline = time.monotonic() + _CONNECT_S
            while True:
                try:
                    return cls(path)
                except OSError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        break
                    time.sleep(_POLL_S)
            said.seek(0)
            log = said.read().decode("utf-8", "replace").strip()
        raise StartFailed(f"the process that is to keep {path.stem} does not answer:\n{log}")

    def write(self, data: bytes) -> None:
        """See `Child`."""
        with self._writing:
            self._socket.sendall(data)

    def read(self) -> bytes:
        """See `Child`."""
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        with contextlib.suppress(WireError):  # whoever asked for the data reads it too
            for kind, content in self._reader.feed(data):
                if kind == "gone":
                    self._code = content["code"]
        self._ended = not data
        return data

    def poll(self) -> int | None:
        """See `Child`; `UNSEEN` where only the end is known."""
        if self._code is not None:
            return self._code
        return UNSEEN if self._ended else None

    def end(self, timeout_s: float) -> None:
        """See `Child`."""
        try:
            self.write(END)
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return
        deadline = time.monotonic() + timeout_s
        while not self._ended and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def leave(self) -> None:
        """See `Child`."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


class Gone:
    """Stands for a kept process that ended, with its holder, while no kernel was there."""

    def write(self, data: bytes) -> None:
        """See `Child`."""
        raise BrokenPipeError(f"{len(data)} bytes are for a process that is gone")

    def read(self) -> bytes:
        """See `Child`."""
        return b""

    def poll(self) -> int | None:
        """See `Child`."""
        return UNSEEN

    def end(self, timeout_s: float) -> None:
        """See `Child`."""

    def leave(self) -> None:
        """See `Child`."""


def exit_text(code: int) -> str:
    """Return an exit code in words, such as ``"was killed by SIGKILL"``."""
    if code == UNSEEN:
        return "is gone, and so is the process that kept it"
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
