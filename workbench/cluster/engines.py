"""Run the engines of a cluster as ranks of a ring, which can be replaced and resized."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.cluster.agents import Agents
from workbench.cluster.backends import backend_class
from workbench.cluster.controller import ControllerProcess
from workbench.cluster.members import Calls, Member, Members, free_places
from workbench.cluster.threads import uninterrupted
from workbench.errors import StartFailed, UsageError
from workbench.ranks import Place, RankInfo, phrase, ranks_text
from workbench.wire.address import Address, of_vm
from workbench.wire.rank_messages import ReleaseRanks
from workbench.wire.transport import transports_from_plain, transports_to_plain

if TYPE_CHECKING:
    from workbench.timings import Timings
    from workbench.wire import Inbox, Message

_log = logging.getLogger(__name__)

_POLL_S = 0.05
_LEAVE_S = 3.0
"""Time limit for an answer of a rank that will be replaced."""
_GIVE_UP_S = 10.0
"""Time limit for a rank to give up a ring that could not be formed, on a busy machine."""


class Engines:
    """The ipyparallel engines that are ranks; call `connect`, then `start` or `restore`.

    Parameters
    ----------
    name
        The cluster's name. Samplers find its ranks by this name.
    timings
        Returns the receiver of the ranks' records.
    changing
        Called before each step of a change of the ranks. It saves the state, so that another
        kernel can finish the change.

    Attributes
    ----------
    address
        The address at which the VMs reach this machine.
    inbox
        The control channel to the ranks, set before `connect`; None before.
    wanted
        The number of ranks after an unfinished change, which prevents cells until the next
        change; None if the last change was finished.
    renumbered
        Whether ranks are missing or have new numbers because of that change.
    interrupted
        While it is set, a change of the ranks raises `StartFailed` at its next step.
    """

    def __init__(
        self,
        name: str,
        agents: Agents,
        controller: ControllerProcess,
        timings: Callable[[], Timings],
        changing: Callable[[], None],
    ) -> None:
        self._changing = changing
        self._name = name
        self._agents = agents
        self._connection: dict[str, Any] = {}
        self._timings = timings
        self.inbox: Inbox | None = None
        self.address = "127.0.0.1"
        self.members = Members(agents, controller)
        self.backend = backend_class(agents.options.backend)(self)
        self._calls = Calls(
            controller, self.members.check, agents.options.start_timeout_s, self.backend.lost_peer
        )
        self.wanted: int | None = None
        self.renumbered = False
        self.interrupted = agents.interrupted

    @property
    def ranks(self) -> list[RankInfo]:
        """The ranks as users see them; empty before the start."""
        reported = self.backend.transports
        infos = [member.info for member in self.members]
        return [
            replace(info, transport=", ".join(map(str, reported.get(info.rank, ()))))
            for info in infos
        ]

    # start and stop

    def connect(self, connection: dict[str, Any]) -> None:
        """Connect to the controller; raise `StartFailed` if it does not answer.

        `connection` says how an engine connects to the controller.
        """
        self._connection = connection
        self._calls.connect()

    def start(self, n: int) -> None:
        """Start the engines of n ranks in the first slots of the VMs, and form the ring.

        Raise `StartFailed` if a VM is lost, or an engine did not start.
        """
        if lost := self._agents.lost():
            raise StartFailed("; ".join(lost.values()))
        self._join(self._launch(free_places(self._agents, [], n)))

    def to_saved(self) -> dict[str, Any]:
        """Return plain values for `restore`."""
        return {
            "connection": self._connection,
            "members": self.members.to_saved(),
            "wanted": self.wanted,
            "controller": self.backend.controller,
            "transports": transports_to_plain(self.backend.transports),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Connect to the ranks of an earlier kernel, which may have saved them during a change."""
        self.members.restore(saved["members"])
        self.connect(saved["connection"])
        self.backend.controller = saved["controller"]
        self.backend.transports = transports_from_plain(saved.get("transports", {}))
        if (wanted := saved.get("wanted")) is None:
            return
        _log.info("an earlier kernel has not finished a change of the ranks to %s ranks", wanted)
        self.wanted = int(wanted)
        self.renumbered = True
        self.backend.ring_broken = True
        lost = self.members.lost()
        kept = {member.place for member in self.members if member.info.rank not in lost}
        slots = enumerate(self._agents.slots)
        every = {Place(vm, slot) for vm, count in slots for slot in range(max(count, int(wanted)))}
        self._agents.stop(every - kept)  # the unfinished change may have started these processes

    def close(self) -> None:
        """Disconnect from the engines, which continue to run."""
        self.backend.close_rendezvous()
        self._calls.close()

    # change of the ranks

    def rebuild_ring(self, report: Callable[[str], None] = lambda _: None) -> None:
        """Leave the ring, and form a new ring; variables are kept.

        `report` is called with one line before each further attempt.
        """
        began = time.monotonic()
        _log.info("rebuilding the ring of %d ranks", len(self.members))
        if self.backend.ring_broken and (unanswering := self.busy_ranks(_GIVE_UP_S)):
            raise StartFailed(
                f"{phrase(unanswering, 'does', 'do')} not answer",
                fix=f"replace {'it' if len(unanswering) == 1 else 'them'} with %cluster restart "
                f"--ranks {ranks_text(unanswering)}",
            )
        self.backend.shutdown_ring()
        self.backend.init_ring(report)
        self.members.ring_formed()
        _log.info("the ring was rebuilt in %.1f s", time.monotonic() - began)

    @property
    def complete(self) -> bool:
        """Whether all ranks answer and no change is unfinished; the ring may still be missing."""
        return self.wanted is None and not self.members.lost()

    def restart(self, ranks: Iterable[int]) -> None:
        """Replace the processes of some ranks; the others keep their variables.

        A lost VM is used again. Raise `StartFailed` if it does not answer, or a new process did not
        start.
        """
        chosen = sorted(set(ranks))
        members = self.members
        if self.backend.controller == "MPI":
            every = len(chosen) == len(members)
            self._replace_all("" if every else f"restart {phrase(chosen)} alone")
            return
        if busy := sorted(members.given_up - set(chosen)):
            raise UsageError(
                f"Cannot restart {phrase(chosen)}: {phrase(busy, 'still runs', 'still run')} a "
                "cell that was stopped. Wait until it has ended, or replace all with %cluster "
                f"restart --ranks {ranks_text([*chosen, *busy])}."
            )
        lost = self._agents.lost()
        for rank in chosen:
            vm = members[rank].vm
            if vm in lost:
                try:
                    self._agents.restart_agent(vm)
                except StartFailed as error:
                    if type(error) is not StartFailed:  # the backend says what to do
                        raise
                    raise StartFailed(
                        f"Cannot restart rank {rank}: {lost[vm]}; at the next try: {error.cause}",
                        fix="go on without that VM with %cluster resize",
                    ) from error
        vm_slots = [members[rank].place for rank in chosen]
        self._regroup([member for member in members if member.info.rank not in chosen], vm_slots)

    def resize(self, n: int | None) -> None:
        """Change the number of ranks to `n`; the first that answer remain, with their variables.

        If `n` is None, remove the lost ranks and start no others.
        """
        if self.backend.controller == "MPI":
            same = n == (self.wanted or len(self.members))
            self._replace_all("" if same else "change the number of ranks")
            return
        lost = self.members.lost()
        alive = [member for member in self.members if member.info.rank not in lost]
        wanted = len(alive) if n is None else n
        if wanted < 1:
            raise UsageError(
                "Cannot go on without the lost ranks: none is left. "
                "Replace them with %cluster restart."
            )
        kept = alive[:wanted]
        self._regroup(kept, free_places(self._agents, kept, wanted - len(kept)))

    def _replace_all(self, refused_change: str) -> None:
        """Replace all agents and ranks, for a new MPI job.

        Raise `UsageError` if `refused_change` describes a change that MPI does not allow.
        """
        if refused_change:
            raise UsageError(
                f"Cannot {refused_change}: MPI connects the ranks, and accepts no new process. "
                "Replace all with %cluster restart, or start another cluster."
            )
        _log.info("replacing all ranks, which need a new MPI job")
        self.wanted = sum(self._agents.slots)
        self._changing()
        self.renumbered = True
        self.members.replace([])
        self._agents.close()
        self._agents.spawn()
        self._agents.wait_until_greeted()
        self._agents.wait_until_loaded()
        self.start(self.wanted)

    def _regroup(self, kept: list[Member], vm_slots: list[Place]) -> None:
        """Form a ring of the remaining and of new ranks, in the order of VMs and slots."""
        _log.info("keeping %d ranks and starting %d", len(kept), len(vm_slots))
        self.wanted = len(kept) + len(vm_slots)
        try:
            self._changing()
        except StartFailed:
            if not self.renumbered:
                self.wanted = None
            raise
        leaving = [member for member in self.members if member not in kept]
        # a suspended process (SIGSTOP) cannot leave the ring, so the others break it
        lost = set(self.members.lost()) | set(self.busy_ranks(_LEAVE_S, leaving))
        # all ranks leave the ring before a process ends, because the others would wait for it
        answering = [info.rank for info in self.ranks if info.rank not in lost]
        try:
            self.backend.shutdown_ring(answering, peer_lost=bool(lost))
        except StartFailed:  # a rank that ends need not leave, such as a rank without memory
            staying = {member.info.rank for member in kept}.intersection(answering)
            if len(staying) == len(answering) or self.interrupted.is_set():
                raise
            self.backend.shutdown_ring(sorted(staying), peer_lost=True)
        self._agents.stop([member.place for member in leaving])
        self.members.replace(kept)
        self.renumbered = True
        self._join([*kept, *(self._launch(vm_slots) if vm_slots else [])])

    def _launch(self, vm_slots: list[Place]) -> list[Member]:
        """Start a process in each slot; return the members, without numbers, when all are ready.

        If a process did not start, end the others, and raise `StartFailed`.
        """

        def records(vm: int) -> Address:
            return self._timings().address_for(of_vm(vm))

        try:
            earlier_engines = self._calls.engines
            start = self._agents.start
            plans = {vm_slot: start(vm_slot, self._connection, records) for vm_slot in vm_slots}
            processes = self._agents.wait_until_started(vm_slots)
            greetings = self._calls.wait_for_greetings(earlier_engines, processes)
        except BaseException:
            self._agents.stop(vm_slots)  # the processes are in no ring, and must not remain
            raise
        members = []
        for engine, hello in greetings.items():
            vm, slot = map(int, hello.place.split(":"))
            plan = plans[Place(vm, slot)]
            name = self._agents.all[vm].name
            info = RankInfo(
                0, name, hello.pid, plan.gpu, plan.numa, plan.nic, "ready", hello.threads
            )
            members.append(Member(vm, slot, engine, info))
        return members

    def _join(self, members: list[Member]) -> None:
        """Number the members as ranks, connect them to this kernel, and form the ring."""
        self.members.replace(sorted(members, key=lambda member: member.place))
        assert self.inbox is not None
        timings = self._timings()
        n = len(self.members)
        timings.begin_ring()
        rest = (n, self._name, self._agents.options.backend)
        arguments = [(self.inbox.address_for(r), timings.address_for(r), *rest) for r in range(n)]
        self._changing()  # another kernel needs the new keys
        self.call("join", arguments)
        self.wanted = None
        self.renumbered = False
        self.backend.init_ring()
        self.members.ring_formed()
        _log.info("%s: %d ranks have formed a ring", self._name, n)

    # the interface for backends

    @property
    def places(self) -> list[tuple[int, str]]:
        """The VM number and network interface of each rank; no interface if the VM is lost."""
        interfaces = {vm: link.interface for vm, link in self._agents.links.items()}
        return [(member.vm, interfaces.get(member.vm, "")) for member in self.members]

    def call(
        self,
        name: str,
        arguments: list[tuple[Any, ...]] | None = None,
        *,
        ranks: list[int] | None = None,
        **options: Any,
    ) -> list[Any]:
        """Call a function of `workbench.rank.session` on some or all ranks; return the results."""
        chosen = [member for member in self.members if ranks is None or member.info.rank in ranks]
        return self._calls.call(name, chosen, arguments or [()] * len(chosen), **options)

    def send(self, rank: int, message: Message) -> None:
        """Send a message to a rank, if the ranks are connected."""
        if isinstance(message, ReleaseRanks) and message.in_init:
            uninterrupted(self.backend.close_rendezvous)
        if self.inbox is not None:
            self.inbox.send(rank, message)

    # while the ranks run

    def begin(self, rank: int, name: str, *arguments: Any) -> Future[Any]:
        """Call a function of `workbench.rank.session` on a rank; return a future of the result."""
        return self._calls.begin(self.members[rank].engine, name, *arguments)

    def busy_ranks(self, limit_s: float, members: Iterable[Member] | None = None) -> list[int]:
        """Return the ranks that are not idle within `limit_s` seconds.

        `members` limits the question to some ranks. Lost ranks are not busy.
        """
        lost = self.members.lost
        lost_before = lost()
        chosen = [member.info.rank for member in (self.members if members is None else members)]
        calls = {rank: self.begin(rank, "idle") for rank in chosen if rank not in lost_before}
        deadline = time.monotonic() + limit_s
        for rank, call in calls.items():
            while not wait([call], _POLL_S).done and time.monotonic() < deadline:
                if rank in lost():
                    break
        return [rank for rank, call in calls.items() if not call.done() and rank not in lost()]
