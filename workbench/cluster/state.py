"""The state of a cluster, and its transitions: the start and the stop of the ranks."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cluster.durations import parse_duration
from workbench.cluster.launchers import refused_start
from workbench.cluster.options import Options
from workbench.cluster.outcomes import STOPPED, cluster_failure_reason
from workbench.cluster.processes import ClusterProcesses
from workbench.cluster.sampling import ClusterSampler
from workbench.cluster.threads import FairLock, IdleWatch, defer_interrupts, uninterrupted
from workbench.errors import ClusterError, ClusterStopped, reason
from workbench.ranks import Ranks, parse_ranks

if TYPE_CHECKING:
    from workbench.timings import Timings
    from workbench.wire.rank_messages import CellMessage

_log = logging.getLogger(__name__)

_POLL_S = 0.02
_UP = frozenset({"ready", "running"})
DOWN = frozenset({"stopping", "stopped"})


class _LazyTimings:
    """The timings of the cells since one start, created by the first thread that needs them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._creating = threading.Lock()
        self._timings: Timings | None = None

    def get(self) -> Timings:
        """Return the timings; the first call imports their package, which takes some time."""
        with self._creating:
            if self._timings is None:
                from workbench.timings import Timings

                self._timings = Timings(
                    one_clock=not self._options.remote, recording=self._options.record
                )
            return self._timings


class ClusterState:
    """The state machine of one cluster; it owns the cluster's processes.

    ``stopped`` → ``starting`` → ``ready`` ⇄ ``running``. After the loss of a rank, or if no ring
    can be formed, the state is ``failed``. A change of the ranks (`changes`) goes through
    ``starting`` back to ``ready``; `stop` goes from any state through ``stopping`` to ``stopped``.

    Attributes
    ----------
    state, message
        The state and its message after the last transition. The loss of a rank between cells
        changes neither (see `state_now`).
    n
        The number of ranks, now or after the start.
    processes
        The processes since the latest start, also after a stop.
    turns
        Orders cells, transfers and changes of the ranks: one at a time.
    lock
        Held while the next state is derived from the current state.
    receive
        Called, in the control channel's thread, with each message of a rank about a cell.
    before_stop
        Called before the processes are stopped.
    listeners
        Called, in any thread, after every change of the state.
    """

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options = options
        self.n = options.n
        self.state = "stopped"
        self.message = ""
        self.turns = FairLock()
        after = options.release_after
        after_s = None if after is None else parse_duration(after, "release_after")
        self.idle = IdleWatch(after_s, self._release)
        self.lock = threading.RLock()
        self.receive: Callable[[int, CellMessage], None] = lambda _rank, _message: None
        self.before_stop: Callable[[], None] = lambda: None
        self._timings = _LazyTimings(options)
        self.listeners: list[Callable[[], None]] = [ClusterSampler(self).on_change]
        self._owner = os.getpid()
        self.processes = self.new_processes()

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the process that started or attached to the ranks."""
        return self._owner != os.getpid()

    @property
    def timings(self) -> Timings:
        """The timings since the last start."""
        return self._timings.get()

    def set(self, state: str, message: str = "") -> None:
        """Go to a state, and call the listeners."""
        previous = self.state
        self.state = state
        self.message = message
        self.idle.used()
        for listener in tuple(self.listeners):
            listener()
        if state != previous:
            _log.info("%s: %s -> %s", self.name, previous, state)

    def is_up(self, processes: ClusterProcesses) -> bool:
        """Return whether no thread has stopped these processes; hold `lock` to rely on it."""
        return self.processes is processes and self.state not in DOWN

    def move(self, processes: ClusterProcesses, state: str, message: str = "") -> bool:
        """Go to a state, unless another thread has stopped `processes`; return whether it did.

        A change of the ranks takes seconds. If a thread stops the cluster during this time, it
        decides the state, and so does a start after the stop.
        """
        with self.lock:
            if not self.is_up(processes):
                return False
            self.set(state, message)
            return True

    def begin(self, message: str = "") -> None:
        """Go to ``running``; raise `ClusterStopped` if another thread has stopped the cluster."""
        with self.lock:
            self.usable()
            self.set("running", message)

    def report(self, progress: str) -> None:
        """Show the running task's progress as the cluster's message."""
        with self.lock:
            if self.state == "running" and self.message != progress:
                self.set("running", progress)

    def settle(self, since: str = "running", to: tuple[str, ...] = ("ready",)) -> None:
        """Leave the state `since`: go to `to`, or to ``failed`` if ranks are lost."""
        with self.lock:
            if self.state == since:
                self.set(*(("failed", self.failure_reason()) if self.lost() else to))

    def state_now(self) -> tuple[str, str]:
        """Return the state and the message, which says what to do about a failure.

        The state is also ``failed`` if ranks were lost between cells.
        """
        with self.lock:
            if self.state == "ready" and self.lost():
                return "failed", self.failure_reason()
            if self.state == "failed" and self.processes.engines.wanted is not None:
                return "failed", self.failure_reason()  # the message is only about the change
            return self.state, self.message

    # whether a cell can run

    def lost(self) -> dict[int, str]:
        """Return why ranks can no longer answer, by rank."""
        engines = self.processes.engines
        if self.state in DOWN:
            return {info.rank: STOPPED for info in engines.ranks}
        return engines.members.lost()

    def usable(self, *, with_ring: bool = False) -> ClusterProcesses:
        """Return the processes if they can run a cell; raise `ClusterStopped` if they cannot.

        Without `with_ring`, the ring may have to be formed again first.
        """
        self.check_not_forked()
        engines = self.processes.engines
        lacks_ring = self.state == "failed" and engines.complete and engines.backend.ring_broken
        if (self.state in _UP and not self.lost()) or (lacks_ring and not with_ring):
            return self.processes
        if self.state == "starting":
            raise ClusterStopped(f"cluster {self.name}: still starting. Wait until it is ready.")
        if self.state in {*_UP, "failed"}:
            raise ClusterStopped(f"cluster {self.name} cannot run a cell: {self.failure_reason()}")
        message = f" ({self.message})" if self.message else ""
        raise ClusterStopped(
            f"cluster {self.name}: {self.state}{message}. Start one with %cluster start."
        )

    def parse_ranks(self, ranks: Ranks) -> tuple[int, ...]:
        """Return the numbers of ranks; raise `ClusterStopped` if their count is not known yet."""
        if not self.n:
            self.usable()
        return parse_ranks(ranks, self.n)

    def failure_reason(self) -> str:
        """Return why the cluster cannot run a cell, and what to do."""
        return cluster_failure_reason(self.processes.engines, self.lost(), self.message)

    # transitions

    def start(self) -> None:
        """Start the ranks; if that fails, stop what has started."""
        processes: ClusterProcesses | None = None

        def show(progress: str) -> None:
            with self.lock:
                if self.state == "starting" and self.message != progress:
                    self.set("starting", progress)

        try:
            with defer_interrupts(), self.lock:
                if self.state != "stopped":
                    raise ClusterError(f"cluster {self.name} is {self.state}: stop it first")
                if self.options.allocation:  # it belongs to an attached cluster that has ended
                    n = self.options.requested_n
                    self.options = replace(self.options, n=n, hosts=None, allocation=None)
                self._owner = os.getpid()
                self.n = self.options.n
                self._timings = _LazyTimings(self.options)
                processes = self.processes = self.new_processes(progress=show)
                atexit.register(self.stop_at_exit)
                self.set("starting", f"starting {self.n or 'the'} ranks")
            processes.start()
            processes.save()
            with self.lock:
                if not self.is_up(processes):
                    raise self.stopped_error("it started")
                self.n = len(processes.engines.ranks)
                self.set("ready")
                self.idle.start()
        except BaseException as error:
            failed = refused_start(error) if isinstance(error, OSError) else error
            if processes is not None:
                self._end_start(processes, f"did not start: {reason(failed)}")
            if failed is error:
                raise
            raise failed from error

    def stop(self, message: str = "") -> bool:
        """Stop every process, unless this one is a fork; the timings are kept.

        `message` says why. Return False if the processes were stopped before, or if another thread
        stops them.
        """
        return uninterrupted(lambda: self._stop(message))

    # steps

    def stopped_error(self, activity: str) -> ClusterStopped:
        """Return the error of a step that another thread has ended by stopping the cluster.

        `activity` describes the step, such as ``"it started"``.
        """
        return ClusterStopped(f"cluster {self.name} was stopped while {activity}")

    def end_late_processes(self, processes: ClusterProcesses) -> None:
        """End processes that were started after another thread had stopped `processes`.

        `stop` ends the processes that exist. A start or a change of the ranks in another thread
        can start further processes until it notices the stop.
        """
        while self.processes is processes and self.state == "stopping":
            time.sleep(_POLL_S)
        processes.end_late_processes()

    def check_not_forked(self) -> None:
        """Raise `ClusterStopped` in a fork, which lacks its parent's threads and connections."""
        if self.forked and self.state != "stopped":
            raise ClusterStopped(
                f"cluster {self.name}: belongs to process {self._owner}, of which this one is a "
                "fork. Use it there, or start another cluster here with wb.Cluster."
            )

    def new_processes(
        self, folder: Path | None = None, progress: Callable[[str], None] = lambda _: None
    ) -> ClusterProcesses:
        """Return processes that are not started; `folder` is the folder of a running cluster."""
        # the processes keep the timings of this start: a thread that ends them after another start
        # has begun must not close the timings of the later start
        timings = self._timings.get
        return ClusterProcesses(
            self.name, self.options, timings, self.receive, folder=folder, progress=progress
        )

    def _stop(
        self,
        message: str = "",
        *,
        keep: bool = False,
        processes: ClusterProcesses | None = None,
        only_ready: bool = False,
    ) -> bool:
        """Stop as `stop` does, under conditions that are checked together with the transition.

        Parameters
        ----------
        keep
            Detach from the processes instead, if that is possible.
        processes
            Stop only these processes, and not processes of a later start; None for the current
            processes.
        only_ready
            Stop only if the cluster is ready.
        """
        if self.forked:  # the ranks belong to the parent, and the lock may have been held there
            return False
        with self.lock:
            current = self.processes
            if self.state in DOWN or (processes is not None and processes is not current):
                return False
            if only_ready and self.state != "ready":
                return False
            self.set("stopping")

        def end_processes() -> None:
            detaches = keep and current.attachable
            (current.detach if detaches else current.stop)()

        with contextlib.ExitStack() as steps:  # in reverse order, each also after an interrupt
            steps.callback(atexit.unregister, self.stop_at_exit)
            steps.callback(self.set, "stopped", message)
            steps.callback(self.idle.stop)
            steps.callback(end_processes)
            self.before_stop()
        return True

    def _end_start(self, processes: ClusterProcesses, message: str) -> None:
        """Stop the processes of a start that has failed, or that another thread has stopped.

        Raise `ClusterStopped` in the second case.
        """
        with contextlib.suppress(KeyboardInterrupt):  # the error of the start is more important
            if not uninterrupted(lambda: self._stop(message, processes=processes)):
                uninterrupted(lambda: self.end_late_processes(processes))
                raise self.stopped_error("it started") from None

    def stop_at_exit(self) -> None:
        """Stop, or detach if the cluster is kept, at the end of this process."""
        # a second Ctrl-C ends this process at once; all others then end by themselves
        with contextlib.suppress(KeyboardInterrupt):
            self._stop(keep=True)

    def _release(self) -> None:
        """Stop the cluster, because it was not used."""
        after = self.options.release_after
        text = after if isinstance(after, str) else f"{after:g} s"
        message = f"released after {text} without a cell"
        _log.info("%s: no cell for %s, stopping if it is ready", self.name, text)
        uninterrupted(lambda: self._stop(message, only_ready=True))
