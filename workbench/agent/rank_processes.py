"""Fork the ranks of one VM from the agent, observe them, and end them."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from workbench import logs
from workbench.agent.folder import RankFolder, remove
from workbench.wire import detached
from workbench.wire.agent_messages import Exited, StartRank

_log = logging.getLogger(__name__)

_MAX_TERM_S = 0.5
_POLL_S = 0.02
_PARENT_POLL_S = 0.25
_MAX_THREAD_END_S = 30.0
_THREAD_POLL_S = 0.001
_LOG_LINES = 12
_MAX_LOG_BYTES = 1 << 17
_MAX_SOCKET_FOLDER_BYTES = 107 - len("/listener-12345678")
"""Maximum length of the path of a folder in which `multiprocessing` can create sockets."""
_KILLED = re.compile(r"[Kk]illed process (\d+)")


def wait_until_ended(thread: threading.Thread) -> None:
    """Wait until a thread has ended for the operating system too, unlike `join`.

    A thread that ends holds locks of C libraries. For example, MKL takes the locks of all threads
    to free its memory. A process that is forked during that time would wait for these locks in its
    first matrix product forever, and use a full core.
    """
    thread.join()
    task = Path(f"/proc/self/task/{thread.native_id}")
    deadline = time.monotonic() + _MAX_THREAD_END_S
    while task.exists() and time.monotonic() < deadline:
        time.sleep(_THREAD_POLL_S)


@dataclass(frozen=True)
class RankProcess:
    """The process of one rank.

    Attributes
    ----------
    slot
        Number of the rank on this VM.
    pid
        Id of the process, which is also the id of its process group.
    log
        File with the rank's output outside of cells.
    """

    slot: int
    pid: int
    log: Path


class RankProcesses:
    """Forks ranks, which share all modules that the agent has imported.

    If the agent is killed, its ranks remove its folder.

    Parameters
    ----------
    folder
        The folder for logs and profiles of the ranks.
    agent_folder
        The folder of the agent.
    """

    def __init__(self, folder: RankFolder, agent_folder: Path) -> None:
        self._folder = folder
        self._agent_folder = agent_folder
        self._running: dict[int, RankProcess] = {}
        self._oom = OomWatch()

    def start(self, order: StartRank, inherited: list[int]) -> RankProcess:
        """Fork a rank. The rank closes the agent's descriptors `inherited`."""
        log = self._folder.path / f"rank-{order.slot}.log"
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _become_rank(order, parent, log, self._folder.path, self._clean_up, inherited)
        child = self._running[pid] = RankProcess(order.slot, pid, log)
        return child

    def descriptors(self) -> list[int]:
        """Return the descriptors that only the agent needs."""
        return self._oom.descriptors()

    def _clean_up(self) -> None:
        self._folder.remove()
        remove(self._agent_folder)

    def ended(self) -> list[Exited]:
        """Return the ranks that have ended since the last call."""
        exits = []
        for pid, child in list(self._running.items()):
            if _has_ended(pid):
                del self._running[pid]
                code = _kill_group(pid)
                oom = self._oom.describe(pid) if code == -signal.SIGKILL else ""
                exits.append(Exited(pid, code, oom, log_tail(child.log)))
        return exits

    def memory_bytes(self) -> dict[str, int]:
        """Return the resident memory of each running rank, by its process id as text."""
        sizes = {}
        for pid in self._running:
            with contextlib.suppress(psutil.NoSuchProcess):
                sizes[str(pid)] = psutil.Process(pid).memory_info().rss
        return sizes

    def logs(self) -> dict[str, str]:
        """Return the end of the log of this agent, and of each running rank by its process id."""
        texts = {"": logs.recent()[-_MAX_LOG_BYTES:]}
        for pid, child in self._running.items():
            texts[str(pid)] = detached.log_tail(_package_log(child.log), _MAX_LOG_BYTES)
        return texts

    def signal(self, number: int) -> None:
        """Send a signal to every rank, but not to the processes that ranks have forked."""
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, slots: list[int] | None = None) -> None:
        """End the ranks of some slots, by default of all, and wait until they have ended.

        A rank that has not ended 0.5 s after SIGTERM gets SIGKILL.
        """
        children = [
            child for child in self._running.values() if slots is None or child.slot in slots
        ]
        for child in children:
            _signal_group(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + _MAX_TERM_S
        waiting = {child.pid for child in children}
        while waiting:
            waiting -= {pid for pid in waiting if _has_ended(pid)}
            if waiting and time.monotonic() > deadline:
                _log.info("Killing processes %s: they have not ended after SIGTERM", waiting)
                break
            time.sleep(_POLL_S if waiting else 0)
        for child in children:
            _kill_group(child.pid)
            del self._running[child.pid]


class OomWatch:
    """Determines whether the operating system ended a process because memory ran out."""

    def __init__(self) -> None:
        self._events = _own_cgroup_events()
        self._known_kills = self._count_kills()
        try:
            self._messages: int | None = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._messages, 0, os.SEEK_END)
        except OSError:
            self._messages = None

    def descriptors(self) -> list[int]:
        """Return the descriptors that this object uses."""
        return [] if self._messages is None else [self._messages]

    def describe(self, pid: int) -> str:
        """Return a sentence if memory ran out when the process `pid` ended; empty otherwise."""
        if pid in self._killed_pids():
            return "the kernel's OOM killer ended it: memory ran out"
        kills = self._count_kills()
        if kills > self._known_kills:
            self._known_kills = kills
            return "the kernel's OOM killer was active in this cgroup: memory ran out"
        if self._messages is None and not self._events:
            return "whether memory ran out is not readable here"
        return ""

    def _killed_pids(self) -> set[int]:
        pids: set[int] = set()
        while self._messages is not None:
            try:
                text = os.read(self._messages, 8192).decode("utf-8", "replace")
            except BlockingIOError:
                break
            except OSError:  # a message was overwritten before it could be read
                continue
            pids |= {int(number) for number in _KILLED.findall(text)}
        return pids

    def _count_kills(self) -> int:
        try:
            text = self._events.read_text() if self._events else ""
        except OSError:
            return 0
        match = re.search(r"^oom_kill (\d+)", text, re.MULTILINE)
        return int(match[1]) if match else 0


def log_tail(path: Path) -> str:
    """Return the last lines of a log; if it is empty because the disk is full, say so.

    Examples
    --------
    >>> log_tail(Path("/nonexistent/rank-0.log"))
    ''
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
        if not lines and os.statvfs(path.parent).f_bavail == 0:
            folder = path.parent.parent
            return (
                f"(empty: {folder} has no space left. Free some, or set TMPDIR to another folder)"
            )
    except OSError:
        return ""
    return "\n".join(lines[-_LOG_LINES:])


def _package_log(log: Path) -> Path:
    """Return the file of this package's log messages in a rank; `log` has the rank's output."""
    return log.with_suffix(".workbench.log")


def _own_cgroup_events() -> Path | None:
    """Return the file with the count of OOM kills in this process's cgroup (cgroup v2 only)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("0::"):
            path = Path("/sys/fs/cgroup") / line[3:].lstrip("/") / "memory.events"
            return path if path.exists() else None
    return None


def _become_rank(
    order: StartRank,
    agent: int,
    log: Path,
    folder: Path,
    clean_up: Callable[[], None],
    inherited: list[int],
) -> None:
    """Turn this new process into an ipyparallel engine, and exit when the engine has ended."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _redirect(log)
        for descriptor in inherited:
            os.close(descriptor)
        _end_with_parent(agent, clean_up)
        if order.cores:
            os.sched_setaffinity(0, order.cores)
        os.environ.update(order.environment)
        logs.write_to(_package_log(log))
        logs.set_up()
        _log.info("process of slot %d started", order.slot)
        _set_socket_folder(folder)
        os.environ["IPP_CONNECTION_INFO"] = json.dumps(order.connection)
        code = _run_engine(folder / f"profile-{order.slot}")
    except BaseException:  # noqa: BLE001 - the agent's code must not continue in this process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _set_socket_folder(folder: Path) -> None:
    """Make `multiprocessing` in this process and its children create sockets in `folder`.

    Otherwise each worker of a DataLoader creates a separate folder. The folder remains if the rank
    is stopped while a variable still refers to the DataLoader's iterator.
    """
    if len(os.fsencode(folder)) <= _MAX_SOCKET_FOLDER_BYTES:
        process: Any = multiprocessing.current_process()
        process._config["tempdir"] = str(folder)


def _end_with_parent(parent: int, clean_up: Callable[[], None]) -> None:
    """End this process group soon after its parent has ended for any reason.

    A thread checks whether the process still has this parent. The alternatives do not work: other
    processes that the parent has forked keep a pipe from the parent open, and PR_SET_PDEATHSIG
    reports the end of the parent's thread, not of its process.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        try:
            clean_up()
        finally:
            os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, name="workbench-parent-watcher", daemon=True).start()


def _redirect(log: Path) -> None:
    """Redirect standard output and error to a log, and standard input to /dev/null."""
    null = os.open(os.devnull, os.O_RDONLY)
    # The log is opened for reading too, because the rank reads Horovod's error messages from it.
    out = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    for target, source in ((0, null), (1, out), (2, out)):
        os.dup2(source, target)
    os.close(null)
    os.close(out)


def _run_engine(profile: Path) -> int:
    """Run the engine of this rank, and return its exit status."""
    import numpy as np
    import torch

    from workbench.rank.engine import Engine

    # NumPy and PyTorch chose their seeds when the agent imported them. Ranks must not share them.
    np.random.seed()
    torch.default_generator.seed()
    profile.mkdir(mode=0o700, exist_ok=True)
    home = os.path.expanduser("~")  # noqa: PTH111 - a user may have no home, which is no error here
    if not _can_write(Path(home) / ".ipython"):
        # IPython would otherwise create a folder in TMPDIR that is never removed.
        os.environ.setdefault("IPYTHONDIR", str(profile))
    sys.argv = [
        "ipengine",
        f"--profile-dir={profile}",
        # The default stream would lose the output of libraries that abort the process.
        "--IPEngine.out_stream_factory=workbench.rank.descriptors.EngineStream",
        # The nanny is not needed, because the agent reports how a rank ends.
        "--IPEngine.enable_nanny=False",
        # A controller may be paused for long. If the kernel ends, the agent ends its ranks.
        "--IPEngine.max_heartbeat_misses=0",
    ]
    try:
        Engine.launch_instance()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _can_write(folder: Path) -> bool:
    """Return whether a folder can be written to, or created."""
    existing = folder if folder.exists() else folder.parent
    return existing.is_dir() and os.access(existing, os.W_OK)


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended. Its process id is not reused before `_kill_group`."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(pid: int) -> int:
    """End a rank and all processes that it has forked, and return the rank's exit code."""
    _signal_group(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
