"""Map ranks to processes, check whether they answer, and call their functions."""

from __future__ import annotations

import logging
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

_log = logging.getLogger(__name__)

_POLL_S = 0.02
_ANSWER_S = 0.1
_CONNECT_S = (1.0, 2.0, 7.0)
"""Time limit of each attempt to reach the controller, which may have ended after an attempt."""
_CAUSE_S = 0.3
"""After the first error, other ranks have this time to report theirs, which may be the cause."""
_SLOW_CAUSE_S = 1.5
"""The same if all errors are lost connections, because a rank without memory takes longer."""
STILL_RUNS = "it still runs a cell that was stopped"
"""The reason for a rank that has not ended a stopped cell in time."""


@dataclass(frozen=True)
class Member:
    """One rank.

    Attributes
    ----------
    vm, slot
        The number of the rank's VM, and its slot on that VM.
    engine
        The number of the rank's engine.
    info
        The rank as users see it.

    Examples
    --------
    >>> member = Member(1, 0, 7, RankInfo(2, "vm2", 4711, "CPU", "", "", "ready", 4))
    >>> tuple(member.place), tuple(member.process)
    ((1, 0), (1, 4711))
    """

    vm: int
    slot: int
    engine: int
    info: RankInfo

    @property
    def place(self) -> Place:
        """The VM and the slot of the rank."""
        return Place(self.vm, self.slot)

    @property
    def process(self) -> Process:
        """The VM and the process id of the rank."""
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
        """Make `members` the ranks, and number them in this order."""
        self._members = [
            replace(member, info=replace(member.info, rank=rank))
            for rank, member in enumerate(members)
        ]

    def ring_formed(self) -> None:
        """Record that all members are in a ring: from now on, the end of a process is a loss."""
        self._joined = {member.process for member in self._members}

    def to_saved(self) -> list[dict[str, Any]]:
        """Return plain values for `restore`."""
        return [asdict(member) for member in self._members]

    def restore(self, saved: Iterable[dict[str, Any]]) -> None:
        """Use the ranks that another kernel has saved."""
        self._members = [
            Member(**{**fields, "info": RankInfo(**fields["info"])}) for fields in saved
        ]
        self.ring_formed()

    # whether the ranks answer

    @property
    def controller_ended(self) -> str:
        """How the controller ended; empty while it runs. Without it, no rank can be reached."""
        return self._controller.ended

    def lost(self) -> dict[int, str]:
        """Return why ranks can no longer answer, by rank."""
        if self._controller.ended:
            return dict.fromkeys(range(len(self._members)), self._controller.ended)
        reasons = {
            member.info.rank: self._process_ended(member)
            or (STILL_RUNS if member.process in self._given_up else "")
            for member in self._members
        }
        return {rank: reason for rank, reason in reasons.items() if reason}

    @property
    def given_up(self) -> set[int]:
        """The ranks that still run a cell that was stopped."""
        return {
            member.info.rank
            for member in self._members
            if member.process in self._given_up and not self._process_ended(member)
        }

    def _process_ended(self, member: Member) -> str:
        return self._agents.all[member.vm].rank_lost_reason(member.info.pid)

    def give_up(self, ranks: Iterable[int]) -> None:
        """Treat ranks that still run a stopped cell as lost, until `reinstate` or a restart."""
        processes = {self._members[rank].process for rank in ranks}
        self._given_up |= processes
        if processes:
            _log.info("gave up %d ranks that still run a stopped cell", len(processes))

    def reinstate(self, rank: int) -> None:
        """Use a rank again that was given up, because its cell has ended."""
        _log.info("rank %d has ended the stopped cell, and is used again", rank)
        self._given_up.discard(self._members[rank].process)

    def check(self, processes: Iterable[Process]) -> None:
        """Raise `StartFailed` if the controller or one of these processes has ended."""
        self._controller.check()
        joined = {
            member.process: member.info.rank
            for member in self._members
            if member.process in self._joined
        }
        self._agents.check(processes, joined)


def free_places(agents: Agents, kept: list[Member], count: int) -> list[Place]:
    """Return free slots for `count` more ranks, in the order of VMs and slots.

    This machine has as many slots as ranks. If too few slots are free, start agents on lost VMs
    again. Raise `UsageError` if that is not enough.
    """
    slots = agents.slots if agents.options.hosts else [len(kept) + count]
    occupied = {member.place for member in kept}

    def find() -> set[Place]:
        answering = [vm for vm, agent in enumerate(agents.all) if not agent.lost]
        return {Place(vm, slot) for vm in answering for slot in range(slots[vm])} - occupied

    free = find()
    failures = []
    for vm in sorted(agents.lost()) if len(free) < count else ():
        try:
            agents.restart_agent(vm)
        except StartFailed as error:
            failures.append(f"; {error}")
    free = find()
    if len(free) < count:
        raise UsageError(
            f"{len(kept) + count} ranks: the VMs that answer have {len(free | occupied)} slots. "
            f"Start a cluster with more{''.join(failures)}."
        )
    return sorted(free)[:count]


class Calls:
    """Calls functions of `workbench.rank.session` in engines; `connect` is called first.

    Parameters
    ----------
    check
        Called with processes while answers are awaited; raises `StartFailed` if one of them has
        ended.
    timeout_s
        Time limit for an answer.
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
        # this import takes as long as the start of the processes, and runs concurrently with it
        import ipyparallel

        for number, patience_s in enumerate(_CONNECT_S, start=1):
            try:
                self._client = ipyparallel.Client(
                    str(self._controller.client_file), timeout=patience_s
                )
                break
            except TimeoutError as error:
                _log.debug("attempt %d to reach the controller has timed out", number)
                self._check(())
                if number == len(_CONNECT_S):
                    raise StartFailed(
                        f"the ipyparallel controller does not answer ({error})",
                        fix="end its process, and start another cluster",
                    ) from None

    def close(self) -> None:
        """Disconnect from the controller; the engines continue to run."""
        if self._client is not None:
            self._client.close()

    @property
    def engines(self) -> set[int]:
        """The numbers of all registered engines."""
        return set(self._client.ids)

    def begin(self, engine: int, name: str, *arguments: Any, **options: Any) -> Future[Any]:
        """Call a function in one engine; return a future of its result.

        If the call cannot be sent, such as to an engine that has just ended, the future has failed.
        """
        try:
            call: Future[Any] = self._client[engine].apply_async(
                call_session, name, *arguments, **options
            )
        except Exception as error:  # noqa: BLE001 - several of ipyparallel's, and IndexError
            call = Future()
            call.set_exception(error)
        return call

    def wait_for_greetings(
        self, earlier_engines: set[int], processes: list[Process]
    ) -> dict[int, RankGreeting]:
        """Wait until the engines of these processes answer; return their greetings, by engine.

        `earlier_engines` are not asked. Engines of an earlier, abandoned start may also appear,
        even if they have ended; they are left out. Raise `StartFailed` if a process has ended, an
        engine has failed, or the time limit has passed.
        """
        deadline = time.monotonic() + self._timeout_s
        calls: dict[int, Future[Any]] = {}
        while True:
            for engine in self.engines - earlier_engines - set(calls):
                calls[engine] = self.begin(engine, "hello")
            answers = {
                engine: call.result()
                for engine, call in sorted(calls.items())
                if call.done() and not _is_dead(call)
            }
            greetings = {
                engine: answer
                for engine, answer in answers.items()
                if _process(answer) in processes
            }
            self._check(processes)  # a process may have ended after its answer
            if len(greetings) == len(processes):
                return greetings
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"only {len(greetings)} of {len(processes)} ranks answered within "
                    f"{self._timeout_s:g} s; is the machine overloaded?"
                )
            time.sleep(_POLL_S)

    def call(
        self, name: str, members: list[Member], arguments: list[tuple[Any, ...]], **options: Any
    ) -> list[Any]:
        """Call a function on ranks concurrently; return the results.

        `arguments` has a tuple for each member. Raise `StartFailed` if the function raised on a
        rank, a process has ended, or the time limit has passed.
        """
        calls = {
            member.info.rank: self.begin(member.engine, name, *member_arguments, **options)
            for member, member_arguments in zip(members, arguments, strict=True)
        }
        processes = [member.process for member in members]
        deadline = time.monotonic() + self._timeout_s
        while waiting := [rank for rank, call in calls.items() if not call.done()]:
            wait([calls[waiting[0]]], _ANSWER_S)
            self._check(processes)
            self._raise_failed(name, calls)  # the other ranks may wait for a failed rank
            if time.monotonic() > deadline:
                waiting = [rank for rank in waiting if not calls[rank].done()]
                raise StartFailed(
                    f"{phrase(waiting)} did not {step_of(name)} within {self._timeout_s:g} s",
                    fix="replace what does not answer with %cluster restart --ranks "
                    f"{ranks_text(waiting)}",
                )
        self._check(processes)  # a process may have ended after its answer
        self._raise_failed(name, calls)
        return [call.result() for call in calls.values()]

    def _raise_failed(self, name: str, calls: dict[int, Future[Any]]) -> None:
        """Raise the error of a rank; prefer errors that are not a lost connection to another."""
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
        rank, error = min(failures, key=lambda failure: self._is_lost_peer(failure[1]))
        raise CallFailed(name, error, phrase([rank])) from error

    def _is_lost_peer(self, error: BaseException) -> bool:
        return bool(self._lost_peer.search(str(error)))


def _failures(calls: dict[int, Future[Any]]) -> dict[int, BaseException]:
    """Return the errors of the calls that have failed, by rank."""
    ended = {rank: call.exception() for rank, call in calls.items() if call.done()}
    return {rank: error for rank, error in ended.items() if error is not None}


def _is_dead(call: Future[Any]) -> bool:
    """Return whether a call has no answer because its engine has ended.

    Raise `CallFailed` if the engine runs, and the function raised in it.
    """
    error = call.exception()
    if error is None:
        return False
    if type(call) is Future or type(error).__name__ == "EngineError":  # not sent, or not answered
        return True
    raise CallFailed("hello", error, "a new rank")


def _process(greeting: RankGreeting) -> Process:
    """Return the process of a greeting; without an agent, the engine's VM is -1.

    Examples
    --------
    >>> greeting = RankGreeting(host="vm2", pid=4711, threads=4, place="1:0")
    >>> tuple(_process(greeting))
    (1, 4711)
    """
    vm = greeting.place.partition(":")[0]
    return Process(int(vm) if vm.isdecimal() else -1, greeting.pid)
