"""The engines of a cluster as ranks: brought up, joined in a ring, called, replaced, taken down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cluster import network, placement, preflight
from workbench.cluster.agents import Agent, Keep, at_once
from workbench.cluster.child import exit_text
from workbench.cluster.controller_process import ControllerProcess
from workbench.cluster.options import Options
from workbench.cluster.ranks import RankInfo, ranks_text
from workbench.errors import StartFailed, UsageError
from workbench.resources import Snapshot

if TYPE_CHECKING:
    import ipyparallel

    from workbench.timings import Timings
    from workbench.wire import Inbox

_PLACE = "WORKBENCH_PLACE"
"""Tells a rank's process its VM and slot, by which its engine is known."""
_THREADS = "WORKBENCH_THREADS"
_POLL_S = 0.02
_ANSWER_S = 0.1


@dataclass(frozen=True)
class _Member:
    """One rank: its VM's number, its slot there, its engine, and who it is."""

    vm: int
    slot: int
    engine: int
    info: RankInfo


class Engines:
    """ipyparallel engines, here or on VMs; `spawn`, `greet`, then `start` make ranks of them.

    Parameters
    ----------
    options
        How many, and where.
    folder
        Of a cluster that runs already, to be met again by `find`.
    progress
        Called, in threads, with how far each VM is on its way up.

    Attributes
    ----------
    preflight
        What was found on the VMs before the ranks were started.
    """

    def __init__(
        self,
        options: Options,
        folder: Path | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._progress = progress
        self.preflight: preflight.Preflight | None = None
        self._hosts = options.hosts
        self._slots = [host.slots for host in options.hosts] if options.hosts else [options.n]
        self._ssh_config = options.ssh_config
        self._timeout_s = options.start_timeout_s
        self._keep_s = options.keep_s
        self._controller = ControllerProcess(folder)
        self._agents: list[Agent] = []
        self._links: list[network.Link] = []
        self._address = "127.0.0.1"
        self._connection: dict[str, Any] = {}
        self._client: ipyparallel.Client | None = None
        self._control: Inbox | None = None
        self._timings: Timings | None = None
        self._members: list[_Member] = []
        self._given_up: set[int] = set()

    @property
    def ranks(self) -> list[RankInfo]:
        """Who the ranks are, once they have said hello."""
        return [member.info for member in self._members]

    # the start

    def spawn(self) -> None:
        """Start the processes, which then need no one for a while; `stop` ends them."""
        if self._hosts is None:
            self._controller.start(self._address, self._keep_s)
        self._add_agents(found=False)

    def _add_agents(self, *, found: bool) -> None:
        for vm, slots in enumerate(self._slots):
            host = None if self._hosts is None else self._hosts[vm]
            path = self.folder / f"agent-{vm}.sock"
            keep = None if self._keep_s is None else Keep(path, self._keep_s)
            self._agents.append(
                Agent(
                    host,
                    slots,
                    self._ssh_config,
                    keep=keep,
                    found=found,
                    on_change=self._tell_progress,
                )
            )

    def _tell_progress(self) -> None:
        if self._hosts is not None and not self._members:
            self._progress(", ".join(f"{agent.name}: {agent.progress}" for agent in self._agents))

    @property
    def address(self) -> str:
        """The address at which the VMs see this machine."""
        return self._address

    @property
    def folder(self) -> Path:
        """Where the cluster's files are."""
        return self._controller.folder

    def to_state(self) -> dict[str, Any]:
        """Return what `find` needs in another kernel."""
        return {
            "address": self._address,
            "slots": self._slots,
            "links": [asdict(link) for link in self._links],
            "connection": self._connection,
            "members": [asdict(member) for member in self._members],
        }

    def find(self, state: dict[str, Any], control: Inbox, timings: Timings) -> None:
        """Meet the engines that an earlier kernel has left, which may run a cell still.

        Raises
        ------
        StartFailed
            They are gone.
        """
        import ipyparallel

        self._control, self._timings = control, timings
        self._address, self._connection = state["address"], state["connection"]
        self._slots = state["slots"]
        self._links = [network.Link(**link) for link in state["links"]]
        self._controller.find()
        self._add_agents(found=True)
        self._wait_for_greetings()
        for agent in self._agents:
            agent.wait_until_loaded(self._deadline())
        self._members = [
            _Member(**{**member, "info": RankInfo(**member["info"])}) for member in state["members"]
        ]
        self._client = ipyparallel.Client(str(self._controller.client_file))

    def wait_until_idle(self) -> None:
        """Wait for the cells that still run."""
        engines = [m.engine for m in self._members if m.info.rank not in self.lost()]
        self._call_engines(engines, "idle", [()] * len(engines), patience_s=float("inf"))

    def leave(self) -> None:
        """Let everything run where it is kept, for the next kernel."""
        if self._client is not None:
            self._client.close()
        for agent in self._agents:
            agent.leave()
        self._controller.leave()

    def greet(self) -> str:
        """Wait until every VM answers, and return the address at which they see this machine.

        Raises
        ------
        StartFailed
            Those that do not answer: which, why, and what to do.
        """
        if self._hosts is not None:
            self._wait_for_greetings()
            self._address = network.kernel_address(self._agents)
            self._controller.start(self._address, self._keep_s)
        return self._address

    def start(self, control: Inbox, timings: Timings) -> None:
        """Make ranks of the processes: every one is known to be ready before any calls hvd.init().

        Raises
        ------
        StartFailed, HorovodMissing
            They did not come up; `stop` takes down what had started.
        """
        # imported while the processes start, which takes as long
        import ipyparallel

        self._control, self._timings = control, timings
        self._wait_for_greetings()
        self._connection = self._controller.wait(self._timeout_s)
        self._client = ipyparallel.Client(str(self._controller.client_file))
        for agent in self._agents:
            agent.wait_until_loaded(self._deadline())
        self._links = network.choose(self._agents)
        if self._hosts is not None:
            self.preflight = preflight.look(self._agents, self._links, self._slots)
            if self.preflight.fatal:
                raise StartFailed.together([fatal.failure() for fatal in self.preflight.fatal])
        places = [(vm, slot) for vm, count in enumerate(self._slots) for slot in range(count)]
        self._admit(self._launch(places))

    def reform(self) -> None:
        """Leave a broken ring and form a new one; namespaces stand."""
        self._part(self._members, torn=False)
        self._meet()

    def restart(self, ranks: Iterable[int]) -> None:
        """Put new processes in the place of some ranks; the others keep their variables.

        Raises
        ------
        StartFailed
            A VM of theirs is lost, or a new process did not come up.
        """
        chosen = sorted(set(ranks))
        for rank in chosen:
            vm = self._members[rank].vm
            if self._agents[vm].lost:
                raise StartFailed(
                    f"rank {rank} cannot be started anew: {self._agents[vm].lost}",
                    cure="go on without that VM with %cluster resize",
                )
        places = [(self._members[rank].vm, self._members[rank].slot) for rank in chosen]
        kept = [member for rank, member in enumerate(self._members) if rank not in chosen]
        self._regroup(kept, places)

    def resize(self, n: int | None) -> None:
        """Have `n` ranks; the first that are still there stay, and keep their variables.

        Parameters
        ----------
        n
            None drops the ranks that are lost, and starts none.
        """
        lost = self.lost()
        alive = [member for rank, member in enumerate(self._members) if rank not in lost]
        wanted = len(alive) if n is None else n
        if wanted < 1:
            raise UsageError("no rank is left: stop the cluster, and start another")
        kept = alive[:wanted]
        self._regroup(kept, self._free_places(kept, wanted - len(kept)))

    def _free_places(self, kept: list[_Member], count: int) -> list[tuple[int, int]]:
        """Return places for `count` more ranks: VMs in order, slots in order."""
        taken = {(member.vm, member.slot) for member in kept}
        if self._hosts is None:
            slots = [len(kept) + count]
        else:
            slots = [
                0 if agent.lost else n for agent, n in zip(self._agents, self._slots, strict=True)
            ]
        free = [(vm, slot) for vm, n in enumerate(slots) for slot in range(n)]
        free = [place for place in free if place not in taken]
        if len(free) < count:
            raise UsageError(
                f"{len(kept) + count} ranks were asked for: the VMs that answer have "
                f"{sum(slots)} slots; start a cluster with more"
            )
        return free[:count]

    def _regroup(self, kept: list[_Member], places: list[tuple[int, int]]) -> None:
        """Form a ring of the ranks that stay and of new ones, in the order of VMs and slots."""
        lost = self.lost()
        # all leave the ring before any ends: the others would wait for it
        self._part([m for m in self._members if m.info.rank not in lost], torn=bool(lost))
        for member in self._members:
            if member not in kept:
                self._agents[member.vm].order("stop", slots=[member.slot])
        self._members = kept
        added = self._launch(places) if places else []
        self._admit([*kept, *added])

    def _launch(self, places: list[tuple[int, int]]) -> list[_Member]:
        """Start a process in each place, and return them once they have said hello."""
        try:
            return self._launched(places)
        except BaseException:
            for vm, slot in places:  # what has started is in no ring, and must not stay
                self._agents[vm].order("stop", slots=[slot])
            raise

    def _launched(self, places: list[tuple[int, int]]) -> list[_Member]:
        assert self._client is not None
        known = set(self._client.ids)
        plans = {(vm, slot): self._plan(vm, slot) for vm, slot in places}
        for (vm, slot), plan in plans.items():
            self._agents[vm].start(
                slot,
                connection=self._connection,
                environment={
                    **plan.environment,
                    _PLACE: f"{vm}:{slot}",
                    _THREADS: str(self._agents[vm].loaded["threads"] or ""),
                },
                cores=plan.cores,
            )
        deadline = self._deadline()
        pids = {p: self._agents[p[0]].wait_until_started(p[1], deadline) for p in places}
        engines = self._wait_for_engines(known, pids)
        greetings = self._call_engines(
            engines,
            "hello",
            [()] * len(engines),
            watched=[(self._agents[vm], pid) for (vm, _), pid in pids.items()],
        )
        members = []
        for engine, found in zip(engines, greetings, strict=True):
            if found["pid"] not in pids.values():
                continue  # left over from a start that failed
            vm, slot = map(int, found["place"].split(":"))
            info = self._info(vm, plans[vm, slot], found)
            members.append(_Member(vm, slot, engine, info))
        return members

    def _plan(self, vm: int, slot: int) -> placement.Placement:
        slots = max(self._slots[vm], slot + 1)  # on this machine there may come to be more
        return placement.place(self._agents[vm].facts, self._links[vm].interface, slots)[slot]

    def _info(self, vm: int, plan: placement.Placement, found: dict[str, Any]) -> RankInfo:
        name = found["host"] if self._hosts is None else self._agents[vm].name
        return RankInfo(
            0, name, found["pid"], plan.gpu, plan.numa, plan.nic, "ready", found["threads"]
        )

    def _admit(self, members: list[_Member]) -> None:
        """Number the members as ranks, give them their channels, and form the ring."""
        ordered = sorted(members, key=lambda member: (member.vm, member.slot))
        self._members = [
            replace(member, info=replace(member.info, rank=rank))
            for rank, member in enumerate(ordered)
        ]
        assert self._control is not None
        assert self._timings is not None
        n = len(ordered)
        self._timings.joined()
        addresses = [(self._control.address_for(r), self._timings.address_for(r)) for r in range(n)]
        self._call("join", [(a.to_content(), b.to_content(), n) for a, b in addresses])
        self._meet()

    # while they run

    def run(self, rank: int, number: int, source: str) -> Any:
        """Send a cell to a rank; how it ends travels over the rank's own channel.

        Returns ipyparallel's result, which only fails where that channel could not be used.
        """
        assert self._client is not None
        engine = self._client[self._members[rank].engine]
        return engine.apply_async(_Remote("run_cell"), number, source)

    def view(self, ranks: Iterable[int]) -> Any:
        """Return ipyparallel's view of some ranks."""
        assert self._client is not None
        return self._client[[self._members[rank].engine for rank in ranks]]

    def lost(self) -> dict[int, str]:
        """Return why ranks can no longer answer, by rank."""
        if self._controller.ended:
            return dict.fromkeys(range(len(self._members)), self._controller.ended)
        found = {}
        for member in self._members:
            why = self._why_lost(self._agents[member.vm], member.info)
            if not why and member.info.pid in self._given_up:
                why = "it still runs a cell that was given up"
            if why:
                found[member.info.rank] = why
        return found

    def give_up(self, ranks: Iterable[int]) -> None:
        """Count ranks that do not react any more as lost, until they are replaced."""
        self._given_up |= {self._members[rank].info.pid for rank in ranks}

    @staticmethod
    def _why_lost(agent: Agent, info: RankInfo) -> str:
        end = agent.end_of(info.pid)
        if end is not None:
            text = f"its process {info.pid} on {info.vm} {exit_text(end.code)}"
            return f"{text} ({end.oom})" if end.oom else text
        return agent.lost

    def memory_bytes(self) -> dict[int, int]:
        """Return the resident memory of each rank that runs, by rank."""
        found: dict[int, int] = {}
        for vm, agent in enumerate(self._agents):
            if agent.lost:
                continue
            try:
                sizes = agent.ask("memory", _ANSWER_S * 10)
            except StartFailed:
                continue
            for member in self._members:
                if member.vm == vm and str(member.info.pid) in sizes:
                    found[member.info.rank] = sizes[str(member.info.pid)]
        return found

    def snapshots(self) -> dict[str, Snapshot]:
        """Return what each VM that answers has now."""
        found = at_once(self._agents, _snapshot)
        return {
            agent.name: Snapshot.from_plain(plain)
            for agent, plain in zip(self._agents, found, strict=True)
            if plain is not None
        }

    def stop(self) -> None:
        """End every process, and leave nothing behind."""
        if self._client is not None:
            self._client.close()
        at_once(self._agents, Agent.close)
        self._controller.stop()

    # helpers

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s

    def _wait_for_greetings(self) -> None:
        deadline, failed = self._deadline(), []
        for agent in self._agents:
            try:
                agent.wait_until_greeted(deadline)
            except StartFailed as error:
                failed.append(error)
        if failed:
            raise StartFailed.together(failed)

    def _part(self, members: list[_Member], *, torn: bool) -> None:
        engines = [member.engine for member in members]
        self._call_engines(engines, "part", [()] * len(engines), torn=torn)

    def _wait_for_engines(self, known: set[int], pids: dict[tuple[int, int], int]) -> list[int]:
        """Wait until as many new engines are there as processes were started."""
        assert self._client is not None
        deadline = self._deadline()
        while True:
            engines = sorted(set(self._client.ids) - known)
            if len(engines) >= len(pids):
                return engines
            self._check({(self._agents[vm], pid) for (vm, _), pid in pids.items()})
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"{len(pids)} ranks were started, {len(engines)} were ready after "
                    f"{self._timeout_s:g} s; is the machine overloaded?"
                )
            time.sleep(_POLL_S)

    def _check(self, processes: Iterable[tuple[Agent, int]]) -> None:
        """Raise `StartFailed` where something has ended that must run."""
        self._controller.check()
        for agent, pid in processes:
            end = agent.end_of(pid)
            if end is not None:
                raise StartFailed(
                    f"the rank process {pid} on {agent.name} {exit_text(end.code)} while it "
                    f"started; {end.oom or 'its log ends'}:\n{end.log}"
                )
            if agent.lost:
                raise StartFailed(agent.lost)

    def _meet(self) -> None:
        """Form the ring, whose first collective proves that it works."""
        from workbench.cluster import ring

        plan = ring.assign([f"vm{member.vm}" for member in self._members])
        with ring.Rendezvous(plan, self._address) as rendezvous:
            given = [
                (rendezvous.environment(rank, self._links[member.vm].interface),)
                for rank, member in enumerate(self._members)
            ]
            try:
                sums = self._call("meet", given)
            except BaseException:
                self._do_not_meet()
                raise
        if any(total != len(self._members) for total in sums):
            raise StartFailed(f"the ring's first sum over {len(sums)} ranks was {sums}")

    def _do_not_meet(self) -> None:
        """Have the ranks that wait for another in hvd.init() give up; they keep what they hold."""
        from workbench.wire import Message

        assert self._control is not None
        for member in self._members:
            self._control.send(member.info.rank, Message("do_not_meet", {}))

    def _call(self, name: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Call a function of `workbench.rank.session` on every rank at once."""
        return self._call_engines([member.engine for member in self._members], name, arguments)

    def _call_engines(
        self,
        engines: list[int],
        name: str,
        arguments: list[tuple[Any, ...]],
        *,
        patience_s: float | None = None,
        watched: Iterable[tuple[Agent, int]] = (),
        **options: Any,
    ) -> list[Any]:
        assert self._client is not None
        pending = [
            self._client[engine].apply_async(_Remote(name), *given, **options)
            for engine, given in zip(engines, arguments, strict=True)
        ]
        try:
            called = [m for m in self._members if m.engine in engines]
            processes = [*watched, *((self._agents[m.vm], m.info.pid) for m in called)]
            ranks = [member.info.rank for member in called]
            self._wait_for_answers(name, pending, processes, ranks, patience_s or self._timeout_s)
            return [answer.get() for answer in pending]
        except StartFailed:
            raise
        except Exception as error:
            raise StartFailed(f"the ranks failed at {name!r}: {error}") from error

    def _wait_for_answers(
        self,
        name: str,
        pending: list[Any],
        processes: list[tuple[Agent, int]],
        ranks: list[int],
        timeout_s: float,
    ) -> None:
        deadline = time.monotonic() + timeout_s
        for answer in pending:
            while not answer.wait(_ANSWER_S):
                self._check(processes)
                for one in pending:
                    if one.ready() and not one.successful():
                        one.get()  # raises what it raised there; the others may wait for it
                if time.monotonic() > deadline:
                    silent = [place for place, a in enumerate(pending) if not a.ready()]
                    named = f"rank {ranks_text(ranks[p] for p in silent)}" if ranks else ""
                    who = named or f"{len(silent)} of {len(pending)} new ranks"
                    raise StartFailed(f"{who} did not answer {name!r} within {timeout_s:g} s")


def _snapshot(agent: Agent) -> dict[str, Any] | None:
    try:
        plain: dict[str, Any] = agent.ask("snapshot")
    except StartFailed:
        return None
    return plain


class _Remote:
    """Calls a function of the rank's session there, without importing it here."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.__name__ = name

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Called in the rank."""
        import importlib

        session = importlib.import_module("workbench.rank.session")
        return getattr(session, self._name)(*args, **options)
