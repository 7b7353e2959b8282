"""Start, check, attach to and end the agents of all VMs of a cluster."""

from __future__ import annotations

import logging
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
from workbench.cluster.threads import defer_interrupts, run_concurrently
from workbench.errors import StartFailed
from workbench.ranks import Place, Process
from workbench.resources import Snapshot, Unknown
from workbench.resources.usage import Sample
from workbench.wire.address import Address
from workbench.wire.agent_messages import Hello, Load, StopRanks
from workbench.wire.detached import exit_text

_log = logging.getLogger(__name__)

_PLACE = "WORKBENCH_PLACE"
"""The environment variable with a rank's VM and slot, which identify its engine."""
_THREADS = "WORKBENCH_THREADS"
_LOG_S = 5.0
_MEMORY_S = 1.0
_MERGED_RANKS = 3
"""A VM with at least this many ranks merges their records in a further process."""
_SNAPSHOT_S = 15.0
_SAMPLE_S = 5.0
"""NVML needs part of this time for the first sample if the driver is not kept loaded."""


class Agents:
    """The agents of a cluster, one per VM; VMs are numbered in the order of the hosts.

    Parameters
    ----------
    options
        The arguments of the cluster.
    progress
        Called in the I/O thread (`AgentChannel`) with the progress of each VM's start.

    Attributes
    ----------
    options
        The arguments of the cluster; from `spawn` on, with the hosts of the launcher.
    launcher
        The launcher that starts the agents.
    all
        The agents, in the order of the hosts.
    links
        How each VM reaches the others.
    preflight
        The findings about the VMs before their ranks were started; None on this machine.
    interrupted
        Set while a change of the ranks must end soon; then no method waits.
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
        self._slot_resources: dict[Place, dict[str, Any]] = {}
        """The launcher's resources by slot (`mpi_slot.slots`); those of mpiexec are used once."""
        self.preflight: preflight.Preflight | None = None
        self.interrupted = threading.Event()

    @property
    def slots(self) -> list[int]:
        """The number of slots of each VM, including VMs that do not answer."""
        hosts = self.options.hosts
        return [host.slots for host in hosts] if hosts else [self.options.n]

    # start and stop

    def spawn(self) -> None:
        """Start the agent of each VM, after the launcher has allocated the hosts."""
        self.options = self.launcher.allocate(self.options, self._progress)
        self.all.clear()
        for vm, folder in self._launch(range(len(self.slots))).items():
            with defer_interrupts():  # `close` only ends agents that are in the list
                self.all.append(self._agent(vm, assigned_folder=folder))

    def attach(self, state: dict[str, Any]) -> None:
        """Attach to agents that a previous kernel has kept; VMs without an agent are lost.

        Raise `StartFailed` if no agent answers.
        """
        self.launcher.allocate(self.options, self._progress)
        self.links = {int(vm): placement.Link(**link) for vm, link in state["links"].items()}
        for vm, path in enumerate(state["folders"]):
            with defer_interrupts():
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
        """Return the state that `attach` needs in another kernel."""
        return {
            "links": {str(vm): asdict(link) for vm, link in self.links.items()},
            "hellos": [asdict(agent.hello) for agent in self.all],
            "folders": [str(agent.folder) for agent in self.all],
        }

    def wait_until_greeted(self) -> None:
        """Wait until every VM answers; raise `StartFailed` about all VMs that do not."""
        deadline = self._deadline()
        errors = []
        for agent in self.all:
            try:
                agent.wait_until_greeted(deadline)
            except StartFailed as error:
                errors.append(error)
        if errors:
            raise StartFailed.together(errors)
        _log.debug("all %d VMs answer", len(self.all))

    def wait_until_loaded(self) -> None:
        """Wait until every VM has loaded what ranks need, and choose the VMs' links.

        Raise `StartFailed` if a VM cannot load it, or has a problem that would stop its ranks.
        """
        deadline = self._deadline()
        for vm, agent in enumerate(self.all):
            agent.wait_until_loaded(deadline)
            self._ask_slots(vm, agent)
        self._run_preflight(self.all)

    def _ask_slots(self, vm: int, agent: Agent) -> None:
        if self.launcher.has_slots:
            slots = agent.ask("slots")
            for vm_slot in [vm_slot for vm_slot in self._slot_resources if vm_slot.vm == vm]:
                del self._slot_resources[vm_slot]  # an earlier agent has reported these
            self._slot_resources |= {
                Place(vm, int(slot)): resources for slot, resources in slots.items()
            }

    def _run_preflight(self, agents: list[Agent]) -> None:
        running = {vm: agent for vm, agent in enumerate(agents) if not agent.lost}
        for vm, agent in running.items():
            for warning in preflight.crowding(agent, self.slots[vm]):
                warnings.warn(warning, RuntimeWarning, stacklevel=2)
        reachable = list(running.values())
        links = placement.choose(reachable)
        vms = preflight.Vms(reachable, links, [self.slots[vm] for vm in running])
        for finding in preflight.too_few_gpus(vms):
            text = f"{finding.subject}: {finding.evidence}. {finding.why} To go on, {finding.fix}."
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        if self.options.hosts is not None:
            self.preflight = preflight.check(vms)
            if self.preflight.fatal:
                raise StartFailed.together(list(map(preflight.failure, self.preflight.fatal)))
        self.links = dict(zip(running, links, strict=True))
        self._layer = placement.link_layer(agents)

    def restart_agent(self, vm: int) -> None:
        """Start another agent on a VM that is lost.

        Raise `StartFailed` if the VM does not answer, or its ranks would fail; then nothing has
        changed.
        """
        old = self.all[vm]
        if not old.lost:
            return
        _log.info("starting another agent on %s, which was lost: %s", old.name, old.lost)
        new = self._agent(vm, assigned_folder=self._launch([vm])[vm])
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
        """End all agents and ranks, and release all that the launcher has started or allocated."""
        try:
            run_concurrently(self.all, Agent.close)
        finally:
            self.launcher.release()

    # ranks

    def start(
        self, vm_slot: Place, connection: dict[str, Any], records: Callable[[int], Address]
    ) -> placement.Placement:
        """Start a rank's process in a slot of a VM, and return what it uses of the VM.

        `connection` says how the rank's engine connects to the controller; `records` returns the
        kernel's address for the merged records of a VM.
        """
        vm, slot = vm_slot
        agent = self.all[vm]
        slots = max(self.slots[vm], slot + 1)  # on this machine a resize may add slots
        if self.launcher.allocates:
            resources = self._slot_resources.get(vm_slot, {})
        else:  # a later rank cannot join the same MPI job
            resources = self._slot_resources.pop(vm_slot, {})
        plan = placement.place(
            agent.facts,
            self.links[vm].interface,
            slots,
            layer=self._layer,
            environment=agent.host.environment if agent.host else {},
            visible=resources.get("environment", {}).get("CUDA_VISIBLE_DEVICES"),
        )[slot]
        agent.start(
            slot,
            connection=connection,
            environment={
                **resources.get("environment", {}),
                **plan.environment,
                _PLACE: f"{vm}:{slot}",
                _THREADS: str(agent.loaded.threads or ""),
            },
            cores=resources.get("cores") or list(plan.cores),
            stream=records(vm) if slots >= _MERGED_RANKS else None,
        )
        return plan

    def wait_until_started(self, vm_slots: Iterable[Place]) -> list[Process]:
        """Wait until the rank in each of these slots has a process, and return the processes.

        Raise `StartFailed` if a rank has no process.
        """
        deadline = self._deadline()
        return [
            Process(vm, self.all[vm].wait_until_started(slot, deadline)) for vm, slot in vm_slots
        ]

    def stop(self, vm_slots: Iterable[Place]) -> None:
        """End the ranks in these slots."""
        for vm, slot in vm_slots:
            _log.debug("ending the rank in slot %d of VM %d", slot, vm)
            self.all[vm].send(StopRanks([slot]))

    def check(self, processes: Iterable[Process], earlier: Mapping[Process, int]) -> None:
        """Raise `StartFailed` if a rank's process or an agent has ended, or after an interrupt.

        `earlier` has the ranks of processes that have been in a ring, by process. Their end is a
        loss, not a failed start.
        """
        if self.interrupted.is_set():
            raise StartFailed("interrupted")
        for process in processes:
            agent = self.all[process.vm]
            pid = process.pid
            end = agent.ends.get(pid)
            if end is not None and process in earlier:
                cause = f"rank {earlier[process]}: {agent.rank_lost_reason(pid)}"
                fix = "replace it with %cluster restart"
                if end.log and end.code != -signal.SIGKILL:
                    raise StartFailed(f"{cause} ({fix}); its log ends:\n{end.log}")
                raise StartFailed(cause, fix=fix)
            if end is not None:
                reason = end.oom or ("its log ends" if end.log else "its log is empty")
                raise StartFailed(
                    f"the rank process {pid} on {agent.name} {exit_text(end.code)} while it "
                    f"started; {reason}" + (f":\n{end.log}" if end.log else "")
                )
            if agent.lost:
                raise StartFailed(agent.lost)

    # state of the VMs

    def lost(self) -> dict[int, str]:
        """Return why agents cannot be reached, by VM."""
        return {vm: agent.lost for vm, agent in enumerate(self.all) if agent.lost}

    def _launch(self, vms: Iterable[int]) -> dict[int, Path]:
        """Choose the agents' folders on these VMs; some launchers also start all agents here."""
        folders = {vm: new_folder() for vm in vms}
        hosts = self.options.hosts or (None,)
        slots = self.slots
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
            on_change=self._report_progress,
            interrupted=self.interrupted,
            backend=self.options.backend,
            **folder,
        )

    def _report_progress(self) -> None:
        if self.options.hosts is not None:
            self._progress(", ".join(f"{agent.name}: {agent.progress}" for agent in self.all))

    def _deadline(self) -> float:
        return time.monotonic() + self.options.start_timeout_s


def snapshots(agents: Sequence[Agent]) -> dict[str, Snapshot]:
    """Return a snapshot of each VM that answers, by its name."""
    return {
        agent.name: Snapshot.from_plain(plain)
        for agent, plain in zip(agents, _answers(agents, "snapshot", _SNAPSHOT_S), strict=True)
        if not isinstance(plain, Unknown)
    }


def samples(agents: Sequence[Agent]) -> dict[str, Sample | Unknown]:
    """Return the current use of each VM, or `Unknown` with the reason, by its name."""
    return {
        agent.name: plain if isinstance(plain, Unknown) else Sample.from_plain(plain)
        for agent, plain in zip(agents, _answers(agents, "sample", _SAMPLE_S), strict=True)
    }


def memory_bytes(agents: Sequence[Agent]) -> dict[Process, int]:
    """Return the resident memory in bytes of each rank's process on the VMs that answer."""
    return {
        Process(vm, int(pid)): size
        for vm, sizes in enumerate(_answers(agents, "memory", _MEMORY_S))
        if not isinstance(sizes, Unknown)
        for pid, size in sizes.items()
    }


def agent_logs(agents: Sequence[Agent]) -> list[dict[str, str] | Unknown]:
    """Return a dict per VM: the log of the agent, with key "", and of its ranks, by process id."""
    return _answers(agents, "log", _LOG_S)


def _answers(agents: Sequence[Agent], kind: str, limit_s: float) -> list[Any]:
    """Ask all agents concurrently, and return their answers, or `Unknown`, in order."""
    questions = [agent.post(kind) for agent in agents]
    deadline = time.monotonic() + limit_s
    return [
        agent.answer(question, deadline) for agent, question in zip(agents, questions, strict=True)
    ]
