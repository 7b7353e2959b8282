"""The engines of a cluster as ranks: joined in a ring, replaced, more or fewer of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cluster.agents import Agents, Place, Process
from workbench.cluster.calls import CallFailed, Calls
from workbench.cluster.controller_process import ControllerProcess
from workbench.cluster.members import Member, free_places, launch
from workbench.cluster.options import Options
from workbench.cluster.preflight import Preflight
from workbench.cluster.ranks import RankInfo, phrase, ranks_text
from workbench.errors import StartFailed, UsageError

if TYPE_CHECKING:
    from workbench.cluster.agent import Agent
    from workbench.cluster.ring import Rendezvous
    from workbench.timings import Timings
    from workbench.wire import Inbox


_POLL_S = 0.05
_RING_TRIES = 3
_RING_S = 20.0
"""A ring that could not be formed so soon is tried again."""
_RING_PATIENCE_S = 3.0
"""An interrupt of the forming of a ring ends it only after this time: it is usually quick."""
_LEAVE_S = 3.0
"""How long a rank that is to be replaced may take to answer, before it is not waited for."""
STILL_RUNS = "it still runs a cell that was stopped"
"""Why a rank that was given up counts as lost."""


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
    name
        The cluster's, which its ranks tell to whoever samples their VM.

    Attributes
    ----------
    ring_broken
        Whether the ranks are in no ring, because it could not be formed.
    wanted
        How many ranks a change that ended early was to leave; None where none did.
        No cell can run until the next change.
    renumbered
        Whether that change had got so far that ranks are missing, or have other numbers.
    """

    def __init__(
        self,
        options: Options,
        folder: Path | None = None,
        progress: Callable[[str], None] = lambda _: None,
        name: str = "",
    ) -> None:
        self._options = options
        self._name = name
        self._controller = ControllerProcess(folder)
        self._agents = Agents(
            options, self.folder, lambda text: None if self._members else progress(text)
        )
        self._address = "127.0.0.1"
        self._connection: dict[str, Any] = {}
        self._calls: Calls | None = None
        self._control: Inbox | None = None
        self._timings: Timings | None = None
        self._members: list[Member] = []
        self._given_up: set[Process] = set()
        self._served: set[Process] = set()
        """Processes that were ranks before a change began."""
        self._rendezvous: Rendezvous | None = None
        self._serving = threading.Lock()
        self._ring = ""
        """The name of the newest ring that this kernel has formed or tried to."""
        self._ring_began: float | None = None
        self._ring_given_up = False
        self.ring_broken = False
        self.wanted: int | None = None
        self.renumbered = False

    @property
    def ranks(self) -> list[RankInfo]:
        """Who the ranks are, once they have said hello."""
        return [member.info for member in self._members]

    @property
    def preflight(self) -> Preflight | None:
        """What was found on the VMs before the ranks were started."""
        return self._agents.preflight

    @property
    def address(self) -> str:
        """The address at which the VMs see this machine."""
        return self._address

    @property
    def folder(self) -> Path:
        """Where the cluster's files are."""
        return self._controller.folder

    # up and down

    def spawn(self) -> None:
        """Start the processes, which then need no one for a while; `stop` ends them."""
        if self._options.hosts is None:
            self._controller.start(self._address, self._options.keep_s)
        self._agents.spawn()

    def greet(self) -> str:
        """Wait until every VM answers, and return the address at which they see this machine.

        Raises
        ------
        StartFailed
            Those that do not answer: which, why, and what to do.
        """
        if self._options.hosts is not None:
            self._agents.wait_until_greeted()
            self._address = self._agents.kernel_address()
            self._controller.start(self._address, self._options.keep_s)
        return self._address

    def start(self, control: Inbox, timings: Timings) -> None:
        """Make ranks of the processes: every one is known to be ready before any calls hvd.init().

        Raises
        ------
        StartFailed, HorovodMissing
            They did not come up; `stop` takes down what had started.
        """
        self._control, self._timings = control, timings
        self._agents.wait_until_greeted()
        self._connection = self._controller.wait(self._options.start_timeout_s)
        self._calls = self._connected()
        self._agents.wait_until_loaded()
        self._agents.look()
        slots = self._agents.slots
        self._admit(
            self._launched([(vm, slot) for vm, count in enumerate(slots) for slot in range(count)])
        )

    def to_state(self) -> dict[str, Any]:
        """Return what `find` needs in another kernel."""
        return {
            "address": self._address,
            "agents": self._agents.to_state(),
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
        self._control, self._timings = control, timings
        self._address, self._connection = state["address"], state["connection"]
        self._controller.find()
        self._agents.find(state["agents"])
        self._members = [
            Member(**{**member, "info": RankInfo(**member["info"])}) for member in state["members"]
        ]
        self._served = {member.process for member in self._members}
        self._calls = self._connected()

    def leave(self) -> None:
        """Let everything run where it is kept, for the next kernel."""
        self.close_rendezvous()
        if self._calls is not None:
            self._calls.close()
        self._agents.leave()
        self._controller.leave()

    def stop(self) -> None:
        """End every process, and leave nothing behind."""
        self.close_rendezvous()
        if self._calls is not None:
            self._calls.close()
        self._agents.close()
        self._controller.stop()

    # a change of ranks

    @property
    def interrupted(self) -> threading.Event:
        """While it is set, a change of the ranks ends at its next step, by `StartFailed`."""
        return self._agents.interrupted

    def reform(self, report: Callable[[str], None] = lambda _: None) -> None:
        """Leave a broken ring and form a new one; variables are kept.

        Parameters
        ----------
        report
            Called with one line, once it takes long.
        """
        torn, self.ring_broken = self.ring_broken, True
        if torn and (silent := self.still_busy(_LEAVE_S)):
            raise StartFailed(
                f"{phrase(silent, 'does', 'do')} not answer",
                cure=f"replace {'it' if len(silent) == 1 else 'them'} with %cluster restart "
                f"--ranks {ranks_text(silent)}",
            )
        self._part(self._members, torn=torn)
        self._meet(report)

    def give_up_ring(self) -> None:
        """Make the forming of a ring that takes long in another thread fail."""
        began = self._ring_began
        if began is not None and time.monotonic() - began > _RING_PATIENCE_S:
            self._ring_given_up = True
            self._do_not_meet()
            self.close_rendezvous()

    def serve_init(self) -> int:
        """Return the port at which ranks that call hvd.init() in a cell find each other."""
        with self._serving:
            if self._rendezvous is None:
                self._rendezvous = self._new_rendezvous()
            return self._rendezvous.port

    def close_rendezvous(self) -> None:
        """Make hvd.init() fail in ranks that still wait for the address of another.

        Such a rank has no connection that could be broken.
        """
        with self._serving:
            rendezvous, self._rendezvous = self._rendezvous, None
        if rendezvous is not None:
            rendezvous.close()

    def restart(self, ranks: Iterable[int]) -> None:
        """Put new processes in the place of some ranks; the others keep their variables.

        A VM that was lost is taken in again.

        Raises
        ------
        StartFailed, HorovodMissing
            A VM of theirs does not answer, or a new process did not come up.
        """
        chosen = sorted(set(ranks))
        if busy := sorted(self.given_up - set(chosen)):
            raise UsageError(
                f"Cannot restart {phrase(chosen)}: {phrase(busy, 'still runs', 'still run')} a "
                "cell that was stopped. Wait until it has ended, or replace all with %cluster "
                f"restart --ranks {ranks_text([*chosen, *busy])}."
            )
        lost = self._agents.lost()
        for rank in chosen:
            vm = self._members[rank].vm
            if vm in lost:
                try:
                    self._agents.revive(vm)
                except StartFailed as error:
                    raise StartFailed(
                        f"rank {rank} cannot be started anew: {lost[vm]}; asked again: "
                        f"{error.cause}",
                        cure="go on without that VM with %cluster resize",
                    ) from error
        places = [self._members[rank].place for rank in chosen]
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
            raise UsageError(
                "Cannot go on without the lost ranks: none is left. "
                "Replace them with %cluster restart."
            )
        kept = alive[:wanted]
        self._regroup(kept, free_places(self._agents, kept, wanted - len(kept)))

    def _regroup(self, kept: list[Member], places: list[Place]) -> None:
        """Form a ring of the ranks that stay and of new ones, in the order of VMs and slots."""
        self.wanted = len(kept) + len(places)
        lost = set(self.lost())
        # a process that is stopped (SIGSTOP) does not leave the ring: the others break it
        lost |= set(self.still_busy(_LEAVE_S, [m for m in self._members if m not in kept]))
        # all leave the ring before any ends: the others would wait for it
        here = [member for member in self._members if member.info.rank not in lost]
        torn, self.ring_broken = bool(lost) or self.ring_broken, True
        self._part(here, torn=torn)
        self._agents.stop([member.place for member in self._members if member not in kept])
        self._members, self.renumbered = _numbered(kept), True
        added = self._launched(places) if places else []
        self._admit([*kept, *added])

    def _part(self, members: list[Member], *, torn: bool) -> None:
        """Have ranks leave the ring; where one does not, no other goes on waiting for it."""
        try:
            self._call("part", members, torn=torn)
        except BaseException:
            self._do_not_meet()
            raise

    def _launched(self, places: list[Place]) -> list[Member]:
        assert self._calls is not None
        return launch(self._agents, self._calls, self._connection, places)

    def _admit(self, members: list[Member]) -> None:
        """Number the members as ranks, give them their channels, and form the ring."""
        self._members = _numbered(sorted(members, key=lambda member: member.place))
        assert self._control is not None
        assert self._timings is not None
        n = len(self._members)
        self._timings.joined()
        addresses = [(self._control.address_for(r), self._timings.address_for(r)) for r in range(n)]
        given = [(a.to_content(), b.to_content(), n, self._name) for a, b in addresses]
        self._call("join", self._members, given)
        self.wanted, self.renumbered = None, False
        self._meet()

    def _meet(self, report: Callable[[str], None] = lambda _: None) -> None:
        """Form the ring; where ranks could not join it, try again with another rendezvous.

        Raises
        ------
        StartFailed
            A rank has ended, or the last try failed as well.
        """
        self.ring_broken, self._ring_given_up = True, False
        began = self._ring_began = time.monotonic()
        try:
            for number in range(2, _RING_TRIES + 2):
                try:
                    self._meet_once()
                    break
                except CallFailed as error:
                    if self._ring_given_up:
                        raise StartFailed("the forming of the ring was interrupted") from error
                    late = number > _RING_TRIES or time.monotonic() - began > _RING_S
                    if late or error.kind != "RingNotFormed":
                        raise
                    report(f"try {number} of {_RING_TRIES}, after {error.cause}")
                    # each rank that has not failed yet does now, and leaves what it has joined
                    self._call("part", self._members, torn=True)
        finally:
            self._ring_began = None
        self.ring_broken = False
        self._served = {member.process for member in self._members}

    def _meet_once(self) -> None:
        """Form the ring, whose first collective proves that it works."""
        from workbench.cluster import ring

        self.close_rendezvous()
        shared = ring.shared_settings(self._call("ring_settings", self._members))
        with self._serving:
            rendezvous = self._rendezvous = self._new_rendezvous()
        self._ring = str(rendezvous.port)
        given = [
            (rendezvous.environment(rank, self._agents.interface(member.vm)), shared)
            for rank, member in enumerate(self._members)
        ]
        dynamic = False
        try:
            met = self._call("meet", self._members, given)
            dynamic = any(one["dynamic"] for one in met)
        except BaseException:
            self._do_not_meet()
            raise
        finally:
            if not dynamic:
                self.close_rendezvous()
        sums = [one["sum"] for one in met]
        if any(total != len(self._members) for total in sums):
            raise StartFailed(f"the ring's first sum over {len(sums)} ranks was {sums}")

    def _new_rendezvous(self) -> Rendezvous:
        from workbench.cluster import ring

        plan = ring.assign([f"vm{member.vm}" for member in self._members])
        rendezvous = ring.Rendezvous(plan, self._address)
        rendezvous.start()
        return rendezvous

    def _do_not_meet(self) -> None:
        """Have ranks that wait for another in hvd.init() or in hvd.shutdown() give up.

        Their variables are kept.
        """
        from workbench.wire import Message

        if self._control is None:
            return
        for member in self._members:
            self._control.send(member.info.rank, Message("do_not_meet", {"ring": self._ring}))

    # while they run

    def run(self, rank: int, number: int, source: str) -> Any:
        """Send a cell to a rank; how it ends travels over the rank's own channel.

        Returns ipyparallel's result, which only fails where that channel could not be used.
        """
        assert self._calls is not None
        return self._calls.begin(self._members[rank].engine, "run_cell", number, source)

    def transfer(self, rank: int, step: str, *given: Any) -> Any:
        """Begin a step of a rank's `Transfers`; returns ipyparallel's result."""
        assert self._calls is not None
        return self._calls.begin(self._members[rank].engine, "transfer", step, *given)

    def wait_until_left(self) -> set[int]:
        """Wait until the ranks that were given up have ended their cell; return which they were.

        Ends early where one of them is lost or replaced.
        """
        assert self._calls is not None
        ranks = self.given_up
        for rank in ranks:
            call = self._calls.begin(self._members[rank].engine, "idle")
            while not call.wait(_POLL_S) and ranks <= self.given_up:
                continue
        return ranks

    def still_busy(self, limit_s: float, members: list[Member] | None = None) -> list[int]:
        """Return the ranks, of some or all, that still do something else after some seconds."""
        assert self._calls is not None
        lost = self.lost()
        idle = {
            member.info.rank: self._calls.begin(member.engine, "idle")
            for member in (self._members if members is None else members)
            if member.info.rank not in lost
        }
        deadline = time.monotonic() + limit_s
        for rank, call in idle.items():
            while not call.wait(_POLL_S) and time.monotonic() < deadline:
                if rank in self.lost():
                    break
        return [rank for rank, call in idle.items() if not call.ready() and rank not in self.lost()]

    def lost(self) -> dict[int, str]:
        """Return why ranks can no longer answer, by rank."""
        if self._controller.ended:
            return dict.fromkeys(range(len(self._members)), self._controller.ended)
        found = {}
        for member in self._members:
            why = self._agents.why_lost(member.process)
            if not why and member.process in self._given_up:
                why = STILL_RUNS
            if why:
                found[member.info.rank] = why
        return found

    @property
    def controller_ended(self) -> bool:
        """Whether the controller is gone, without which no rank can be reached or replaced."""
        return bool(self._controller.ended)

    def give_up(self, ranks: Iterable[int]) -> None:
        """Count ranks that still run a stopped cell as lost, until `take_back` or a restart."""
        self._given_up |= {self._members[rank].process for rank in ranks}

    def take_back(self, rank: int) -> None:
        """Count a rank that was given up as one of the others: its cell has ended."""
        self._given_up.discard(self._members[rank].process)

    @property
    def given_up(self) -> set[int]:
        """The ranks that still run a stopped cell."""
        return {
            member.info.rank
            for member in self._members
            if member.process in self._given_up and not self._agents.why_lost(member.process)
        }

    def memory_bytes(self) -> dict[int, int]:
        """Return the resident memory of each rank that runs, by rank."""
        sizes = self._agents.memory_bytes()
        return {m.info.rank: sizes[m.process] for m in self._members if m.process in sizes}

    @property
    def agents(self) -> tuple[Agent, ...]:
        """The agents of the VMs, in the order of the hosts; none before there are ranks."""
        return self._agents.all if self._members else ()

    # helpers

    def _connected(self) -> Calls:
        timeout_s = self._options.start_timeout_s
        return Calls(self._controller.client_file, self._check, timeout_s)

    def _check(self, processes: Iterable[Process]) -> None:
        """Raise `StartFailed` where something has ended that must run."""
        self._controller.check()
        ranks = {one.process: one.info.rank for one in self._members if one.process in self._served}
        self._agents.check(processes, ranks)

    def _call(
        self,
        name: str,
        members: list[Member],
        arguments: list[tuple[Any, ...]] | None = None,
        **options: Any,
    ) -> list[Any]:
        """Call a function of `workbench.rank.session` on ranks at once."""
        assert self._calls is not None
        return self._calls.call(
            name,
            [member.engine for member in members],
            arguments if arguments is not None else [()] * len(members),
            processes=[member.process for member in members],
            ranks=[member.info.rank for member in members],
            **options,
        )


def _numbered(members: list[Member]) -> list[Member]:
    """Return the members with their places in the list as their ranks."""
    return [
        replace(member, info=replace(member.info, rank=rank)) for rank, member in enumerate(members)
    ]
