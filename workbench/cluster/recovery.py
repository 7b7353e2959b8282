"""Make ranks usable again after a broken ring, after a cell that ends late, or after an attach."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Any

from workbench.cluster.outcomes import UNFINISHED_CHANGE
from workbench.cluster.processes import ClusterProcesses
from workbench.cluster.prompts import PROMPT_LOCATIONS
from workbench.cluster.state import ClusterState
from workbench.cluster.stuck_ranks import MIN_WAIT_S, StuckRankMonitor
from workbench.cluster.threads import in_background, uninterrupted
from workbench.errors import (
    CellInterrupted,
    ClusterError,
    WorkbenchError,
    reason,
)
from workbench.rank.interrupts import ANY_CELL
from workbench.ranks import grouped, phrase

_log = logging.getLogger(__name__)

_POLL_S = 0.05
_NOTICE_S = 1.0
"""The output mentions a step that takes longer."""
_FREE_S = 1.0
"""Interrupted ranks are freed after this time."""
_GIVE_UP_S = 7.0
"""Freed ranks are given up after this time."""
_INIT_S = 3.0
"""Ranks may wait this long for an earlier kernel, which does not answer their hvd.init()."""


def repair_ring(
    state: ClusterState, processes: ClusterProcesses, write: Callable[[str], None]
) -> None:
    """Form the missing ring before a cell; `write` has the meaning that it has in `form_ring`.

    Raise `ClusterStopped` if it could not be formed, and `CellInterrupted` after an interrupt.
    """

    def form() -> None:
        form_ring(state, processes, write)
        state.settle()

    try:
        uninterrupted(form, processes.engines.backend.interrupt_init)
    except KeyboardInterrupt:
        raise CellInterrupted("the cell was interrupted before it began") from None
    state.usable(with_ring=True)


def form_ring(
    state: ClusterState, processes: ClusterProcesses, write: Callable[[str], None] = lambda _: None
) -> None:
    """Form the ring again, or go to ``failed``; `write` is called with a line if it takes long."""
    ended = threading.Event()
    attempts = [""]

    def write_later() -> None:
        if not ended.wait(_NOTICE_S):
            write(f"Rebuilding the ring{attempts[-1]}. Stop again to go on without it.\n")

    def report(text: str) -> None:
        attempts.append(f": {text}".rstrip("."))
        state.move(processes, "running", f"rebuilding the ring{attempts[-1]}")

    state.move(processes, "running", "rebuilding the ring")
    in_background(write_later)
    try:
        processes.engines.rebuild_ring(report)
    except WorkbenchError as error:
        _log.info("%s: the ring could not be rebuilt", state.name)
        text = f"the ring could not be rebuilt: {reason(error)}"
        with state.lock:
            state.move(processes, "failed", state.failure_reason() if state.lost() else text)
    finally:
        ended.set()


def reinstate_ranks(
    state: ClusterState,
    processes: ClusterProcesses,
    ranks: Iterable[int],
    broken: Callable[[], bool] = lambda: True,
) -> None:
    """Use ranks again that have ended a stopped cell late.

    `broken` returns whether the ranks need another ring.
    """
    with state.turns.held():
        members = processes.engines.members
        with state.lock:
            current = state.processes is processes and processes.engines.wanted is None
            if not current or state.state != "failed":
                return
            ended = members.given_up.intersection(ranks)
            for rank in ended:
                members.reinstate(rank)
            if state.lost():
                state.set("failed", state.failure_reason())
                return
            if not ended:  # the ranks were replaced, or have lost their processes
                return
            state.set("running")
        if broken():
            form_ring(state, processes)
        state.settle()


def attach(state: ClusterState, folder: Path, saved: dict[str, Any]) -> None:
    """Attach to the ranks that an earlier kernel has left, and wait for their cell.

    Raise `ClusterError` if the user interrupted, and `StartFailed` if the processes have ended.
    """
    state.set("starting", "attaching")
    atexit.register(state.stop_at_exit)
    processes = state.processes = state.new_processes(folder)
    try:
        processes.attach(saved)
        state.n = len(processes.engines.ranks)
        state.move(processes, "starting", "waiting for the cell that still runs")
        wait_until_idle(processes)
        with state.lock:
            if not state.is_up(processes):
                raise state.stopped_error("this kernel attached to it")
            if processes.engines.wanted is not None:
                state.set("failed", UNFINISHED_CHANGE)
            else:
                state.settle("starting")
            state.idle.start()
        _log.info("%s: attached to %d ranks", state.name, state.n)
    except BaseException as error:
        text = reason(error)

        def end() -> None:
            if not state.is_up(processes):
                state.end_late_processes(processes)
                return
            processes.detach()
            state.idle.stop()
            state.move(processes, "stopped", f"could not attach: {text}")

        with contextlib.suppress(KeyboardInterrupt):  # the error below is more important
            uninterrupted(end)
        _log.info("%s: could not attach: %s", state.name, type(error).__name__)
        if isinstance(error, KeyboardInterrupt):
            raise ClusterError(
                f"attaching to {state.name}: interrupted before it was done. Its ranks and "
                "their variables are kept. Attach again with %cluster attach."
            ) from None
        raise
    if processes.engines.members.given_up:
        in_background(partial(_wait_for_given_up, state, processes))


def _wait_for_given_up(state: ClusterState, processes: ClusterProcesses) -> None:
    """Wait until the ranks that were given up have ended their cell, and reinstate them.

    The wait ends early if one of them is lost or replaced.
    """
    engines = processes.engines
    ranks = engines.members.given_up
    for rank in ranks:
        call = engines.begin(rank, "idle")
        while not wait([call], _POLL_S).done and ranks <= engines.members.given_up:
            continue
    reinstate_ranks(state, processes, ranks)


def wait_until_idle(processes: ClusterProcesses) -> None:
    """Wait until the cell of an earlier kernel has ended; an interrupt ends the cell."""
    engines = processes.engines
    lost = engines.members.lost()
    ranks = [rank for rank in range(len(engines.ranks)) if rank not in lost]
    monitor = processes.monitor = StuckRankMonitor(ANY_CELL, processes.engines.send)
    if lost:  # ranks would wait for lost ranks forever
        monitor.release(ranks, peer_lost=True)
    interrupted = False
    try:
        _free_until_idle(processes, monitor, len(ranks))
    except KeyboardInterrupt:
        interrupted = True
        monitor.interrupt(ranks)
        busy = uninterrupted(lambda: engines.busy_ranks(_FREE_S))
        if busy:
            monitor.release(busy, peer_lost=bool(lost))
            busy = uninterrupted(lambda: engines.busy_ranks(_GIVE_UP_S))
        engines.members.give_up(busy)
    finally:
        processes.monitor = None
    if engines.wanted is not None or engines.members.lost():
        return
    if interrupted or monitor.released or not all(engines.call("in_ring")):
        uninterrupted(engines.rebuild_ring, engines.backend.interrupt_init)


def _free_until_idle(processes: ClusterProcesses, monitor: StuckRankMonitor, n: int) -> None:
    """Wait until the ranks are idle; free those that wait for a rank that has left the cell.

    `n` is the number of ranks, without those that were lost before.
    """
    engines = processes.engines
    write = partial(print, f"Attaching to {processes.name}:", flush=True)
    left_at = None
    freed = False
    began = time.monotonic()
    reported: set[int] = set()
    changing = engines.wanted is not None
    if busy := engines.busy_ranks(0 if changing else _NOTICE_S):
        write(
            "ending the change of the ranks that was under way. Variables are kept."
            if changing
            else "waiting for the cell that still runs, whose output is not shown. "
            "An interrupt ends it; variables are kept."
        )
    while busy:
        now = time.monotonic()
        if changing or now - began > _INIT_S:
            engines.backend.abort_earlier_init()
        if asking := monitor.at_prompt(busy):
            monitor.interrupt(asking)
            new_kinds = {rank: kind for rank, kind in asking.items() if rank not in reported}
            for kind, ranks in grouped(new_kinds):
                location = PROMPT_LOCATIONS[kind]
                write(
                    phrase(ranks, f"is {location}", f"are {location}")
                    + " in a cell of an earlier kernel, where nobody can answer. The cell is "
                    "interrupted there; variables are kept."
                )
            reported |= asking.keys()
        lost = bool(engines.members.lost())
        if len(busy) < n:
            left_at = now if left_at is None else left_at
            if now - left_at > MIN_WAIT_S:
                monitor.check(set(busy), now, rank_failed=True, peer_lost=lost)
        if monitor.released and not freed and not lost:
            freed = True
            write(f"{phrase(busy)} waited for a rank that has ended the cell. The wait is ended.")
        busy = engines.busy_ranks(_NOTICE_S)
