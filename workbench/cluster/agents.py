"""The agents of all VMs of a cluster: started, checked, attached to and ended together."""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.cluster.agent import Agent, grace_s, new_folder
from workbench.cluster.launchers import AgentStart, LocalLauncher, create, placement, preflight
from workbench.cluster.options import Options
from workbench.cluster.threads import at_once, interrupts_later
from workbench.errors import StartFailed
from workbench.ranks import Place, Process
from workbench.resources import Snapshot, Unknown
from workbench.resources.usage import Sample
from workbench.wire.address import Address
from workbench.wire.agent_messages import Hello, Load, StopRanks
from workbench.wire.detached import exit_text

_PLACE = "WORKBENCH_PLACE"
"""The environment variable with a rank's VM and slot, which identify its engine."""
_THREADS = "WORKBENCH_THREADS"
_LOG_S = 5.0
_MEMORY_S = 1.0
_MERGED_RANKS = 3
"""Records of so many ranks of a VM are merged; for fewer, a further process does not pay."""
_SNAPSHOT_S = 15.0
_SAMPLE_S = 5.0
"""NVML alone needs some of it for the first sample, where the driver is not kept loaded."""


class Agents:
    """One agent per VM; VMs are numbered in the order of the hosts.

    Parameters
    ----------
    options
        The arguments of the cluster.
    progress
        Called in the I/O thread (`AgentChannel`) with how far the start of each VM is.

    Attributes
    ----------
    options
        The arguments of the cluster; from `spawn` on, with the hosts of the launcher.
    launcher
        What starts the agents.
    all
        The agents, in the order of the hosts.
    links
        How each VM reaches the others.
    preflight
        What was found on the VMs before their ranks were started; None on this machine.
    interrupted
        Set while a change of the ranks must end soon: nothing is waited for.
    """

    def __init__(self, options: Options, progress: Callable[[str], None]) -> None:
        self.options = options
        self.launcher = create(options.launcher, options.ssh_config, options.mpi_args)
        if isinstance(self.launcher, LocalLauncher) and not options.cold:
            self.launcher.load = Load(options.n, options.backend)
        self._progress = progress
        self.all: list[Agent] = []
        self.links: dict[int, placement.Link] = {}
        self._layer: str | None = None
        self._given: dict[Place, dict[str, Any]] = {}
        """What the launcher gave to slots (`mpi_slot.slots`); mpiexec's are used once."""
        self.preflight: preflight.Preflight | None = None
        self.interrupted = threading.Event()

    @property
    def slots(self) -> list[int]:
        """The number of slots of each VM, whether it answers or not."""
        hosts = self.options.hosts
        return [host.slots for host in hosts] if hosts else [self.options.n]

    # start and stop

    def spawn(self) -> None:
        """Start the agent of each VM, when the launcher has hosts."""
        self.options = self.launcher.allocate(self.options, self._progress)
        self.all.clear()
        for vm, folder in self._launch(range(len(self.slots))).items():
            with interrupts_later():  # `close` would not end an agent that is not in the list
                self.all.append(self._agent(vm, chosen=folder))

    def attach(self, state: dict[str, Any]) -> None:
        """Attach to agents that a previous kernel has kept; VMs that are gone are lost.

        Raise `StartFailed` if all are gone.
        """
        self.launcher.allocate(self.options, self._progress)
        self.links = {int(vm): placement.Link(**link) for vm, link in state["links"].items()}
        for vm, path in enumerate(state["folders"]):
            with interrupts_later():
                self.all.append(self._agent(vm, folder=Path(path)))
        deadline = self._deadline()
        for vm, (agent, hello) in enumerate(zip(self.all, state["hellos"], strict=True)):
            if agent.wait_until_attached(deadline):
                agent.wait_until_loaded(deadline)
                if self.launcher.allocates:
                    self._ask_slots(vm, agent)
            elif not agent.hello.pid:
                agent.hello = Hello(**hello)
        if all(agent.lost for agent in self.all):
            raise StartFailed("; ".join(agent.lost for agent in self.all))
        self._layer = placement.link_layer(self.all)

    def to_state(self) -> dict[str, Any]:
        """Return what `attach` needs in another kernel."""
        return {
            "links": {str(vm): asdict(link) for vm, link in self.links.items()},
            "hellos": [asdict(agent.hello) for agent in self.all],
            "folders": [str(agent.folder) for agent in self.all],
        }

    def wait_until_greeted(self) -> None:
        """Wait until every VM answers; raise `StartFailed` about all VMs that do not."""
        deadline, failed = self._deadline(), []
        for agent in self.all:
            try:
                agent.wait_until_greeted(deadline)
            except StartFailed as error:
                failed.append(error)
        if failed:
            raise StartFailed.together(failed)

    def wait_until_loaded(self) -> None:
        """Wait until every VM has loaded what ranks need, and choose the VMs' links.

        Raise `StartFailed` if one cannot, or for problems that would stop its ranks.
        """
        deadline = self._deadline()
        for vm, agent in enumerate(self.all):
            agent.wait_until_loaded(deadline)
            self._ask_slots(vm, agent)
        self._run_preflight(self.all)

    def _ask_slots(self, vm: int, agent: Agent) -> None:
        if self.launcher.has_slots:
            slots = agent.ask("slots")
            for place in [place for place in self._given if place.vm == vm]:
                del self._given[place]  # of an agent that has ended
            self._given |= {Place(vm, int(slot)): given for slot, given in slots.items()}

    def _run_preflight(self, agents: list[Agent]) -> None:
        running = {vm: agent for vm, agent in enumerate(agents) if not agent.lost}
        for vm, agent in running.items():
            for warning in preflight.crowding(agent, self.slots[vm]):
                warnings.warn(warning, RuntimeWarning, stacklevel=2)
        there = list(running.values())
        links = placement.choose(there)
        vms = preflight.Vms(there, links, [self.slots[vm] for vm in running])
        for found in preflight.too_few_gpus(vms):
            text = f"{found.subject}: {found.evidence}. {found.why} To go on, {found.cure}."
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        if self.options.hosts is not None:
            self.preflight = preflight.check(vms)
            if self.preflight.fatal:
                raise StartFailed.together(list(map(preflight.failure, self.preflight.fatal)))
        self.links = dict(zip(running, links, strict=True))
        self._layer = placement.link_layer(agents)

    def revive(self, vm: int) -> None:
        """Start another agent on a VM that is lost.

        Raise `StartFailed` if the VM does not answer, or its ranks would fail; then nothing has
        changed.
        """
        old = self.all[vm]
        if not old.lost:
            return
        new = self._agent(vm, chosen=self._launch([vm])[vm])
        try:
            deadline = self._deadline()
            new.wait_until_greeted(deadline)
            new.ask("retire", pid=old.hello.pid, began=old.hello.began)
            new.wait_until_loaded(self._deadline())
            if self.launcher.allocates:
                self._ask_slots(vm, new)
            agents = [*self.all[:vm], new, *self.all[vm + 1 :]]
            self._run_preflight(agents)
        except BaseException:
            new.close()
            raise
        old.close()
        self.all = agents

    def close(self) -> None:
        """End all agents and ranks, and release what the launcher has started or allocated."""
        try:
            at_once(self.all, Agent.close)
        finally:
            self.launcher.release()

    # ranks

    def start(
        self, place: Place, connection: dict[str, Any], records: Callable[[int], Address]
    ) -> placement.Placement:
        """Start a rank's process in a place, and return what it uses of its VM.

        `connection` says how its engine finds the controller; `records` returns the kernel's
        address for the merged records of a VM.
        """
        vm, slot = place
        agent = self.all[vm]
        slots = max(self.slots[vm], slot + 1)  # on this machine a resize may add slots
        # a later rank cannot join the same MPI job
        take = self._given.get if self.launcher.allocates else self._given.pop
        given = take(place, {})
        plan = placement.place(
            agent.facts,
            self.links[vm].interface,
            slots,
            layer=self._layer,
            environment=agent.host.environment if agent.host else {},
            visible=given.get("environment", {}).get("CUDA_VISIBLE_DEVICES"),
        )[slot]
        agent.start(
            slot,
            connection=connection,
            environment={
                **given.get("environment", {}),
                **plan.environment,
                _PLACE: f"{vm}:{slot}",
                _THREADS: str(agent.loaded.threads or ""),
            },
            cores=given.get("cores") or list(plan.cores),
            stream=records(vm) if slots >= _MERGED_RANKS else None,
        )
        return plan

    def wait_until_started(self, places: Iterable[Place]) -> list[Process]:
        """Wait until the ranks of these places have a process each, and return the processes.

        Raise `StartFailed` if one has none.
        """
        deadline = self._deadline()
        return [Process(vm, self.all[vm].wait_until_started(n, deadline)) for vm, n in places]

    def stop(self, places: Iterable[Place]) -> None:
        """End the ranks of these places."""
        for vm, slot in places:
            self.all[vm].send(StopRanks([slot]))

    def check(self, processes: Iterable[Process], earlier: Mapping[Process, int]) -> None:
        """Raise `StartFailed` if a rank's process or an agent has ended, or after an interrupt.

        `earlier` are the ranks of processes that have been in a ring: their end is a loss, not a
        failed start.
        """
        if self.interrupted.is_set():
            raise StartFailed("interrupted")
        for process in processes:
            agent, pid = self.all[process.vm], process.pid
            end = agent.ends.get(pid)
            if end is not None and process in earlier:
                why = f"rank {earlier[process]}: {agent.why_lost(pid)}"
                cure = "replace it with %cluster restart"
                if end.log and end.code != -signal.SIGKILL:
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

    # state of the VMs

    def lost(self) -> dict[int, str]:
        """Return why agents cannot be reached, by VM."""
        return {vm: agent.lost for vm, agent in enumerate(self.all) if agent.lost}

    def _launch(self, vms: Iterable[int]) -> dict[int, Path]:
        """Choose the folders of the agents of these VMs; start all at once if the launcher does."""
        folders = {vm: new_folder() for vm in vms}
        hosts, slots = self.options.hosts or (None,), self.slots
        starts = [AgentStart(hosts[vm], slots[vm], path) for vm, path in folders.items()]
        grace = grace_s(self.options.keep_s)
        self.launcher.launch(starts, grace, self._deadline(), self.interrupted)
        return folders

    def _agent(self, vm: int, **folder: Path) -> Agent:
        return Agent(
            self.options.hosts[vm] if self.options.hosts else None,
            self.slots[vm],
            self.launcher,
            keep_s=self.options.keep_s,
            on_change=self._tell_progress,
            interrupted=self.interrupted,
            backend=self.options.backend,
            **folder,
        )

    def _tell_progress(self) -> None:
        if self.options.hosts is not None:
            self._progress(", ".join(f"{agent.name}: {agent.progress}" for agent in self.all))

    def _deadline(self) -> float:
        return time.monotonic() + self.options.start_timeout_s


def snapshots(agents: Sequence[Agent]) -> dict[str, Snapshot]:
    """Return what each VM that answers has now, by its name."""
    return {
        agent.name: Snapshot.from_plain(plain)
        for agent, plain in zip(agents, _answers(agents, "snapshot", _SNAPSHOT_S), strict=True)
        if not isinstance(plain, Unknown)
    }


def samples(agents: Sequence[Agent]) -> dict[str, Sample | Unknown]:
    """Return what is used of each VM now, by its name, or why that is not known."""
    return {
        agent.name: plain if isinstance(plain, Unknown) else Sample.from_plain(plain)
        for agent, plain in zip(agents, _answers(agents, "sample", _SAMPLE_S), strict=True)
    }


def memory_bytes(agents: Sequence[Agent]) -> dict[Process, int]:
    """Return the resident memory of each rank's process on the VMs that answer."""
    return {
        Process(vm, int(pid)): size
        for vm, sizes in enumerate(_answers(agents, "memory", _MEMORY_S))
        if not isinstance(sizes, Unknown)
        for pid, size in sizes.items()
    }


def agent_logs(agents: Sequence[Agent]) -> list[dict[str, str] | Unknown]:
    """Return the log of each agent, by "", and of its ranks, by their process ids."""
    return _answers(agents, "log", _LOG_S)


def _answers(agents: Sequence[Agent], kind: str, limit_s: float) -> list[Any]:
    """Ask all agents at once, and return their answers, or `Unknown`, in order."""
    questions = [agent.post(kind) for agent in agents]
    deadline = time.monotonic() + limit_s
    return [
        agent.answer(question, deadline) for agent, question in zip(agents, questions, strict=True)
    ]
