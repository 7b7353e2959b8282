"""Keeps a process of a cluster while its kernel restarts.

``python -m workbench.cluster.holder SOCKET GRACE_S COMMAND...``

It runs the command, and passes bytes between it and one client at a time on a
Unix socket: the kernel. The command starts when the first client is there, which
so hears all that it says, however soon it ends; one that comes later is told
again what the command has reported so far. Without a client for the grace the
command ends: its input is closed, then it is killed. In the command, ``{pid}``
stands for this process's id.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from workbench.errors import WireError
from workbench.wire.lines import END, decode_line, encode_line

REPEATED = frozenset({"hello", "facts", "loaded", "started", "exited"})
"""Reports that a later client must hear; answers to questions are none of its."""
_FIRST_S = 10.0
_PERIOD_S = 1.0
_END_S = 3.0


class Holder:
    """One command and its present client.

    Parameters
    ----------
    path
        Of the socket; its folder is readable by this user only.
    grace_s
        How long the command goes on without a client.
    command
        Program and arguments.

    Raises
    ------
    TimeoutError
        No client came.
    OSError
        The command cannot be started; the client was told.
    """

    def __init__(self, path: Path, grace_s: float, command: list[str]) -> None:
        self._grace_s = grace_s
        self._path = path
        self._selector = selectors.DefaultSelector()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(4)
        self._client: socket.socket | None = self._first()
        self._alone_since = time.monotonic()
        self._pinged = 0.0
        self._history = b""
        self._partial = b""
        self._process = self._start(command)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin.fileno()
        self._output = self._process.stdout.fileno()

    def _first(self) -> socket.socket:
        self._server.settimeout(_FIRST_S)
        try:
            client, _ = self._server.accept()
        except TimeoutError:
            self._path.unlink(missing_ok=True)
            raise
        self._server.settimeout(None)
        self._selector.register(client, selectors.EVENT_READ)
        return client

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [part.replace("{pid}", str(os.getpid())) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            assert self._client is not None
            self._path.unlink(missing_ok=True)
            told = f"{command[0]} cannot be started: {error}\n".encode()
            self._client.sendall(told + encode_line("gone", {"code": 1}))
            raise

    def run(self) -> None:
        """Serve until the command has ended, or nobody has come for the grace."""
        with self._selector as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._output, selectors.EVENT_READ)
            given_up = False
            try:
                while not given_up and self._step():
                    if self._client is None:
                        self._keep_alive()
                        given_up = time.monotonic() - self._alone_since > self._grace_s
            finally:
                self._end()
            if given_up:  # no kernel is there to remove the cluster's folder, and its keys
                shutil.rmtree(self._path.parent, ignore_errors=True)

    def _step(self) -> bool:
        for key, _ in self._selector.select(_PERIOD_S):
            if key.fileobj is self._server:
                self._welcome()
            elif key.fd == self._output:
                data = os.read(self._output, 1 << 16)
                if not data:
                    return False
                self._remember(data)
                self._tell(data)
            # a client may have left since this was ready
            elif key.fileobj is self._client and not self._hear():
                return False
        return True

    def _welcome(self) -> None:
        peer, _ = self._server.accept()
        self._leave()  # one kernel at a time: the last to come
        self._client = peer
        self._selector.register(peer, selectors.EVENT_READ)
        self._tell(self._history + self._partial)

    def _hear(self) -> bool:
        assert self._client is not None
        try:
            data = self._client.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._leave()
            return True
        with contextlib.suppress(OSError):
            os.write(self._input, data)
        return END not in data

    def _tell(self, data: bytes) -> None:
        if self._client is not None and data:
            try:
                self._client.sendall(data)
            except OSError:
                self._leave()

    def _leave(self) -> None:
        if self._client is not None:
            self._selector.unregister(self._client)
            self._client.close()
            self._client = None
            self._alone_since = time.monotonic()

    def _remember(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(WireError):
                message = decode_line(line)
                if message is not None and message[0] in REPEATED:
                    self._history += line + b"\n"

    def _keep_alive(self) -> None:
        """Ping in the kernel's place: over ssh an agent that hears nothing gives up."""
        if time.monotonic() - self._pinged < _PERIOD_S:
            return  # a ping is answered, which would bring us here at once
        self._pinged = time.monotonic()
        with contextlib.suppress(OSError):
            os.set_blocking(self._input, False)
            os.write(self._input, encode_line("ping", {}))
            os.set_blocking(self._input, True)

    def _end(self) -> None:
        self._path.unlink(missing_ok=True)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.send_signal(number)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it has forked goes with it
        with contextlib.suppress(OSError):
            if self._client is not None:
                code = self._process.wait()
                self._client.sendall(encode_line("gone", {"code": code}))


def main() -> None:
    """Hold the command that the arguments name."""
    path, grace_s, *command = sys.argv[1:]
    Holder(Path(path), float(grace_s), command).run()


if __name__ == "__main__":
    main()
