"""What a process is to a notebook: by its arguments, and those of its parents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from workbench.resources.processes.proc import Proc, Stat
from workbench.resources.processes.rank_notices import RankName

# jupyter_client's name for a kernel's connection file; kernels of all languages are given it.
_CONNECTION = re.compile(r"kernel-([\w-]+)\.json$")
_LAUNCHERS = frozenset({"ipykernel_launcher", "ipykernel"})
_CLIENT = "--existing"
"""Of consoles that join a kernel, whose file they name."""
_AGENT = "workbench.rank.agent"
_LOOKS = 2
"""Times that a new process is looked at: the first may come before its exec."""
_TURNS = 30
"""Samples in which every process is looked at again: a number may have gone to another."""
_MOST_PARENTS = 32


class Role(NamedTuple):
    """What a process is: as `ProcessUse` has it."""

    kind: str
    kernel_id: str | None = None
    cluster: str | None = None
    rank: int | None = None


OTHER = Role("other")
StatOf = Callable[[int], Stat | None]


class Roles:
    """Finds kernels and ranks among all processes, at the cost of the new ones.

    Parameters
    ----------
    proc
        Where to look.
    """

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._looks: dict[int, int] = {}
        self._commands: dict[int, tuple[str, ...]] = {}
        self._began: dict[int, int] = {}
        self._turn = 0

    def find(
        self, pids: set[int], notices: Mapping[int, RankName], stat_of: StatOf
    ) -> dict[int, Role]:
        """Give the role of each kernel and rank.

        Parameters
        ----------
        pids
            All that run.
        notices
            What ranks that run say of themselves.
        stat_of
            Reads a process; of one sample, so that each is read once.
        """
        for pid, began in self._began.items():
            now = stat_of(pid)
            if now is not None and now.began != began:  # another process has its number
                self._looks.pop(pid, None)
        self._look(pids)
        self._began = {pid: stat.began for pid in self._commands if (stat := stat_of(pid))}
        roles = dict(self._kernels(stat_of))
        roles |= {pid: Role("rank") for pid in self._nameless_ranks(stat_of)}
        roles |= {pid: Role("rank", None, *name) for pid, name in notices.items()}
        return roles

    @staticmethod
    def origin(stat: Stat, roles: Mapping[int, Role], stat_of: StatOf) -> Role:
        """Give the role of a process that is neither: what it comes from is told with it."""
        parent: int = stat.parent
        for _ in range(_MOST_PARENTS):
            if parent in roles:
                return roles[parent]._replace(kind="other")
            above = stat_of(parent) if parent > 1 else None
            if above is None:
                break
            parent = above.parent
        return OTHER

    def _look(self, pids: set[int]) -> None:
        self._turn = (self._turn + 1) % _TURNS
        for gone in self._looks.keys() - pids:
            del self._looks[gone]
            self._commands.pop(gone, None)
        for pid in pids:
            looks = self._looks.get(pid, 0)
            if looks >= _LOOKS and pid % _TURNS != self._turn:
                continue
            self._looks[pid] = looks + 1
            self._commands.pop(pid, None)
            arguments = self._proc.arguments(pid)
            if _AGENT in arguments or _kernel(arguments):
                self._commands[pid] = arguments

    def _kernels(self, stat_of: StatOf) -> Iterator[tuple[int, Role]]:
        """Walk the kernels: not what they have forked, nor what has only started them."""
        found: dict[int, Role] = {}
        parents: dict[int, int] = {}
        for pid, arguments in self._commands.items():
            role = _kernel(arguments)
            stat = stat_of(pid) if role else None
            if role and stat and self._commands.get(stat.parent) != arguments:
                found[pid], parents[pid] = role, stat.parent
        # a script that starts a kernel is given its file too
        named = {pid: role for pid, role in found.items() if role.kernel_id}
        starters = {parents[pid] for pid, role in named.items() if named.get(parents[pid]) == role}
        return ((pid, role) for pid, role in found.items() if pid not in starters)

    def _nameless_ranks(self, stat_of: StatOf) -> Iterator[int]:
        """Walk what agents have forked: ranks, though of whom they are is not known."""
        for pid, arguments in self._commands.items():
            if _AGENT in arguments:
                stat = stat_of(pid)
                above = stat_of(stat.parent) if stat else None
                if stat is None or above is None or self._commands.get(stat.parent) != arguments:
                    continue
                # what a rank forks has the same arguments once more
                if self._commands.get(above.parent) != arguments:
                    yield pid


def _kernel(arguments: tuple[str, ...]) -> Role | None:
    """Give the role of a kernel by its arguments; None where they are no kernel's."""
    if any(each.startswith(_CLIENT) for each in arguments):
        return None
    found = (_CONNECTION.search(each) for each in arguments)
    kernel_id = next((match[1] for match in found if match), None)
    # nbclient and the like name connection files otherwise: a kernel of no server
    is_kernel = kernel_id is not None or not _LAUNCHERS.isdisjoint(arguments)
    return Role("kernel", kernel_id) if is_kernel else None
