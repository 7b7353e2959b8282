"""Measure the resource use of kernels, ranks and processes on GPUs."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from pathlib import Path

from workbench.resources.gpus.processes import GpuProcess
from workbench.resources.processes.proc import Proc, ProcessStat
from workbench.resources.processes.rank_registry import RankRegistry
from workbench.resources.processes.roles import OTHER, Role, Roles
from workbench.resources.rates import Rate, added
from workbench.resources.unknown import Unknown
from workbench.resources.usage import NOT_VISIBLE, GpuShare, ProcessUse

_UNSEEN = Unknown(NOT_VISIBLE)


class ProcessMeter:
    """Reads the processes that matter to a notebook user.

    Parameters
    ----------
    proc
        Reads ``/proc``.
    ranks
        Folder in which ranks register; this user's own by default.
    """

    def __init__(self, proc: Proc, ranks: Path | None = None) -> None:
        self._proc = proc
        self._roles = Roles(proc)
        self._ranks = RankRegistry(ranks)
        self._rates: dict[tuple[int, int], Rate] = {}
        self._owners: dict[tuple[int, int], bool] = {}
        self._trusted = proc.is_whole_machine()

    def read(self, on_gpus: Sequence[GpuProcess]) -> tuple[ProcessUse, ...] | Unknown:
        """Return all kernels, all ranks, and the processes that the driver lists on GPUs.

        Parameters
        ----------
        on_gpus
            The driver's list; in a container it may contain process ids of the host.
        """
        try:
            pids = self._proc.pids()
        except OSError as error:
            return Unknown(f"/proc cannot be read: {error.strerror}")
        stat_of = functools.cache(self._proc.stat)
        roles = self._roles.find(pids, self._ranks.read(pids), stat_of)
        shares = _shares(on_gpus)
        stats = {pid: stat_of(pid) for pid in sorted(roles.keys() | shares.keys())}
        seen = {pid: stat for pid, stat in stats.items() if stat is not None}
        living = {(pid, stat.began) for pid, stat in seen.items()}
        self._rates = {key: self._rates.get(key) or Rate() for key in living}
        self._owners = {key: known for key, known in self._owners.items() if key in living}
        foreign = {pid for pid in shares if pid not in seen or not self._is_owner(pid, seen[pid])}

        def role_of(pid: int, stat: ProcessStat) -> Role:
            return roles.get(pid) or self._roles.origin(stat, roles, stat_of)

        used = [
            self._use(pid, stat, role_of(pid, stat), () if pid in foreign else shares.get(pid, ()))
            for pid, stat in seen.items()
            if pid in roles or pid not in foreign
        ]
        hidden = (_hidden(pid, shares[pid]) for pid in sorted(foreign))
        return (*used, *hidden)

    def _use(
        self, pid: int, stat: ProcessStat, role: Role, gpus: tuple[GpuShare, ...]
    ) -> ProcessUse:
        rate = self._rates[pid, stat.began].update(stat.cpu_s, time.monotonic())
        return ProcessUse(
            pid=pid,
            name=stat.name,
            kind=role.kind,
            kernel_id=role.kernel_id,
            notebook=None,
            cluster=role.cluster,
            rank=role.rank,
            cpu_percent=rate if isinstance(rate, Unknown) else 100 * rate,
            memory_bytes=stat.resident_bytes,
            gpus=gpus,
        )

    def _is_owner(self, pid: int, stat: ProcessStat) -> bool:
        """Return whether the driver means this process, not one of another pid namespace."""
        if self._trusted:
            return True
        key = pid, stat.began
        if not self._owners.get(key):
            self._owners[key] = self._proc.has_gpu_open(pid)
        return self._owners[key]


def _shares(on_gpus: Sequence[GpuProcess]) -> dict[int, tuple[GpuShare, ...]]:
    """Return the use of each GPU by process, with MIG devices of a GPU added up."""
    found: dict[int, dict[int, list[int | Unknown]]] = {}
    for one in on_gpus:
        found.setdefault(one.pid, {}).setdefault(one.index, []).append(one.memory_used_bytes)
    return {
        pid: tuple(GpuShare(index, _total(parts)) for index, parts in sorted(gpus.items()))
        for pid, gpus in found.items()
    }


def _total(parts: Sequence[int | Unknown]) -> int | Unknown:
    total = added(parts)
    return total if isinstance(total, Unknown) else int(total)


def _hidden(pid: int, gpus: tuple[GpuShare, ...]) -> ProcessUse:
    return ProcessUse(pid, NOT_VISIBLE, OTHER.kind, None, None, None, None, _UNSEEN, _UNSEEN, gpus)
