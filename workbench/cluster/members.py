"""Which process is which rank, whether it answers, and how its functions are called."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, replace
from typing import Any

from workbench.cluster.agents import Agents
from workbench.cluster.backends import CallFailed, step_of
from workbench.cluster.controller import ControllerProcess
from workbench.errors import StartFailed, UsageError
from workbench.rank.calls import call_session
from workbench.ranks import Place, Process, RankInfo, phrase, ranks_text
from workbench.wire.rank_messages import RankGreeting

_POLL_S = 0.02
_ANSWER_S = 0.1
_CONNECT_S = (1.0, 2.0, 7.0)
"""How long each try to reach the controller lasts; after each, it may have ended."""
_CAUSE_S = 0.3
"""How long other ranks may take to report an error when one has: it may be the cause."""
_SLOW_CAUSE_S = 1.5
"""The same if only lost connections were reported: a rank without memory takes longer."""
STILL_RUNS = "it still runs a cell that was stopped"
"""The reason given for a rank that has not ended a stopped cell in time."""


@dataclass(frozen=True)
class Member:
    """One rank: its VM's number, its slot there, its engine's number, and what users see of it."""

    vm: int
    slot: int
    engine: int
    info: RankInfo

    @property
    def place(self) -> Place:
        """Its VM and slot."""
        return Place(self.vm, self.slot)

    @property
    def process(self) -> Process:
        """Its VM and process id."""
        return Process(self.vm, self.info.pid)


class Members:
    """The members of a cluster, in the order of their ranks."""

    def __init__(self, agents: Agents, controller: ControllerProcess) -> None:
        self._agents = agents
        self._controller = controller
        self._members: list[Member] = []
        self._given_up: set[Process] = set()
        self._joined: set[Process] = set()
        """Processes that have been in a ring."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members)

    def __getitem__(self, rank: int) -> Member:
        return self._members[rank]

    def replace(self, members: Iterable[Member]) -> None:
        """Make `members` the ranks, numbered in their order."""
        self._members = [
            replace(member, info=replace(member.info, rank=rank))
            for rank, member in enumerate(members)
        ]

    def ring_formed(self) -> None:
        """Record that all are in a ring: if one ends now, a rank is lost."""
        self._joined = {member.process for member in self._members}

    def to_saved(self) -> list[dict[str, Any]]:
        """Return plain values for `restore`."""
        return [asdict(member) for member in self._members]

    def restore(self, saved: Iterable[dict[str, Any]]) -> None:
        """Use the ranks that another kernel has saved."""
        self._members = [Member(**{**one, "info": RankInfo(**one["info"])}) for one in saved]
        self.ring_formed()

    # whether they answer

    @property
    def controller_ended(self) -> str:
        """How the controller ended, without which no rank can be reached; empty while it runs."""
        return self._controller.ended

    def lost(self) -> dict[int, str]:
        """Return why ranks can no longer answer, by rank."""
        if self._controller.ended:
            return dict.fromkeys(range(len(self._members)), self._controller.ended)
        why = {
            member.info.rank: self._process_ended(member)
            or (STILL_RUNS if member.process in self._given_up else "")
            for member in self._members
        }
        return {rank: text for rank, text in why.items() if text}

    @property
    def given_up(self) -> set[int]:
        """The ranks that still run a cell that was stopped."""
        return {
            member.info.rank
            for member in self._members
            if member.process in self._given_up and not self._process_ended(member)
        }

    def _process_ended(self, member: Member) -> str:
        return self._agents.all[member.vm].why_lost(member.info.pid)

    def give_up(self, ranks: Iterable[int]) -> None:
        """Treat ranks that still run a stopped cell as lost, until `take_back` or a restart."""
        self._given_up |= {self._members[rank].process for rank in ranks}

    def take_back(self, rank: int) -> None:
        """Use a rank again that was given up: its cell has ended."""
        self._given_up.discard(self._members[rank].process)

    def check(self, processes: Iterable[Process]) -> None:
        """Raise `StartFailed` if the controller or one of these processes has ended."""
        self._controller.check()
        joined = {m.process: m.info.rank for m in self._members if m.process in self._joined}
        self._agents.check(processes, joined)


def free_places(agents: Agents, kept: list[Member], count: int) -> list[Place]:
    """Return places for `count` more ranks: VMs in order, slots in order.

    This machine has as many slots as ranks. If too few are free, VMs that were lost are used
    again. Raise `UsageError` if that is not enough.
    """
    slots = agents.slots if agents.options.hosts else [len(kept) + count]
    taken = {member.place for member in kept}

    def find() -> set[Place]:
        answering = [vm for vm, agent in enumerate(agents.all) if not agent.lost]
        return {Place(vm, slot) for vm in answering for slot in range(slots[vm])} - taken

    free, silent = find(), []
    for vm in sorted(agents.lost()) if len(free) < count else ():
        try:
            agents.revive(vm)
        except StartFailed as error:
            silent.append(f"; {error}")
    free = find()
    if len(free) < count:
        raise UsageError(
            f"{len(kept) + count} ranks: the VMs that answer have {len(free | taken)} slots. "
            f"Start a cluster with more{''.join(silent)}."
        )
    return sorted(free)[:count]


class Calls:
    """Calls functions of `workbench.rank.session` in engines, once it is connected to ipyparallel.

    Parameters
    ----------
    check
        Called while answers are awaited; raises `StartFailed` if one of these processes has
        ended.
    timeout_s
        How long an answer may take.
    lost_peer
        As `KernelBackend.lost_peer`.
    """

    def __init__(
        self,
        controller: ControllerProcess,
        check: Callable[[Iterable[Process]], None],
        timeout_s: float,
        lost_peer: re.Pattern[str],
    ) -> None:
        self._controller = controller
        self._client: Any = None
        self._check = check
        self._timeout_s = timeout_s
        self._lost_peer = lost_peer

    def connect(self) -> None:
        """Connect to the controller; raise `StartFailed` if it does not answer."""
        # imported while the processes start, which takes as long
        import ipyparallel

        for number, patience_s in enumerate(_CONNECT_S, start=1):
            try:
                self._client = ipyparallel.Client(
                    str(self._controller.client_file), timeout=patience_s
                )
                break
            except TimeoutError as error:
                self._check(())
                if number == len(_CONNECT_S):
                    raise StartFailed(
                        f"the ipyparallel controller does not answer ({error})",
                        cure="end its process, and start another cluster",
                    ) from None

    def close(self) -> None:
        """Leave the controller; the engines go on."""
        if self._client is not None:
            self._client.close()

    @property
    def engines(self) -> set[int]:
        """The numbers of all engines that have registered."""
        return set(self._client.ids)

    def begin(self, engine: int, name: str, *given: Any, **options: Any) -> Future[Any]:
        """Call a function in one engine; return a future of its result.

        If the call cannot be sent, such as to an engine that has just ended, the future has failed.
        """
        try:
            call: Future[Any] = self._client[engine].apply_async(
                call_session, name, *given, **options
            )
        except Exception as error:  # noqa: BLE001 - several of ipyparallel's, and IndexError
            call = Future()
            call.set_exception(error)
        return call

    def greet_new(self, known: set[int], processes: list[Process]) -> dict[int, RankGreeting]:
        """Wait until the engines of these processes answer; return their greetings.

        Engines of an earlier, abandoned start may also appear, even dead: they are left out. Raise
        `StartFailed` if a process has ended, an engine has failed, or the time limit has passed.
        """
        deadline = time.monotonic() + self._timeout_s
        asked: dict[int, Future[Any]] = {}
        while True:
            for engine in self.engines - known - set(asked):
                asked[engine] = self.begin(engine, "hello")
            found = {
                engine: call.result()
                for engine, call in sorted(asked.items())
                if call.done() and not _is_dead(call)
            }
            found = {engine: one for engine, one in found.items() if _process(one) in processes}
            self._check(processes)  # after the answers: a process may have ended since
            if len(found) == len(processes):
                return found
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"only {len(found)} of {len(processes)} ranks answered within "
                    f"{self._timeout_s:g} s; is the machine overloaded?"
                )
            time.sleep(_POLL_S)

    def call(
        self, name: str, members: list[Member], arguments: list[tuple[Any, ...]], **options: Any
    ) -> list[Any]:
        """Call a function on ranks at once, with `arguments` of each; return the results.

        Raise `StartFailed` if it raised on a rank, a process has ended, or the time limit has
        passed.
        """
        calls = {
            member.info.rank: self.begin(member.engine, name, *given, **options)
            for member, given in zip(members, arguments, strict=True)
        }
        processes = [member.process for member in members]
        deadline = time.monotonic() + self._timeout_s
        while waiting := [rank for rank, call in calls.items() if not call.done()]:
            wait([calls[waiting[0]]], _ANSWER_S)
            self._check(processes)
            self._raise_failed(name, calls)  # the other ranks may wait for it
            if time.monotonic() > deadline:
                waiting = [rank for rank in waiting if not calls[rank].done()]
                raise StartFailed(
                    f"{phrase(waiting)} did not {step_of(name)} within {self._timeout_s:g} s",
                    cure="replace what does not answer with %cluster restart --ranks "
                    f"{ranks_text(waiting)}",
                )
        self._check(processes)  # one may have answered, and ended since
        self._raise_failed(name, calls)
        return [call.result() for call in calls.values()]

    def _raise_failed(self, name: str, calls: dict[int, Future[Any]]) -> None:
        """Raise the error of a rank; of several, one that is not a lost connection to another."""
        if not _failures(calls):
            return
        wait(calls.values(), _CAUSE_S)
        deadline = time.monotonic() + _SLOW_CAUSE_S
        while all(map(self._is_lost_peer, _failures(calls).values())):
            waiting = [call for call in calls.values() if not call.done()]
            if not waiting or time.monotonic() > deadline:
                break
            wait(waiting, _POLL_S)
        failures = _failures(calls).items()
        rank, error = min(failures, key=lambda one: self._is_lost_peer(one[1]))
        raise CallFailed(name, error, phrase([rank])) from error

    def _is_lost_peer(self, error: BaseException) -> bool:
        return bool(self._lost_peer.search(str(error)))


def _failures(calls: dict[int, Future[Any]]) -> dict[int, BaseException]:
    """Return the errors of the calls that have failed, by rank."""
    ended = {rank: call.exception() for rank, call in calls.items() if call.done()}
    return {rank: error for rank, error in ended.items() if error is not None}


def _is_dead(call: Future[Any]) -> bool:
    """Whether a call was not answered because its engine has ended.

    Raise `CallFailed` if the engine runs, and the function raised in it.
    """
    error = call.exception()
    if error is None:
        return False
    if type(call) is Future or type(error).__name__ == "EngineError":  # not sent, or not answered
        return True
    raise CallFailed("hello", error, "a new rank")


def _process(greeting: RankGreeting) -> Process:
    """Return the process of a greeting; an engine that no agent has started has no VM."""
    vm = greeting.place.partition(":")[0]
    return Process(int(vm) if vm.isdecimal() else -1, greeting.pid)
