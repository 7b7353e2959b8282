"""Change the ranks of a cluster. During a change, its state is ``starting``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from workbench.cluster.outcomes import change_failure, interrupted_change
from workbench.cluster.processes import ClusterProcesses
from workbench.cluster.state import DOWN, ClusterState
from workbench.cluster.threads import uninterrupted
from workbench.errors import ClusterError, ClusterStopped, UsageError
from workbench.ranks import Ranks, phrase

if TYPE_CHECKING:
    from workbench.cluster.engines import Engines


_log = logging.getLogger(__name__)


def restart(state: ClusterState, ranks: Ranks) -> None:
    """Replace some ranks, start missing ranks, or form the ring again; see `Cluster.restart`."""
    engines = state.processes.engines
    failed = state.state == "failed"
    if failed and engines.wanted is not None and ranks is None:
        n = engines.wanted
        change_ranks(state, f"going on with {n} ranks", lambda engines: engines.resize(n), n)
        return
    if failed and engines.renumbered:
        raise UsageError(
            f"--ranks {ranks}: ranks are missing, because an earlier change ended early, and "
            "the others have changed their numbers. Start what is missing with %cluster "
            "restart first."
        )
    chosen = tuple(state.lost()) if ranks is None else state.parse_ranks(ranks)
    if chosen and ranks is None and engines.backend.controller == "MPI":
        chosen = tuple(range(state.n))
    if chosen:
        change_ranks(
            state, f"replacing {phrase(chosen)}", lambda engines: engines.restart(chosen), state.n
        )
    elif failed and engines.backend.ring_broken:
        change_ranks(state, "rebuilding the ring", lambda engines: engines.rebuild_ring())
    else:
        raise UsageError(
            "Nothing to restart: no rank is lost. Name the ranks to replace, such as "
            "%cluster restart --ranks 1."
        )


def change_ranks(
    state: ClusterState, message: str, change: Callable[[Engines], None], n: int | None = None
) -> None:
    """Change the ranks when the cells that were queued before have ended.

    If the user interrupts the change, raise a `ClusterError` that says what is lost and what to do.

    Parameters
    ----------
    message
        A description of the change.
    change
        Makes the change, in a thread.
    n
        The number of ranks afterwards; None to keep the ranks that are not lost.
    """
    with state.turns.held(activity=message):
        with state.lock:
            processes = _changeable(state, message)
            before = (state.state, state.message)
            state.set("starting", message)
        engines = processes.engines
        infos = engines.ranks
        lost = state.lost()
        stopped = state.stopped_error(f"its ranks were changed ({message})")

        def make() -> None:
            began = time.monotonic()
            _log.info("%s: %s; lost ranks: %s", state.name, message, sorted(lost))
            change(engines)
            processes.save()
            with state.lock:
                if not state.is_up(processes):
                    raise stopped
                state.n = len(engines.ranks)
                state.set("ready")
            _log.info("%s: %s took %.1f s", state.name, message, time.monotonic() - began)

        try:
            uninterrupted(make, engines.interrupted.set)
        except Exception as error:
            interrupted = engines.interrupted.is_set()
            text = interrupted_change(message, infos, engines.ranks, lost)
            is_up = _end_failed_change(state, processes, before, error, text if interrupted else "")
            if not is_up:
                uninterrupted(lambda: state.end_late_processes(processes))
                raise stopped from None
            if isinstance(error, UsageError) or not interrupted:
                raise
            raise ClusterError(
                f"{text} Rebuild the ring with %cluster resize -n {n or len(infos) - len(lost)}"
                ", which also starts what is missing."
            ) from None
        finally:
            engines.interrupted.clear()


def _end_failed_change(
    state: ClusterState,
    processes: ClusterProcesses,
    before: tuple[str, str],
    error: Exception,
    interrupted_text: str,
) -> bool:
    """Set the state after a change that has failed; return whether the processes are still up.

    `before` has the state and the message before the change. `interrupted_text` says what an
    interrupt has left of the ranks; it is empty if the change was not interrupted.
    """
    engines = processes.engines
    with state.lock:
        is_up = state.is_up(processes)
        if is_up:
            state.n = len(engines.ranks)
        if isinstance(error, UsageError):  # nothing was changed
            state.move(processes, *before)
        elif interrupted_text:
            state.move(processes, "failed", interrupted_text)
        elif engines.complete and not engines.backend.ring_broken:
            state.move(processes, *before)  # only the state file could not be written
        else:
            state.move(processes, "failed", change_failure(error, engines.wanted))
    _log.info("%s: the change of the ranks has failed: %s", state.name, type(error).__name__)
    return is_up


def _changeable(state: ClusterState, message: str) -> ClusterProcesses:
    """Return the processes; raise `ClusterStopped` if their ranks cannot be changed."""
    state.check_not_forked()
    if state.state not in {"ready", "failed"}:
        is_down = state.state in DOWN
        fix = "Start one with %cluster start." if is_down else "Wait until it is ready."
        raise ClusterStopped(
            f"Cannot change the ranks ({message}): cluster {state.name} is {state.state}. {fix}"
        )
    if state.processes.engines.members.controller_ended:
        raise ClusterStopped(f"Cannot change the ranks ({message}): {state.failure_reason()}")
    return state.processes
