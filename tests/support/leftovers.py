"""What tests leave behind: processes, threads, listening sockets, temporary files.

A session compares what is there after its last test with what was there before its first one, and
names the test during which each leftover appeared.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import threading
from pathlib import Path

import psutil
from timers import LIMITS_FACTOR, within

MARKS = "TEST_PROCESS_MARKS"
"""The environment variable with the marks of all runs of a process; see `.ci/limit`."""
END_S = 15.0 * LIMITS_FACTOR
"""How long processes get to end after the last test, such as one that polls for its parent."""
KEPT = (
    "pytest-of-",
    "torchinductor_",
    "matplotlib-",
    "mpl-",
    "workbench-session-",  # removed at the end of the process that has unpacked a session
    "workbench-rank-",  # of an agent that was killed with its ranks: the next agent removes it
)
"""Beginnings of the names of folders that are kept until this process ends, or for later ones."""

POOLS = ("ThreadPoolExecutor-", "asyncio_")
"""Beginnings of the names of pool threads, which end at exit when they have nothing to do."""


class Leftovers:
    """Observes one pytest process.

    The constructor marks the processes that tests will start, and gives them a folder of their own
    for temporary files.
    """

    def __init__(self) -> None:
        self._mark = f"pytest-{secrets.token_hex(6)}"
        os.environ[MARKS] = ",".join(filter(None, [os.environ.get(MARKS), self._mark]))
        self._folder = Path(tempfile.mkdtemp(prefix="tests-"))
        self._folder.chmod(0o711)  # munge and the tests of other users need folders in it
        os.environ["TMPDIR"] = str(self._folder)
        tempfile.tempdir = str(self._folder)  # otherwise the first test that needs it decides
        self._descriptors: list[str] = []
        self._sockets: set[str] = set()
        self._before = self._present()
        self._tests: dict[str, str] = {}
        """The test after which each leftover was seen first."""

    def observe(self, test: str) -> None:
        """Note what has appeared until the end of a test."""
        present = self._present()
        self._tests = {item: self._tests.get(item, test) for item in present - self._before}

    def remaining(self) -> list[str]:
        """Return a line for each leftover, with the test that it appeared in."""
        self._descriptors = []
        within(END_S, lambda: not self._processes() and not self._present() - self._before)
        self.observe("the end of the session")
        appeared = [
            f"{item}{self._content(item)}, since {test}" for item, test in self._tests.items()
        ]
        return sorted([*appeared, *map(_describe, self._processes())])

    def _content(self, item: str) -> str:
        """Return what is in a temporary folder, which helps to find who has made it."""
        folder = self._folder / item.removeprefix("temporary file ")
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        return f" with {', '.join(names[:5])}" if names else ""

    def close(self) -> None:
        """Kill the processes that are left, and remove the temporary files."""
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _present(self) -> set[str]:
        names = {entry.name for entry in self._folder.iterdir()} if self._folder.exists() else set()
        files = {f"temporary file {name}" for name in names if not name.startswith(KEPT)}
        descriptors = os.listdir("/proc/self/fd")  # noqa: PTH208 - after each test, so fast
        if descriptors != self._descriptors:
            self._descriptors, self._sockets = descriptors, _listening_sockets()
        return files | waited_for_threads() | self._sockets

    def _processes(self) -> list[psutil.Process]:
        marked = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and self._mark in process.environ().get(MARKS, ""):
                    marked.append(process)
        return marked


def waited_for_threads() -> set[str]:
    """Return the threads for which the interpreter would wait at its end."""
    main = threading.main_thread()
    return {
        f"thread {thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if thread is not main and not thread.daemon and not thread.name.startswith(POOLS)
    }


def _listening_sockets() -> set[str]:
    """Return the addresses at which this process listens."""
    return {
        f"listening socket {connection.laddr.ip}:{connection.laddr.port}"
        for connection in psutil.Process().net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def _describe(process: psutil.Process) -> str:
    """Return the command of a process, and the test that started it."""
    test = "?"
    with contextlib.suppress(psutil.Error):
        test = process.environ().get("PYTEST_CURRENT_TEST", test)
        command = " ".join(" ".join(process.cmdline()).split())[:160] or process.name()
        return f"process {process.pid} ({command}), started by {test}"
    return f"process {process.pid}, which has just ended"
