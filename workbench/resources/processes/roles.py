"""Find out which processes are kernels or ranks, by their and their parents' arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from workbench.resources.processes.proc import Proc, ProcessStat
from workbench.resources.processes.rank_registry import RankName

# Name of a kernel's connection file in jupyter_client; kernels of all languages have it.
_CONNECTION = re.compile(r"kernel-([\w-]+)\.json$")
_LAUNCHERS = frozenset({"ipykernel_launcher", "ipykernel"})
_CLIENT = "--existing"
"""Option of consoles, which name the connection file of the kernel that they attach to."""
_AGENT = "workbench.rank.agent"
_CHECKS = 2
"""How often a new process is checked: the first check may come before its exec."""
_RECHECK_SAMPLES = 30
"""Samples within which every process is checked again, as its id may have been reused."""
_MOST_PARENTS = 32


class Role(NamedTuple):
    """Role of a process; fields as in `ProcessUse`."""

    kind: str
    kernel_id: str | None = None
    cluster: str | None = None
    rank: int | None = None


OTHER = Role("other")
StatOf = Callable[[int], ProcessStat | None]


class Roles:
    """Finds kernels and ranks among all processes, reading only new processes.

    Parameters
    ----------
    proc
        Reads ``/proc``.
    """

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._checks: dict[int, int] = {}
        self._commands: dict[int, tuple[str, ...]] = {}
        self._began: dict[int, int] = {}
        self._sample = 0

    def find(
        self, pids: set[int], ranks: Mapping[int, RankName], stat_of: StatOf
    ) -> dict[int, Role]:
        """Return the role of each kernel and rank.

        Parameters
        ----------
        pids
            Ids of all running processes.
        ranks
            The registered ranks.
        stat_of
            Reads a process, with a cache so that a sample reads each process once.
        """
        for pid, began in self._began.items():
            current = stat_of(pid)
            if current is not None and current.began != began:  # the id was reused
                self._checks.pop(pid, None)
        self._read_new(pids)
        self._began = {pid: stat.began for pid in self._commands if (stat := stat_of(pid))}
        roles = dict(self._kernels(stat_of))
        roles |= {pid: Role("rank") for pid in self._nameless_ranks(stat_of)}
        roles |= {pid: Role("rank", None, *name) for pid, name in ranks.items()}
        return roles

    @staticmethod
    def origin(stat: ProcessStat, roles: Mapping[int, Role], stat_of: StatOf) -> Role:
        """Return the role of another process: ``"other"``, with its kernel's or rank's names."""
        parent: int = stat.parent
        for _ in range(_MOST_PARENTS):
            if parent in roles:
                return roles[parent]._replace(kind="other")
            above = stat_of(parent) if parent > 1 else None
            if above is None:
                break
            parent = above.parent
        return OTHER

    def _read_new(self, pids: set[int]) -> None:
        self._sample = (self._sample + 1) % _RECHECK_SAMPLES
        for gone in self._checks.keys() - pids:
            del self._checks[gone]
            self._commands.pop(gone, None)
        for pid in pids:
            checks = self._checks.get(pid, 0)
            if checks >= _CHECKS and pid % _RECHECK_SAMPLES != self._sample:
                continue
            self._checks[pid] = checks + 1
            self._commands.pop(pid, None)
            arguments = self._proc.arguments(pid)
            if _AGENT in arguments or _kernel(arguments):
                self._commands[pid] = arguments

    def _kernels(self, stat_of: StatOf) -> Iterator[tuple[int, Role]]:
        """Return the kernels, without their forks and the processes that started them."""
        found: dict[int, Role] = {}
        parents: dict[int, int] = {}
        for pid, arguments in self._commands.items():
            role = _kernel(arguments)
            stat = stat_of(pid) if role else None
            if role and stat and self._commands.get(stat.parent) != arguments:
                found[pid], parents[pid] = role, stat.parent
        # a script that starts a kernel has the connection file in its arguments too
        named = {pid: role for pid, role in found.items() if role.kernel_id}
        starters = {parents[pid] for pid, role in named.items() if named.get(parents[pid]) == role}
        return ((pid, role) for pid, role in found.items() if pid not in starters)

    def _nameless_ranks(self, stat_of: StatOf) -> Iterator[int]:
        """Yield the processes that agents have forked: ranks of unknown cluster and number."""
        for pid, arguments in self._commands.items():
            if _AGENT in arguments:
                stat = stat_of(pid)
                above = stat_of(stat.parent) if stat else None
                if stat is None or above is None or self._commands.get(stat.parent) != arguments:
                    continue
                # a process that a rank forks has the same arguments again
                if self._commands.get(above.parent) != arguments:
                    yield pid


def _kernel(arguments: tuple[str, ...]) -> Role | None:
    """Return the role of a kernel by its arguments; None if they are not a kernel's."""
    if any(each.startswith(_CLIENT) for each in arguments):
        return None
    found = (_CONNECTION.search(each) for each in arguments)
    kernel_id = next((match[1] for match in found if match), None)
    # nbclient and others name connection files differently: a kernel without a server
    is_kernel = kernel_id is not None or not _LAUNCHERS.isdisjoint(arguments)
    return Role("kernel", kernel_id) if is_kernel else None
