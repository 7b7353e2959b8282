"""Ends groups of processes of this machine, also when their leader has ended long ago."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil


def kill_group(leader: psutil.Process) -> None:
    """Kill the processes of a group, of which the leader may have ended.

    If another process has the leader's id now, nothing is killed: the system reuses an id only
    when no process is left in the group.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        if psutil.Process(leader.pid) != leader:
            return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, signal.SIGKILL)
