"""Processes as ``/proc`` shows them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel's proc_ns.h: the machine's own namespace."""
_GPU_FILE = "/dev/nvidia"


class Stat(NamedTuple):
    """One process; `began` (ticks since the boot) tells it from a later one of its number."""

    name: str
    parent: int
    began: int
    cpu_s: float
    resident_bytes: int


class Proc:
    """Reads a ``/proc``.

    Parameters
    ----------
    root
        Where it is mounted.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)

    def pids(self) -> set[int]:
        """List all processes that this user sees.

        Raises
        ------
        OSError
            There is no such ``/proc``.
        """
        return {int(name) for name in os.listdir(self._root) if name.isdigit()}  # noqa: PTH208 - names do

    def stat(self, pid: int) -> Stat | None:
        """Read one process; None where it has ended, or waits to be buried."""
        text = self._read(pid, "stat").decode(errors="replace")
        before, _, after = text.rpartition(")")
        row = after.split()
        if len(row) < 22 or row[0] in "ZX":
            return None
        return Stat(
            name=before.partition("(")[2],
            parent=int(row[1]),
            began=int(row[19]),
            cpu_s=(int(row[11]) + int(row[12])) / _TICKS_PER_S,
            resident_bytes=int(row[21]) * _PAGE_BYTES,
        )

    def arguments(self, pid: int) -> tuple[str, ...]:
        """Read a process's program and arguments; none where it has ended."""
        data = self._read(pid, "cmdline")
        return tuple(data.decode(errors="replace").rstrip("\0").split("\0"))

    def has_gpu_open(self, pid: int) -> bool:
        """Whether a process is seen to hold a file of the NVIDIA driver open."""
        folder = f"{self._root}/{pid}/fd"
        try:
            files = os.listdir(folder)  # noqa: PTH208 - names do
        except OSError:
            return False
        return any(self._link(f"{folder}/{file}").startswith(_GPU_FILE) for file in files)

    def is_whole_machine(self) -> bool:
        """Whether processes have the numbers here that the driver gives them."""
        return self._link(f"{self._root}/self/ns/pid") == _FIRST_PID_NAMESPACE

    def _read(self, pid: int, name: str) -> bytes:
        try:
            file = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY)
        except OSError:
            return b""
        try:
            return os.read(file, 1 << 16)
        except OSError:  # it ended meanwhile
            return b""
        finally:
            os.close(file)

    @staticmethod
    def _link(path: str) -> str:
        try:
            return os.readlink(path)  # noqa: PTH115 - a path costs more than the call
        except OSError:
            return ""
