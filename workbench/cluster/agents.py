"""The agents of all VMs of a cluster: brought up, looked at, asked, met again, taken down."""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.cluster import network, placement, preflight
from workbench.cluster.agent import Agent
from workbench.cluster.background import at_once
from workbench.cluster.child import Keep, exit_text
from workbench.cluster.options import Options
from workbench.errors import StartFailed

_PLACE = "WORKBENCH_PLACE"
"""Tells a rank's process its VM and slot, by which its engine is known."""
_THREADS = "WORKBENCH_THREADS"
_MEMORY_S = 1.0

Place = tuple[int, int]
"""A VM's number among the cluster's hosts, and a slot there."""
Process = tuple[int, int]
"""A VM's number, and a process id there."""


class Agents:
    """One agent per VM; VMs are numbered in the order of the hosts.

    Parameters
    ----------
    options
        Which VMs, and how they are reached.
    folder
        Where the sockets of kept ones are.
    progress
        Called, in threads, with how far each VM is on its way up.

    Attributes
    ----------
    preflight
        What was found on the VMs before their ranks were started; None on this machine.
    interrupted
        Set while a change of the ranks is to end soon: nothing is waited for.
    """

    def __init__(self, options: Options, folder: Path, progress: Callable[[str], None]) -> None:
        self._hosts = options.hosts
        self._slots = [host.slots for host in options.hosts] if options.hosts else [options.n]
        self._ssh_config = options.ssh_config
        self._timeout_s = options.start_timeout_s
        self._keep_s = options.keep_s
        self._folder = folder
        self._progress = progress
        self._agents: list[Agent] = []
        self._links: dict[int, network.Link] = {}
        self._layer: str | None = None
        self.preflight: preflight.Preflight | None = None
        self.interrupted = threading.Event()

    # up and down

    def spawn(self) -> None:
        """Start one on each VM."""
        for vm in range(len(self._slots)):
            self._agents.append(self._agent(vm))

    def find(self, state: dict[str, Any]) -> None:
        """Meet those that an earlier kernel has left; VMs that went meanwhile are lost.

        Raises
        ------
        StartFailed
            All are gone.
        """
        self._links = {int(vm): network.Link(**link) for vm, link in state["links"].items()}
        for vm, hello in enumerate(state["hellos"]):
            agent = self._agent(vm, found=True)
            agent.hello = agent.hello or hello
            self._agents.append(agent)
        there = [agent for agent in self._agents if not agent.lost]
        if not there:
            raise StartFailed("; ".join(agent.lost for agent in self._agents))
        self._wait_until_greeted(there)
        self._layer = placement.link_layer(self._agents)
        deadline = self._deadline()
        for agent in there:
            agent.wait_until_loaded(deadline)

    def to_state(self) -> dict[str, Any]:
        """Return what `find` needs in another kernel."""
        return {
            "links": {str(vm): asdict(link) for vm, link in self._links.items()},
            "hellos": [agent.hello for agent in self._agents],
        }

    def wait_until_greeted(self) -> None:
        """Wait until every VM answers.

        Raises
        ------
        StartFailed
            Those that do not: which, why, and what to do.
        """
        self._wait_until_greeted(self._agents)

    def wait_until_loaded(self) -> None:
        """Wait until every VM has loaded what ranks need.

        Raises
        ------
        StartFailed, HorovodMissing
            One cannot.
        """
        deadline = self._deadline()
        for agent in self._agents:
            agent.wait_until_loaded(deadline)

    def look(self) -> None:
        """Choose the VMs' links, and look at what would abort their ranks.

        Raises
        ------
        StartFailed
            They would fail.
        """
        self._look(self._agents)

    def revive(self, vm: int) -> None:
        """Take a VM in again where it is lost: a new agent, in the place of its old one.

        Raises
        ------
        StartFailed, HorovodMissing
            It does not answer, or its ranks would fail; then all is as before.
        """
        old = self._agents[vm]
        if not old.lost:
            return
        new = self._agent(vm)
        try:
            self._wait_until_greeted([new])
            new.ask("retire", **old.identity)
            new.wait_until_loaded(self._deadline())
            agents = [*self._agents[:vm], new, *self._agents[vm + 1 :]]
            self._look(agents)
        except BaseException:
            new.close()
            raise
        old.close()
        self._agents = agents

    def leave(self) -> None:
        """Let them run where they are kept, for the next kernel."""
        for agent in self._agents:
            agent.leave()

    def close(self) -> None:
        """End them, and with them all ranks."""
        at_once(self._agents, Agent.close)

    # ranks

    def start(self, place: Place, connection: dict[str, Any]) -> placement.Placement:
        """Start a rank's process in a place, and return what it uses of its VM.

        Parameters
        ----------
        connection
            How its engine finds the controller.
        """
        vm, slot = place
        agent = self._agents[vm]
        slots = max(self._slots[vm], slot + 1)  # on this machine there may come to be more
        plan = placement.place(
            agent.facts,
            self.interface(vm),
            slots,
            layer=self._layer,
            environment=agent.host.environment if agent.host else {},
        )[slot]
        agent.start(
            slot,
            connection=connection,
            environment={
                **plan.environment,
                _PLACE: f"{vm}:{slot}",
                _THREADS: str(agent.loaded["threads"] or ""),
            },
            cores=plan.cores,
        )
        return plan

    def wait_until_started(self, places: Iterable[Place]) -> dict[Place, Process]:
        """Wait until the ranks of these places have a process each.

        Raises
        ------
        StartFailed
            One has none.
        """
        deadline = self._deadline()
        return {
            (vm, slot): (vm, self._agents[vm].wait_until_started(slot, deadline))
            for vm, slot in places
        }

    def stop(self, places: Iterable[Place]) -> None:
        """End the ranks of these places."""
        for vm, slot in places:
            self._agents[vm].order("stop", slots=[slot])

    def check(self, processes: Iterable[Process], earlier: Mapping[Process, int]) -> None:
        """Raise `StartFailed` where a rank's process, or its VM's agent, has ended.

        Or where the change of the ranks was interrupted.

        Parameters
        ----------
        earlier
            The ranks of those processes that were in a ring before: they do not start.
        """
        if self.interrupted.is_set():
            raise StartFailed("interrupted")
        for vm, pid in processes:
            agent = self._agents[vm]
            end = agent.end_of(pid)
            if end is not None and (vm, pid) in earlier:
                why = f"rank {earlier[vm, pid]}: {self.why_lost((vm, pid))}"
                cure = "replace it with %cluster restart"
                if end.log and end.code != -signal.SIGKILL:  # SIGKILL leaves no last words
                    raise StartFailed(f"{why} ({cure}); its log ends:\n{end.log}")
                raise StartFailed(why, cure=cure)
            if end is not None:
                why = end.oom or ("its log ends" if end.log else "its log is empty")
                raise StartFailed(
                    f"the rank process {pid} on {agent.name} {exit_text(end.code)} while it "
                    f"started; {why}" + (f":\n{end.log}" if end.log else "")
                )
            if agent.lost:
                raise StartFailed(agent.lost)

    def why_lost(self, process: Process) -> str:
        """Return why a rank's process can no longer answer; empty while it can."""
        vm, pid = process
        agent = self._agents[vm]
        end = agent.end_of(pid)
        if end is None:
            return agent.lost or ("" if agent.started(pid) else f"{agent.name} was lost with it")
        text = f"its process {pid} on {agent.name} {exit_text(end.code)}"
        return f"{text} ({end.oom})" if end.oom else text

    # what the VMs are, and have

    @property
    def slots(self) -> list[int]:
        """Slots of each VM, whether it answers or not."""
        return list(self._slots)

    def lost(self) -> dict[int, str]:
        """Return why agents cannot be reached, by VM."""
        return {vm: agent.lost for vm, agent in enumerate(self._agents) if agent.lost}

    def places(self, n: int) -> set[Place]:
        """Return where `n` ranks can be: in the slots of VMs that answer, or on this machine."""
        if self._hosts is None:
            return {(0, slot) for slot in range(n)}
        return {
            (vm, slot)
            for vm, agent in enumerate(self._agents)
            if not agent.lost
            for slot in range(self._slots[vm])
        }

    def name(self, vm: int) -> str:
        """Return a VM's name for people."""
        return self._agents[vm].name

    def interface(self, vm: int) -> str:
        """Return the interface of a VM's collectives."""
        return self._links[vm].interface

    def kernel_address(self) -> str:
        """Return this machine's address as the VMs see it."""
        return network.kernel_address(self._agents)

    def memory_bytes(self) -> dict[Process, int]:
        """Return the resident memory of each rank's process on the VMs that answer."""
        found: dict[Process, int] = {}
        for vm, agent in enumerate(self._agents):
            if agent.lost:
                continue
            try:
                sizes = agent.ask("memory", _MEMORY_S)
            except StartFailed:
                continue
            found |= {(vm, int(pid)): size for pid, size in sizes.items()}
        return found

    @property
    def all(self) -> tuple[Agent, ...]:
        """The agents, in the order of the hosts."""
        return tuple(self._agents)

    # helpers

    def _agent(self, vm: int, *, found: bool = False) -> Agent:
        path = self._folder / f"agent-{vm}.sock"
        return Agent(
            None if self._hosts is None else self._hosts[vm],
            self._slots[vm],
            self._ssh_config,
            keep=None if self._keep_s is None else Keep(path, self._keep_s),
            found=found,
            on_change=self._tell_progress,
            interrupted=self.interrupted,
        )

    def _tell_progress(self) -> None:
        if self._hosts is not None:
            self._progress(", ".join(f"{agent.name}: {agent.progress}" for agent in self._agents))

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s

    def _wait_until_greeted(self, agents: list[Agent]) -> None:
        deadline, failed = self._deadline(), []
        for agent in agents:
            try:
                agent.wait_until_greeted(deadline)
            except StartFailed as error:
                failed.append(error)
        if failed:
            raise StartFailed.together(failed)

    def _look(self, agents: list[Agent]) -> None:
        there = [vm for vm, agent in enumerate(agents) if not agent.lost]
        up = [agents[vm] for vm in there]
        for vm, agent in zip(there, up, strict=True):
            for crowded in preflight.crowding(agent, self._slots[vm]):
                warnings.warn(crowded, RuntimeWarning, stacklevel=2)
        links = network.choose(up)
        if self._hosts is not None:
            self.preflight = preflight.check(
                preflight.Vms(up, links, [self._slots[vm] for vm in there])
            )
            if self.preflight.fatal:
                raise StartFailed.together(list(map(preflight.failure, self.preflight.fatal)))
        self._links = dict(zip(there, links, strict=True))
        self._layer = placement.link_layer(agents)
