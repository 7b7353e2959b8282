"""Read processes from ``/proc``.

The sampler reads hundreds of processes every second, from a ``/proc`` that can be chosen:
psutil would read more files per process, and its ``/proc`` is a global setting.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The initial pid namespace of the machine: PROC_PID_INIT_INO in the kernel's proc_ns.h."""
_GPU_FILE = "/dev/nvidia"
# Positions in /proc/PID/stat after the name, which ends with ")" (proc(5)). Times are in ticks
# (starttime: since boot), rss in pages.
_STATE = 0
_PPID = 1
_UTIME = 11
_STIME = 12
_STARTTIME = 19
_RSS = 21


class ProcessStat(NamedTuple):
    """State of one process.

    `began` (clock ticks since boot) distinguishes it from other processes with the same id.
    """

    name: str
    parent: int
    began: int
    cpu_s: float
    resident_bytes: int


class Proc:
    """Reads processes from ``/proc``, which may be mounted elsewhere."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)

    def pids(self) -> set[int]:
        """Return the ids of all visible processes, or raise an `OSError`."""
        return {int(name) for name in os.listdir(self._root) if name.isdigit()}  # noqa: PTH208 - names suffice

    def stat(self, pid: int) -> ProcessStat | None:
        """Return the stat of one process; None if the process has ended or is a zombie."""
        text = self._read(pid, "stat").decode(errors="replace")
        before, _, after = text.rpartition(")")  # the name may contain ")" too
        fields = after.split()
        if len(fields) <= _RSS or fields[_STATE] in "ZX":
            return None
        return ProcessStat(
            name=before.partition("(")[2],
            parent=int(fields[_PPID]),
            began=int(fields[_STARTTIME]),
            cpu_s=(int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_PER_S,
            resident_bytes=int(fields[_RSS]) * _PAGE_BYTES,
        )

    def arguments(self, pid: int) -> tuple[str, ...]:
        """Return the program and arguments of a process; empty if it has ended."""
        data = self._read(pid, "cmdline")
        return tuple(data.decode(errors="replace").rstrip("\0").split("\0"))

    def has_gpu_open(self, pid: int) -> bool:
        """Return whether a process visibly has a device file of the NVIDIA driver open."""
        folder = f"{self._root}/{pid}/fd"
        try:
            files = os.listdir(folder)  # noqa: PTH208 - names suffice
        except OSError:
            return False
        return any(self._link(f"{folder}/{file}").startswith(_GPU_FILE) for file in files)

    def is_whole_machine(self) -> bool:
        """Return whether this ``/proc`` shows the machine's own process ids, as the driver does."""
        return self._link(f"{self._root}/self/ns/pid") == _FIRST_PID_NAMESPACE

    def _read(self, pid: int, name: str) -> bytes:
        try:
            file = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY)
        except OSError:
            return b""
        try:
            return os.read(file, 1 << 16)
        except OSError:  # the process has ended
            return b""
        finally:
            os.close(file)

    @staticmethod
    def _link(path: str) -> str:
        try:
            return os.readlink(path)  # noqa: PTH115 - a path costs more than the call
        except OSError:
            return ""
