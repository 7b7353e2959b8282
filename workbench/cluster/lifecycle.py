"""A cluster's way up and down: started or met again, its ranks changed, stopped or left."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cluster.background import uninterrupted
from workbench.cluster.cells import Cells
from workbench.cluster.condition import Condition
from workbench.cluster.exchange import Exchange
from workbench.cluster.idle import IdleWatch
from workbench.cluster.options import Options
from workbench.cluster.ranks import phrase
from workbench.cluster.running import Running
from workbench.errors import ClusterError, ClusterStopped, StartFailed, UsageError, reason

if TYPE_CHECKING:
    from workbench.cluster.engines import Engines
    from workbench.timings import Timings

_POLL_S = 0.02


class Lifecycle:
    """One cluster between its starts and stops.

    Parameters
    ----------
    name
        The cluster's.
    options
        What was asked for.
    condition
        Its state, which every step here changes.

    Attributes
    ----------
    n
        How many ranks there are, or will be.
    cells
        What runs on them.
    exchange
        What is pushed to them and pulled.
    """

    def __init__(self, name: str, options: Options, condition: Condition) -> None:
        self._name = name
        self._options = options
        self._condition = condition
        self._timings: Timings | None = None
        self._kept = False  # nothing is written down yet that another kernel could find
        self._idle = IdleWatch(options.release_after, self._release)
        self.n = options.n
        self.cells = Cells(options, condition, lambda: self.timings, self._idle)
        self.exchange = Exchange(condition, self.cells, self._idle)

    @property
    def timings(self) -> Timings:
        """What the ranks' iterations took; begins anew with `start`."""
        if self._timings is None:
            from workbench.timings import Timings

            self._timings = Timings()
        return self._timings

    def start(self) -> None:
        """Start the ranks; where that fails, take down what had started."""
        condition = self._condition
        with condition.lock:
            if condition.state != "stopped":
                raise ClusterError(f"cluster {self._name} is {condition.state}: stop it first")
            self._timings = None
            self.n = self._options.n
            condition.set("starting", f"starting {self.n} ranks")
            condition.running = None
        atexit.register(self._stop_at_exit, os.getpid())
        try:
            running = self._running(progress=self._show_progress)
            running.start()
        except BaseException as error:
            self._give_up(error)
            raise
        self._kept = running.write_down()
        with condition.lock:
            if condition.state != "starting":
                raise ClusterStopped(f"cluster {self._name} was stopped while it started")
            condition.set("ready")
            self._idle.start()

    def find(self, folder: Path, state: dict[str, Any]) -> None:
        """Meet the ranks that an earlier kernel has left, and wait for their cell."""
        condition = self._condition
        self.cells.follow_earlier()
        condition.set("starting", "meeting the ranks again")
        running = self._running(folder)
        try:
            running.find(state)
            self.n = len(running.engines.ranks)
            condition.set("starting", "waiting for the cell that still runs")
            running.wait_until_idle()
        except BaseException as error:
            running.leave()
            condition.set("stopped", f"could not attach: {reason(error)}")
            if isinstance(error, KeyboardInterrupt):
                raise ClusterError(
                    f"attaching to {self._name}: interrupted before it was done. Its ranks and "
                    "their variables are kept. Attach again with %cluster attach."
                ) from None
            raise
        atexit.register(self._stop_at_exit, os.getpid())
        self._kept = True
        if condition.lost():
            condition.set("failed", condition.trouble())
        else:
            condition.set("ready")
        if running.engines.given_up:
            self.cells.recover_earlier(running)
        self._idle.start()

    def stop(self) -> None:
        """Stop every process; timings stand."""
        if self._begin_to_stop():
            uninterrupted(self._take_down)

    def change(self, message: str, change: Callable[[Engines], None], n: int | None = None) -> None:
        """Change the ranks when the cells that were queued before have ended.

        Parameters
        ----------
        message
            What is done, in words.
        n
            How many ranks there are to be; None for those that are left.

        Raises
        ------
        ClusterError
            It was interrupted; the message says what is lost, and what to do.
        """
        condition = self._condition
        with self.cells.between(message):
            running, before = condition.running, (condition.state, condition.message)
            if running is None or condition.state not in {"ready", "failed"}:
                raise ClusterStopped(
                    f"Cannot change the ranks ({message}): "
                    f"cluster {self._name} is {condition.state}. "
                    + (
                        "Start one with %cluster start."
                        if condition.state in {"stopped", "stopping"}
                        else "Wait until it is ready."
                    )
                )
            condition.set("starting", message)
            engines = running.engines
            infos, failed = engines.ranks, condition.lost()

            def follow() -> None:
                change(running.engines)
                self.n = len(running.engines.ranks)
                running.write_down()
                condition.set("ready")

            try:
                uninterrupted(follow, engines.interrupted.set)
            except UsageError:
                condition.set(*before)
                raise
            except Exception as error:
                self.n = len(engines.ranks)
                if not engines.interrupted.is_set():
                    told = reason(error)
                    if isinstance(error, StartFailed) and engines.wanted is not None:
                        # the condition itself says what to do after a change that ended early
                        told = told.removesuffix(f": {error.cure}")
                    condition.set("failed", told)
                    raise
                pids = {(info.vm, info.pid) for info in engines.ranks}
                gone = [info.rank for info in infos if (info.vm, info.pid) not in pids]
                told = _interrupted(message, {*gone, *failed})
                condition.set("failed", told)
                raise ClusterError(
                    f"{told} Rebuild the ring with %cluster resize -n "
                    f"{n or len(infos) - len(failed)}, which also starts what is missing."
                ) from None
            finally:
                engines.interrupted.clear()

    # steps

    def _running(
        self, folder: Path | None = None, progress: Callable[[str], None] = lambda _: None
    ) -> Running:
        running = self._condition.running = Running(
            self._name,
            self._options,
            lambda: self.timings,
            self.cells.receive,
            folder=folder,
            progress=progress,
        )
        return running

    def _show_progress(self, text: str) -> None:
        with self._condition.lock:
            if self._condition.state == "starting" and self._condition.message != text:
                self._condition.set("starting", text)

    def _give_up(self, error: BaseException) -> None:
        """Take down what had started; a stop from elsewhere is why it failed, not how."""
        if not self._begin_to_stop():
            while self._condition.state == "stopping":
                time.sleep(_POLL_S)
            raise ClusterStopped(f"cluster {self._name} was stopped while it started") from None
        uninterrupted(self._take_down)
        self._condition.set("stopped", f"did not start: {reason(error)}")

    def _begin_to_stop(self) -> bool:
        with self._condition.lock:
            if self._condition.state in {"stopped", "stopping"}:
                return False
            self._condition.set("stopping")
            return True

    def _take_down(self) -> None:
        try:
            if self._condition.running is not None:
                self._condition.running.stop()
        finally:
            self._idle.stop()
            self._condition.set("stopped")
            atexit.unregister(self._stop_at_exit)

    def _stop_at_exit(self, pid: int) -> None:
        # a process that this one has forked runs this as well, and the ranks are not its own
        if pid != os.getpid() or not self._begin_to_stop():
            return
        running = self._condition.running
        # after another Ctrl-C the processes end by themselves, for this one is gone
        with contextlib.suppress(KeyboardInterrupt):
            if self._kept and running is not None:
                running.leave()
            else:
                self._take_down()

    def _release(self, text: str) -> None:
        """Stop, because nobody has used the cluster for the time that `text` tells."""
        with self._condition.lock:
            if self._condition.state != "ready":
                return
        self.stop()
        self._condition.set("stopped", f"released after {text} without a cell")


def _interrupted(message: str, lost: set[int]) -> str:
    """Return what is left after a change of the ranks that was interrupted."""
    kept = (
        f"Variables of {phrase(lost)} are lost, those of all others are kept"
        if lost
        else "All variables are kept"
    )
    return f"{message}: interrupted before it was done. {kept}."
