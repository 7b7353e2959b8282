"""Find the kernels, ranks and processes on GPUs, and measure what they use."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from workbench.resources.gpus.counters import GpuProcess
from workbench.resources.process_registry import RankName, RankRegistry
from workbench.resources.processes.proc import Proc, ProcessStat
from workbench.resources.unknown import Unknown
from workbench.resources.usage import NOT_VISIBLE, GpuShare, ProcessUse, Rate, sum_or_unknown

# Name of a kernel's connection file in jupyter_client; kernels of all languages have it.
_CONNECTION_FILE = re.compile(r"kernel-([\w-]+)\.json$")
_LAUNCHERS = frozenset({"ipykernel_launcher", "ipykernel"})
_CLIENT_OPTION = "--existing"
"""Option of consoles. It names the connection file of the kernel to attach to."""
_AGENT_MODULE = "workbench.agent.program"
_FIRST_CHECKS = 2
"""Number of checks of a new process: the first check may come before its exec."""
_RECHECK_SAMPLES = 30
"""Each process is checked again within this number of samples: its id may have been reused."""
_MAX_PARENTS = 32
_UNSEEN = Unknown(NOT_VISIBLE)


class Role(NamedTuple):
    """Role of a process; fields as in `ProcessUse`."""

    kind: str
    kernel_id: str | None = None
    cluster: str | None = None
    rank: int | None = None


OTHER = Role("other")
StatOf = Callable[[int], ProcessStat | None]


class Roles:
    """Finds kernels and ranks among all processes, reading only new processes."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._checks: dict[int, int] = {}
        self._commands: dict[int, tuple[str, ...]] = {}
        self._began: dict[int, int] = {}
        self._sample = 0

    def find(
        self, pids: set[int], ranks: Mapping[int, RankName], stat_of: StatOf
    ) -> dict[int, Role]:
        """Return the role of each kernel and rank among the running processes."""
        for pid, began in self._began.items():
            current = stat_of(pid)
            if current is not None and current.began != began:  # the id was reused
                self._checks.pop(pid, None)
        self._read_new(pids)
        self._began = {pid: stat.began for pid in self._commands if (stat := stat_of(pid))}
        roles = dict(self._kernels(stat_of))
        roles |= {pid: Role("rank") for pid in self._unregistered_ranks(stat_of)}
        roles |= {pid: Role("rank", None, *name) for pid, name in ranks.items()}
        return roles

    @staticmethod
    def role_by_parent(stat: ProcessStat, roles: Mapping[int, Role], stat_of: StatOf) -> Role:
        """Return ``"other"`` with the names of the kernel or rank that started the process."""
        parent: int = stat.parent
        for _ in range(_MAX_PARENTS):
            if parent in roles:
                return roles[parent]._replace(kind="other")
            above = stat_of(parent) if parent > 1 else None
            if above is None:
                break
            parent = above.parent
        return OTHER

    def _read_new(self, pids: set[int]) -> None:
        self._sample = (self._sample + 1) % _RECHECK_SAMPLES
        for pid in self._checks.keys() - pids:
            del self._checks[pid]
            self._commands.pop(pid, None)
        for pid in pids:
            checks = self._checks.get(pid, 0)
            if checks >= _FIRST_CHECKS and pid % _RECHECK_SAMPLES != self._sample:
                continue
            self._checks[pid] = checks + 1
            self._commands.pop(pid, None)
            arguments = self._proc.arguments(pid)
            if _AGENT_MODULE in arguments or _kernel(arguments):
                self._commands[pid] = arguments

    def _kernels(self, stat_of: StatOf) -> Iterator[tuple[int, Role]]:
        """Return the kernels, without their forks and the processes that started them."""
        kernels: dict[int, Role] = {}
        parents: dict[int, int] = {}
        for pid, arguments in self._commands.items():
            role = _kernel(arguments)
            stat = stat_of(pid) if role else None
            if role and stat and self._commands.get(stat.parent) != arguments:
                kernels[pid] = role
                parents[pid] = stat.parent
        # A script that starts a kernel also has the connection file in its arguments.
        named = {pid: role for pid, role in kernels.items() if role.kernel_id}
        starters = {parents[pid] for pid, role in named.items() if named.get(parents[pid]) == role}
        return ((pid, role) for pid, role in kernels.items() if pid not in starters)

    def _unregistered_ranks(self, stat_of: StatOf) -> Iterator[int]:
        """Yield the processes that agents have forked: ranks of unknown cluster and number."""
        for pid, arguments in self._commands.items():
            if _AGENT_MODULE in arguments:
                stat = stat_of(pid)
                above = stat_of(stat.parent) if stat else None
                if stat is None or above is None or self._commands.get(stat.parent) != arguments:
                    continue
                # A process that a rank forks has the same arguments again.
                if self._commands.get(above.parent) != arguments:
                    yield pid


def _kernel(arguments: tuple[str, ...]) -> Role | None:
    """Return the role of a kernel by its arguments; None if they are not a kernel's."""
    if any(argument.startswith(_CLIENT_OPTION) for argument in arguments):
        return None
    matches = (_CONNECTION_FILE.search(argument) for argument in arguments)
    kernel_id = next((match[1] for match in matches if match), None)
    # Kernels that nbclient and others start have connection files with other names.
    is_kernel = kernel_id is not None or not _LAUNCHERS.isdisjoint(arguments)
    return Role("kernel", kernel_id) if is_kernel else None


class ProcessMeter:
    """Reads the processes that matter to a notebook user.

    `ranks` is the folder in which ranks register; by default this user's folder.
    """

    def __init__(self, proc: Proc, ranks: Path | None = None) -> None:
        self._proc = proc
        self._roles = Roles(proc)
        self._ranks = RankRegistry(ranks)
        self._rates: dict[tuple[int, int], Rate] = {}
        self._owners: dict[tuple[int, int], bool] = {}
        self._same_pids = proc.is_whole_machine()

    def read(self, on_gpus: Sequence[GpuProcess]) -> tuple[ProcessUse, ...] | Unknown:
        """Return all kernels, all ranks, and the processes that the driver lists on GPUs.

        In a container, the driver's list `on_gpus` may contain process ids of the host.
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
        running = {(pid, stat.began) for pid, stat in seen.items()}
        self._rates = {key: self._rates.get(key) or Rate() for key in running}
        self._owners = {key: is_owner for key, is_owner in self._owners.items() if key in running}
        not_owned = {pid for pid in shares if pid not in seen or not self._is_owner(pid, seen[pid])}

        def role_of(pid: int, stat: ProcessStat) -> Role:
            return roles.get(pid) or self._roles.role_by_parent(stat, roles, stat_of)

        used = [
            self._use(
                pid, stat, role_of(pid, stat), () if pid in not_owned else shares.get(pid, ())
            )
            for pid, stat in seen.items()
            if pid in roles or pid not in not_owned
        ]
        hidden = (_hidden(pid, shares[pid]) for pid in sorted(not_owned))
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
        """Return whether the driver's id is this process, not one of another pid namespace."""
        if self._same_pids:
            return True
        key = (pid, stat.began)
        if not self._owners.get(key):
            self._owners[key] = self._proc.has_gpu_open(pid)
        return self._owners[key]


def _shares(on_gpus: Sequence[GpuProcess]) -> dict[int, tuple[GpuShare, ...]]:
    """Return the use of each GPU by process, with MIG devices of a GPU added up."""
    memory: dict[int, dict[int, list[int | Unknown]]] = {}
    for process in on_gpus:
        memory.setdefault(process.pid, {}).setdefault(process.index, []).append(
            process.memory_used_bytes
        )
    return {
        pid: tuple(GpuShare(index, _total(parts)) for index, parts in sorted(gpus.items()))
        for pid, gpus in memory.items()
    }


def _total(parts: Sequence[int | Unknown]) -> int | Unknown:
    total = sum_or_unknown(parts)
    return total if isinstance(total, Unknown) else int(total)


def _hidden(pid: int, gpus: tuple[GpuShare, ...]) -> ProcessUse:
    return ProcessUse(pid, NOT_VISIBLE, OTHER.kind, None, None, None, None, _UNSEEN, _UNSEEN, gpus)
