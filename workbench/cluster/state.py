"""The state of a cluster, and its transitions: the start and the stop of the ranks."""

from __future__ import annotations

import atexit
import contextlib
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
from workbench.cluster.outcomes import STOPPED, cluster_trouble
from workbench.cluster.processes import ClusterProcesses
from workbench.cluster.sampling import ClusterSampler
from workbench.cluster.threads import FairLock, IdleWatch, interrupts_later, uninterrupted
from workbench.errors import ClusterError, ClusterStopped, reason
from workbench.ranks import Ranks, parse_ranks

if TYPE_CHECKING:
    from workbench.timings import Timings
    from workbench.wire.rank_messages import CellMessage

_POLL_S = 0.02
_UP = frozenset({"ready", "running"})
DOWN = frozenset({"stopping", "stopped"})


class ClusterState:
    """The state machine of one cluster, which owns its processes.

    ``stopped`` → ``starting`` → ``ready`` ⇄ ``running``. After the loss of a rank, or if no ring
    can be formed, the state is ``failed``. A change of the ranks (`changes`) goes through
    ``starting`` back to ``ready``; `stop` goes from any state through ``stopping`` to ``stopped``.

    Attributes
    ----------
    state, message
        As the last transition has left them; a rank that is lost between cells changes
        neither (see `state_now`).
    n
        The number of ranks, now or after the start.
    processes
        The processes since the latest start, also after a stop.
    turns
        Orders cells, transfers and changes of the ranks: one at a time.
    lock
        Held while a state is replaced by one that depends on it.
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
        self._timings: Timings | None = None
        self.listeners: list[Callable[[], None]] = [ClusterSampler(self).on_change]
        self._owner = os.getpid()
        self.processes = self.new_processes()

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that started or attached to the ranks."""
        return self._owner != os.getpid()

    @property
    def timings(self) -> Timings:
        """The timings since the last start."""
        if self._timings is None:
            from workbench.timings import Timings

            self._timings = Timings(
                one_clock=not self.options.remote, recording=self.options.record
            )
        return self._timings

    def set(self, state: str, message: str = "") -> None:
        """Go to a state, and call the listeners."""
        self.state, self.message = state, message
        self.idle.used()
        for listener in tuple(self.listeners):
            listener()

    def begin(self, message: str = "") -> None:
        """Go to ``running``, if no other thread has stopped the cluster meanwhile."""
        with self.lock:
            self.usable()
            self.set("running", message)

    def report(self, progress: str) -> None:
        """Make the progress of what runs the message."""
        with self.lock:
            if self.state == "running" and self.message != progress:
                self.set("running", progress)

    def settle(self, since: str = "running", to: tuple[str, ...] = ("ready",)) -> None:
        """Leave the state `since`: go to `to`, or to ``failed`` if ranks are lost."""
        with self.lock:
            if self.state == since:
                self.set(*(("failed", self.trouble()) if self.lost() else to))

    def state_now(self) -> tuple[str, str]:
        """Return the state and the message, which says what to do about a failure.

        It is ``failed`` also when ranks were lost between cells.
        """
        with self.lock:
            if self.state == "ready" and self.lost():
                return "failed", self.trouble()
            if self.state == "failed" and self.processes.engines.wanted is not None:
                return "failed", self.trouble()  # the message is only about the change
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
        self.refuse_fork()
        engines = self.processes.engines
        lacks_ring = self.state == "failed" and engines.complete and engines.backend.ring_broken
        if (self.state in _UP and not self.lost()) or (lacks_ring and not with_ring):
            return self.processes
        if self.state == "starting":
            raise ClusterStopped(f"cluster {self.name}: still starting. Wait until it is ready.")
        if self.state in {*_UP, "failed"}:
            raise ClusterStopped(f"cluster {self.name} cannot run a cell: {self.trouble()}")
        why = f" ({self.message})" if self.message else ""
        raise ClusterStopped(
            f"cluster {self.name}: {self.state}{why}. Start one with %cluster start."
        )

    def parse_ranks(self, ranks: Ranks) -> tuple[int, ...]:
        """Return the numbers of ranks; raise `ClusterStopped` if it is not known how many are."""
        if not self.n:
            self.usable()
        return parse_ranks(ranks, self.n)

    def trouble(self) -> str:
        """Return why the cluster cannot run a cell, and what to do."""
        return cluster_trouble(self.processes.engines, self.lost(), self.message)

    # transitions

    def start(self) -> None:
        """Start the ranks; if that fails, stop what has started."""
        begun, stopped = False, f"cluster {self.name} was stopped while it started"

        def show(progress: str) -> None:
            with self.lock:
                if self.state == "starting" and self.message != progress:
                    self.set("starting", progress)

        try:
            with interrupts_later(), self.lock:
                if self.state != "stopped":
                    raise ClusterError(f"cluster {self.name} is {self.state}: stop it first")
                begun = True
                if self.options.allocation:  # of the cluster that was attached to, and has ended
                    n = self.options.requested_n
                    self.options = replace(self.options, n=n, hosts=None, allocation=None)
                self._owner, self.n = os.getpid(), self.options.n
                self._timings = None
                processes = self.processes = self.new_processes(progress=show)
                atexit.register(self.stop_at_exit)
                self.set("starting", f"starting {self.n or 'the'} ranks")
            processes.start()
            self.n = len(processes.engines.ranks)
            processes.save()
        except BaseException as error:
            failed = refused_start(error) if isinstance(error, OSError) else error
            with contextlib.suppress(KeyboardInterrupt):  # why the start ended is more important
                if begun and not self.stop(f"did not start: {reason(failed)}"):
                    while self.state == "stopping":
                        time.sleep(_POLL_S)
                    raise ClusterStopped(stopped) from None
            if failed is error:
                raise
            raise failed from error
        with self.lock:
            if self.state != "starting":
                raise ClusterStopped(stopped)
            self.set("ready")
            self.idle.start()

    def stop(self, message: str = "") -> bool:
        """Stop every process, unless this one is a fork; the timings are kept.

        `message` says why. Return False if the processes are stopped already, or by another thread.
        """
        return uninterrupted(lambda: self._stop(message))

    # steps

    def refuse_fork(self) -> None:
        """Raise in a fork: it has neither the threads nor the connections of its parent."""
        if self.forked and self.state != "stopped":
            raise ClusterStopped(
                f"cluster {self.name}: belongs to process {self._owner}, of which this one is a "
                "fork. Use it there, or start another cluster here with wb.Cluster."
            )

    def new_processes(
        self, folder: Path | None = None, progress: Callable[[str], None] = lambda _: None
    ) -> ClusterProcesses:
        """Return processes, not started; `folder` is that of a cluster that already runs."""
        given = (self.name, self.options, lambda: self.timings)
        return ClusterProcesses(*given, self.receive, folder=folder, progress=progress)

    def _stop(self, message: str = "", *, keep: bool = False) -> bool:
        """Do as `stop` does; detach from the processes instead if that is possible and `keep`."""
        if self.forked:  # the ranks are not its own, and another thread may have held the lock
            return False
        with self.lock:
            if self.state in DOWN:
                return False
            self.set("stopping")

        def end_processes() -> None:
            detaches = keep and self.processes.attachable
            (self.processes.detach if detaches else self.processes.stop)()

        with contextlib.ExitStack() as steps:  # in reverse order, each also after an interrupt
            steps.callback(atexit.unregister, self.stop_at_exit)
            steps.callback(self.set, "stopped", message)
            steps.callback(self.idle.stop)
            steps.callback(end_processes)
            self.before_stop()
        return True

    def stop_at_exit(self) -> None:
        """Stop, or detach if the cluster is kept, at the end of this process."""
        # after a second Ctrl-C this process ends, and all others end without it
        with contextlib.suppress(KeyboardInterrupt):
            self._stop(keep=True)

    def _release(self) -> None:
        """Stop the cluster, because it was not used."""
        with self.lock:
            if self.state != "ready":
                return
        after = self.options.release_after
        text = after if isinstance(after, str) else f"{after:g} s"
        self.stop(f"released after {text} without a cell")
