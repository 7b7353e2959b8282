"""Ranks as processes in their places: who they are, room for more, and starting new ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.cluster.agents import Agents, Place, Process
from workbench.cluster.calls import Calls
from workbench.cluster.ranks import RankInfo
from workbench.errors import HorovodMissing, StartFailed, UsageError


@dataclass(frozen=True)
class Member:
    """One rank: its VM's number, its slot there, its engine, and who it is."""

    vm: int
    slot: int
    engine: int
    info: RankInfo

    @property
    def place(self) -> Place:
        """Where it is."""
        return self.vm, self.slot

    @property
    def process(self) -> Process:
        """What it runs in."""
        return self.vm, self.info.pid


def free_places(agents: Agents, kept: list[Member], count: int) -> list[Place]:
    """Return places for `count` more ranks: VMs in order, slots in order.

    Where too few are free, VMs that were lost are taken in again.

    Raises
    ------
    UsageError
        There are still too few.
    """
    taken = {member.place for member in kept}
    free = agents.places(len(kept) + count) - taken
    silent = []
    for vm in sorted(agents.lost()) if len(free) < count else ():
        try:
            agents.revive(vm)
        except (StartFailed, HorovodMissing) as error:
            silent.append(f"; {error}")
    free = agents.places(len(kept) + count) - taken
    if len(free) < count:
        raise UsageError(
            f"{len(kept) + count} ranks: the VMs that answer have {len(free | taken)} slots. "
            f"Start a cluster with more{''.join(silent)}."
        )
    return sorted(free)[:count]


def launch(
    agents: Agents, calls: Calls, connection: dict[str, Any], places: list[Place]
) -> list[Member]:
    """Start a process in each place, and return them, without a number yet, when all are there.

    Parameters
    ----------
    connection
        How an engine finds the controller.

    Raises
    ------
    StartFailed
        One did not come up; the others were ended.
    """
    try:
        return _launched(agents, calls, connection, places)
    except BaseException:
        agents.stop(places)  # what has started is in no ring, and must not stay
        raise


def _launched(
    agents: Agents, calls: Calls, connection: dict[str, Any], places: list[Place]
) -> list[Member]:
    known = calls.engines
    plans = {place: agents.start(place, connection) for place in places}
    processes = agents.wait_until_started(places)
    started = list(processes.values())
    members = []
    for engine, found in calls.greet_new(known, started).items():
        vm, slot = map(int, found["place"].split(":"))
        plan, name = plans[vm, slot], agents.name(vm)
        info = RankInfo(
            0, name, found["pid"], plan.gpu, plan.numa, plan.nic, "ready", found["threads"]
        )
        members.append(Member(vm, slot, engine, info))
    return members
