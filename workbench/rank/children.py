"""The ranks of one VM as processes: forked from their agent, watched, ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from workbench.rank.folder import RankFolder
from workbench.wire.lifeline import die_with_parent

_TERM_S = 0.5
_POLL_S = 0.02
_LOG_LINES = 12
_KILLED = re.compile(r"[Kk]illed process (\d+)")


@dataclass(frozen=True)
class Child:
    """One rank's process.

    Attributes
    ----------
    slot
        Its place on this VM.
    pid
        Its process, which leads a process group of its own.
    log
        Where it writes until a cell runs.
    """

    slot: int
    pid: int
    log: Path


class Children:
    """Forks ranks; all that was imported before is shared with them, and need not be loaded again.

    Parameters
    ----------
    folder
        For logs.
    """

    def __init__(self, folder: RankFolder) -> None:
        self._folder = folder
        self._running: dict[int, Child] = {}
        self._oom = OomWatch()

    def start(self, order: dict[str, Any], inherited: list[int]) -> Child:
        """Fork a rank.

        Parameters
        ----------
        order
            ``slot``, ``connection`` (ipyparallel's, with its keys), ``environment``, ``cores``.
        inherited
            Descriptors of the agent that the rank must not hold.
        """
        slot = int(order["slot"])
        log = self._folder.path / f"rank-{slot}.log"
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _become_rank(order, parent, log, self._folder, inherited)
        child = self._running[pid] = Child(slot, pid, log)
        return child

    def ended(self) -> list[dict[str, Any]]:
        """Return how ranks ended since the last call: slot, pid, code, OOM verdict, end of log."""
        found = []
        for pid, child in list(self._running.items()):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                del self._running[pid]
                _signal_group(pid, signal.SIGKILL)  # what it forked goes with it
                code = os.waitstatus_to_exitcode(status)
                found.append(
                    {
                        "slot": child.slot,
                        "pid": pid,
                        "code": code,
                        "oom": self._oom.verdict(pid) if code == -signal.SIGKILL else "",
                        "log": log_tail(child.log),
                    }
                )
        return found

    def memory_bytes(self) -> dict[str, int]:
        """Return the resident memory of each rank that runs, by process id (as text)."""
        sizes = {}
        for pid in self._running:
            with contextlib.suppress(psutil.NoSuchProcess):
                sizes[str(pid)] = psutil.Process(pid).memory_info().rss
        return sizes

    def signal(self, number: int) -> None:
        """Send a signal to every rank, not to what it has forked."""
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, slots: list[int] | None = None) -> None:
        """End the ranks of some slots, or all, and wait for it."""
        chosen = [c for c in self._running.values() if slots is None or c.slot in slots]
        for child in chosen:
            _signal_group(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + _TERM_S
        waiting = {child.pid for child in chosen}
        while waiting:
            waiting -= {pid for pid in waiting if os.waitpid(pid, os.WNOHANG)[0]}
            if waiting and time.monotonic() > deadline:
                break
            time.sleep(_POLL_S if waiting else 0)
        for child in chosen:
            _signal_group(child.pid, signal.SIGKILL)
            if child.pid in waiting:
                os.waitpid(child.pid, 0)
            del self._running[child.pid]


class OomWatch:
    """Tells whether the kernel ended a process because memory ran out, where that is readable."""

    def __init__(self) -> None:
        self._events = _own_cgroup_events()
        self._before = self._kills()
        try:
            self._messages: int | None = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._messages, 0, os.SEEK_END)
        except OSError:
            self._messages = None

    def verdict(self, pid: int) -> str:
        """Return what is known of the end of `pid`; call it once it has ended."""
        if pid in self._killed():
            return "the kernel's OOM killer ended it: memory ran out"
        now = self._kills()
        if now > self._before:
            self._before = now
            return "the kernel's OOM killer was active in this cgroup: memory ran out"
        if self._messages is None and not self._events:
            return "whether memory ran out is not readable here"
        return ""

    def _killed(self) -> set[int]:
        pids: set[int] = set()
        while self._messages is not None:
            try:
                text = os.read(self._messages, 8192).decode("utf-8", "replace")
            except BlockingIOError:
                break
            except OSError:  # a message was overwritten before it was read
                continue
            pids |= {int(number) for number in _KILLED.findall(text)}
        return pids

    def _kills(self) -> int:
        try:
            text = self._events.read_text() if self._events else ""
        except OSError:
            return 0
        found = re.search(r"^oom_kill (\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0


def log_tail(path: Path) -> str:
    """Return the last lines of a log, or why it has none, where that is known."""
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


def _own_cgroup_events() -> Path | None:
    """Return the file in which cgroup v2 counts the OOM kills of this process's group."""
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
    order: dict[str, Any], agent: int, log: Path, folder: RankFolder, inherited: list[int]
) -> None:
    """Turn this new process into an ipyparallel engine; never returns."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _redirect(log)
        for descriptor in inherited:
            os.close(descriptor)
        die_with_parent(agent, folder.remove)
        if order.get("cores"):
            os.sched_setaffinity(0, order["cores"])
        os.environ.update(order["environment"])
        os.environ["IPP_CONNECTION_INFO"] = json.dumps(order["connection"])
        code = _run_engine(folder.path / f"profile-{order['slot']}")
    except BaseException:  # noqa: BLE001 - nothing of the agent's may run in this process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _redirect(log: Path) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    # read again by `meet`, to tell what Horovod logged
    out = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    for target, source in ((0, null), (1, out), (2, out)):
        os.dup2(source, target)
    os.close(null)
    os.close(out)


def _run_engine(profile: Path) -> int:
    import numpy as np
    from ipyparallel.engine.app import main as engine_main

    # numpy drew its seed when the agent imported it: ranks must not share it
    np.random.seed()
    profile.mkdir(mode=0o700, exist_ok=True)
    sys.argv = [
        "ipengine",
        f"--profile-dir={profile}",
        # else what libraries write before they abort gets lost in a pipe
        "--IPEngine.out_stream_factory=workbench.rank.engine_stream.EngineStream",
        # the agent and our own channel tell what the nanny would
        "--IPEngine.enable_nanny=False",
    ]
    try:
        engine_main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
