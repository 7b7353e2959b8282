"""A cluster: ipyparallel engines, here or on VMs, that are the ranks of a Horovod ring."""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from workbench.cluster import keeping, registry
from workbench.cluster.background import in_background, uninterrupted
from workbench.cluster.engines import Engines
from workbench.cluster.guard import Guard
from workbench.cluster.hosts import HostsLike
from workbench.cluster.idle import IdleWatch
from workbench.cluster.options import Options
from workbench.cluster.ranks import RankInfo, parse_ranks, ranks_text
from workbench.cluster.run import CellRun, RunResult
from workbench.cluster.sink import NotebookSink, Sink
from workbench.cluster.turns import Turns
from workbench.errors import (
    ClusterError,
    ClusterStopped,
    UsageError,
    WorkbenchError,
)
from workbench.rank.control import ANY_CELL

if TYPE_CHECKING:
    from workbench.cluster.clock_pings import ClockPings
    from workbench.cluster.preflight import Preflight
    from workbench.fabric import FittedFabric
    from workbench.resources import Snapshot
    from workbench.timings import Timings
    from workbench.wire import Inbox, Message

_POLL_S = 0.02
_FREE_S = 1.0
_UP = frozenset({"ready", "running"})


class Cluster:
    """Ranks that run cells together.

    Used as a context manager, or by `start` and `stop`.

    Parameters
    ----------
    n
        Number of ranks on this machine; not together with `hosts`.
    hosts
        VMs to reach over ssh and the ranks on each: ``"vm1:2,vm2:2"``, a host
        file, or an iterable; see `hosts.parse_hosts`.
    ssh_config
        An ssh client configuration to use instead of the user's own.
    launcher
        How ranks get there: ``"local"`` or ``"ssh"``; by default, as `hosts` says.
    start_timeout_s
        After this long without all ranks ready, the start fails.
    hang_after_s
        A collective that waits longer is explained in the cell's output; None for never.
    release_after
        Without a cell for this long (``"30m"``, or seconds) the cluster stops,
        so that others get its GPUs; None for never.
    keep
        How long (``"30m"``, or seconds) it outlives its kernel, to be met again
        by `attach`; None: not at all.
    runs
        The folder for the timings of its runs, instead of the usual one; see
        `timings.runs.runs_folder`.

    Attributes
    ----------
    options
        What was asked for.
    n
        Ranks now.
    name
        A word for people.
    state
        ``"stopped"``, ``"starting"``, ``"ready"``, ``"running"``,
        ``"stopping"`` or ``"failed"``.
    message
        One line that says more about the state, or an empty string.
    fabric
        What the fabric gives, once `calibrate` has measured it, or None.
    """

    def __init__(
        self,
        n: int | None = None,
        *,
        hosts: HostsLike | None = None,
        ssh_config: str | os.PathLike[str] | None = None,
        launcher: str | None = None,
        start_timeout_s: float = 60.0,
        hang_after_s: float | None = 10.0,
        release_after: str | float | None = None,
        keep: str | float | None = None,
        runs: str | os.PathLike[str] | None = None,
    ) -> None:
        options = Options.checked(
            n,
            hosts,
            ssh_config,
            launcher,
            keep,
            start_timeout_s=start_timeout_s,
            hang_after_s=hang_after_s,
            release_after=release_after,
            runs=None if runs is None else os.fspath(runs),
        )
        self._set_up(options, f"{'ssh' if options.hosts else 'local'}-{secrets.token_hex(2)}")

    def _set_up(self, options: Options, name: str) -> None:
        self.options = options
        self._kept = False  # nothing is written down yet that another kernel could find
        self.n = options.n
        self.name = name
        self.state = "stopped"
        self.message = ""
        self._timings: Timings | None = None
        self.fabric: FittedFabric | None = None
        idle = options.release_after
        self._idle = None if idle is None else IdleWatch(idle, self._release)
        self._numbers = itertools.count(1)
        self._run: CellRun | None = None
        self._turns = Turns()
        self._engines: Engines | None = None
        self._inbox: Inbox | None = None
        self._pings: ClockPings | None = None
        self._lock = threading.RLock()

    def snapshot(self) -> dict[str, Snapshot]:
        """Return what each VM has now, by its name; one that does not answer is left out."""
        return {} if self._engines is None else self._engines.snapshots()

    @property
    def preflight(self) -> Preflight | None:
        """What was found on the VMs before their ranks were started; None on this machine."""
        return None if self._engines is None else self._engines.preflight

    @property
    def timings(self) -> Timings:
        """What the ranks' iterations took; stands after `stop`, begins anew with `start`."""
        if self._timings is None:
            from workbench.timings import Timings

            self._timings = Timings()
        return self._timings

    # up and down

    def start(self) -> Cluster:
        """Start the ranks, and return when a collective over all of them was answered.

        Raises
        ------
        StartFailed
            A VM or a rank did not come up; what had started was taken down again.
        HorovodMissing
            There is no Horovod that fits the installed PyTorch.
        """
        with self._lock:
            if self.state != "stopped":
                raise ClusterError(f"cluster {self.name} is {self.state}: stop it first")
            self._timings = None
            self._set("starting", f"starting {self.n} ranks")
            self._engines = self._inbox = None
        atexit.register(self._stop_at_exit, os.getpid())
        try:
            self._engines = Engines(self.options, progress=self._show_progress)
            self._engines.spawn()
            # loaded only now, while the processes load what takes them longer
            from workbench.wire import Inbox

            address = self._engines.greet()
            self.timings.listen(address)
            self._inbox = Inbox(self._receive, interface=address, name="control")
            self._engines.start(self._inbox, self.timings)
            self._align_clocks(self._inbox)
        except BaseException as error:
            self._give_up(error)
            raise
        self._write_down()
        with self._lock:
            if self.state == "starting":
                self._set("ready")
                if self._idle is not None:
                    self._idle.start()
                return self
        raise ClusterStopped(f"cluster {self.name} was stopped while it started")

    @classmethod
    def attach(cls, name: str | None = None) -> Cluster:
        """Meet a cluster again that an earlier kernel has started with `keep`.

        Its ranks' variables stand, and so do its timings up to the last cell
        whose end that kernel saw. A cell that still runs is waited for; an
        interrupt meanwhile ends it.

        Parameters
        ----------
        name
            As ``cluster.name`` told; not needed where there is only one.

        Raises
        ------
        NoCluster
            There is none that runs.
        StartFailed
            Its processes are gone.
        """
        folder, state = keeping.find(name)
        cluster = cls.__new__(cls)
        cluster._set_up(Options.from_plain(state["options"]), state["name"])
        cluster._meet_again(folder, state)
        return cluster

    def _meet_again(self, folder: Path, state: dict[str, Any]) -> None:
        from workbench.wire import Inbox

        self._numbers = itertools.count(int(time.time()))  # above those of the earlier kernel
        self._set("starting", "meeting the ranks again")
        engines = self._engines = Engines(self.options, folder)
        try:
            self.timings.listen(state["address"], state["timings"])
            self._inbox = Inbox(
                self._receive,
                interface=state["address"],
                name="control",
                state=state["control"],
            )
            engines.find(state["engines"], self._inbox, self.timings)
            self.n = len(engines.ranks)
            self._align_clocks(self._inbox)
            self._keep_timings()
            self._wait_until_idle(engines, self._inbox)
        except BaseException as error:
            self._let_go()
            self._set("stopped", f"could not be met again: {error}")
            raise
        atexit.register(self._stop_at_exit, os.getpid())
        self._kept = True
        self._set("ready")
        if self._idle is not None:
            self._idle.start()

    def _wait_until_idle(self, engines: Engines, inbox: Inbox) -> None:
        self._set("starting", "waiting for the cell that still runs")
        try:
            engines.wait_until_idle()
            return
        except KeyboardInterrupt:
            guard = Guard(ANY_CELL, inbox.send)
            guard.interrupt(range(self.n))
        time.sleep(_FREE_S)
        guard.release(range(self.n))
        uninterrupted(engines.wait_until_idle)
        uninterrupted(engines.reform)

    def _write_down(self) -> None:
        """Say in the run who trains, and let the next kernel find this cluster where it is kept."""
        self._keep_timings()
        if self.options.keep_s is None or self._engines is None or self._inbox is None:
            return
        state = {
            "name": self.name,
            "address": self._engines.address,
            "options": self.options.to_plain(),
            "engines": self._engines.to_state(),
            "control": self._inbox.to_state(),
            "timings": self.timings.to_state(),
        }
        keeping.save(self._engines.folder, state)
        self._kept = True

    def _align_clocks(self, inbox: Inbox) -> None:
        from workbench.cluster.clock_pings import ClockPings

        self._pings = ClockPings(inbox.send_later, self.timings.clocks, lambda: self.n)

    def _keep_timings(self) -> None:
        ranks, options = [asdict(info) for info in self.ranks], self.options
        self.timings.keep(self.name, ranks, folder=options.runs, kept_s=options.keep_s)

    def _let_go(self) -> None:
        """Leave a kept cluster to the next kernel."""
        if self._pings is not None:
            self._pings.stop()
        if self._engines is not None:
            self._engines.leave()
        if self._inbox is not None:
            self._inbox.close()
        self.timings.close()

    def stop(self) -> None:
        """Stop every process of the cluster; timings stand. May be called again."""
        if self._begin_to_stop():
            uninterrupted(self._take_down)

    def _begin_to_stop(self) -> bool:
        with self._lock:
            if self.state in {"stopped", "stopping"}:
                return False
            self._set("stopping")
            return True

    def _stop_at_exit(self, pid: int) -> None:
        # a process that this one has forked runs this as well, and the ranks are not its own
        if pid == os.getpid() and self._begin_to_stop():
            (self._let_go if self._kept else self._take_down)()

    def _show_progress(self, text: str) -> None:
        with self._lock:
            if self.state == "starting" and self.message != text:
                self._set("starting", text)

    def _give_up(self, error: BaseException) -> None:
        """Take down what had started; a stop from elsewhere is why it failed, not how."""
        if not self._begin_to_stop():
            while self.state == "stopping":
                time.sleep(_POLL_S)
            raise ClusterStopped(f"cluster {self.name} was stopped while it started") from None
        uninterrupted(self._take_down)
        self._set("stopped", f"did not start: {error}")

    def restart(self, ranks: str | Iterable[int] | None = None) -> Cluster:
        """Put new processes in the place of some ranks; the others keep their variables.

        Broadcast the parameters and the optimizer's state to bring a new rank up to date.

        Parameters
        ----------
        ranks
            Such as ``"0,2-3"``; by default those that are lost.

        Raises
        ------
        UsageError
            No rank is lost, and none was named.
        StartFailed
            A VM is lost, or a new process did not come up.
        """
        chosen = tuple(self._lost()) if ranks is None else parse_ranks(ranks, self.n)
        if not chosen:
            raise UsageError(
                "a restart was asked for, and no rank is lost: name the ranks to start anew, "
                "such as %cluster restart --ranks 1"
            )
        return self._change(
            f"starting rank {ranks_text(chosen)} anew",
            lambda engines: engines.restart(chosen),
        )

    def resize(self, n: int | None = None) -> Cluster:
        """Have `n` ranks between cells; those that stay keep their variables.

        Parameters
        ----------
        n
            None goes on with the ranks that are left, where some are lost.

        Raises
        ------
        UsageError
            The VMs have fewer slots, or no rank would be left.
        StartFailed
            A new process did not come up.
        """
        if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
            raise UsageError(f"a size of n={n!r} ranks was asked for: n is a number from 1")
        return self._change(
            f"going on with {n} ranks" if n else "going on with the ranks that are left",
            lambda engines: engines.resize(n),
        )

    def _change(self, message: str, change: Callable[[Engines], None]) -> Cluster:
        """Change the ranks when the cells that were asked for before have ended."""
        with self._turns.held(self._turns.ticket()):
            engines, before = self._engines, (self.state, self.message)
            if engines is None or self.state not in {"ready", "failed"}:
                raise ClusterStopped(f"cluster {self.name} is {self.state}: {message} cannot be")
            self._set("starting", message)

            def follow() -> None:
                change(engines)
                self.n = len(engines.ranks)
                self._write_down()
                self._set("ready")

            try:
                uninterrupted(follow)
            except UsageError:
                self._set(*before)
                raise
            except Exception as error:
                self.n = len(engines.ranks)
                self._set("failed", str(error))
                raise
        return self

    def _release(self, text: str) -> None:
        """Stop, because nobody has used the cluster for the time that `text` tells."""
        with self._lock:
            if self.state != "ready":
                return
        self.stop()
        self._set("stopped", f"released after {text} without a cell")

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def ranks(self) -> list[RankInfo]:
        """The ranks, in order, as they are now; none before the start."""
        if self._engines is None:
            return []
        states = dict.fromkeys(self._lost(), "dead")
        busy = self._run.ranks if self._run else ()
        states |= {rank: states.get(rank, "running") for rank in busy}
        return [replace(r, state=states.get(r.rank, r.state)) for r in self._engines.ranks]

    def memory_bytes(self) -> dict[int, int]:
        """Return the resident memory of each rank that runs, by rank."""
        return {} if self._engines is None else self._engines.memory_bytes()

    # cells

    def run(
        self,
        source: str,
        ranks: str | Iterable[int] | None = None,
        timeout: float | None = None,
        *,
        sink: Sink | None = None,
    ) -> RunResult:
        """Run `source` on the ranks and wait for its end, showing its output meanwhile.

        Parameters
        ----------
        source
            A notebook cell's text, IPython's magics included.
        ranks
            Such as ``"0,2-3"``; all by default.
        timeout
            Seconds after which the ranks are interrupted.
        sink
            Where the output goes; by default, where printing goes.

        Raises
        ------
        RanksFailed
            It raised on some ranks; the others are free again.
        CellTimeout, CellInterrupted
            It was stopped; the ranks are free again.
        ClusterStopped
            The cluster was not started, or is gone.
        """
        return self._queue(source, ranks, timeout, sink)()

    def run_in_background(
        self,
        source: str,
        ranks: str | Iterable[int] | None = None,
        timeout: float | None = None,
        *,
        sink: Sink | None = None,
    ) -> Future[RunResult]:
        """Do as `run` does, but return at once; the future gives the result or the error.

        Cells run one after the other, in the order in which they were asked for.
        """
        return in_background(self._queue(source, ranks, timeout, sink))

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a name to `value` in every rank."""
        self.push({name: value})

    def __getitem__(self, name: str) -> list[Any]:
        """Return a name's value from every rank, by rank."""
        return [row[name] for row in self.pull([name]).values()]

    def push(self, names: dict[str, Any], ranks: str | Iterable[int] | None = None) -> None:
        """Set names in the ranks' namespace."""
        self._view(ranks).push(names, block=True)

    def pull(
        self, names: list[str], ranks: str | Iterable[int] | None = None
    ) -> dict[int, dict[str, Any]]:
        """Return the values of `names`, by rank.

        Raises
        ------
        UsageError
            A rank does not have one of them.
        """
        chosen = parse_ranks(ranks, self.n)
        try:
            values = self._view(chosen).pull(names, block=True)
        except Exception as error:
            raise UsageError(
                f"{', '.join(names)} was asked of ranks {ranks_text(chosen)}: {error}"
            ) from error
        return {
            rank: dict(zip(names, row, strict=True))
            for rank, row in zip(chosen, values, strict=True)
        }

    def calibrate(self) -> FittedFabric:
        """Measure what the fabric gives this cluster's allreduces, and keep it in `fabric`."""
        from workbench.cluster.calibration import measure

        self.fabric = measure(self)
        return self.fabric

    # running

    def _queue(
        self,
        source: str,
        ranks: str | Iterable[int] | None,
        timeout: float | None,
        sink: Sink | None,
    ) -> Callable[[], RunResult]:
        """Check what is asked, and return what runs it when its turn has come."""
        self._require()
        assert self._inbox is not None
        chosen, number = parse_ranks(ranks, self.n), next(self._numbers)
        where = NotebookSink() if sink is None else sink
        send, lost = self._inbox.send, self._lost
        run = CellRun(
            number,
            chosen,
            where,
            send=send,
            lost=lost,
            timeout_s=timeout,
            hang_after_s=self.options.hang_after_s,
        )
        ticket = self._turns.ticket()

        def follow() -> RunResult:
            with self._turns.held(ticket):
                return self._follow(run, source)

        return follow

    def _follow(self, run: CellRun, source: str) -> RunResult:
        engines = self._require()
        self._run = run
        self.timings.describe(self.name, {info.rank: info.vm for info in engines.ranks})
        self.timings.begin_cell(run.number)
        self._set("running")
        if self._idle is not None:
            self._idle.used()
        try:
            for rank in run.ranks:
                run.calls[rank] = engines.run(rank, run.number, source)
            return run.wait()
        finally:
            uninterrupted(lambda: self._settle(run, engines))

    def _settle(self, run: CellRun, engines: Engines) -> None:
        """Make the cluster ready again after a cell, or say why it is not."""
        if self._idle is not None:
            self._idle.used()
        self.timings.end_cell(run.number, run.records)
        self._run = None
        if self.state == "running" and run.broken and not self._lost() and not run.unfinished:
            self._set("running", "forming the ring anew")
            try:
                engines.reform()
            except WorkbenchError as error:
                self._set("failed", f"the ring could not be formed anew: {error}")
        with self._lock:
            if self.state != "running":
                return
            engines.give_up(run.unfinished)
            if self._lost():
                self._set("failed", f"{self._lost_text()}; {self._cure()}")
            else:
                self._set("ready")

    def _require(self) -> Engines:
        """Return the engines, or raise `ClusterStopped` where they cannot run a cell."""
        if self.state in _UP and self._engines is not None and not self._lost():
            return self._engines
        if self.state == "starting":
            raise ClusterStopped(f"cluster {self.name} is still starting: wait until it is ready")
        if self.state in {*_UP, "failed"}:
            raise ClusterStopped(
                f"cluster {self.name} cannot run a cell: {self._lost_text() or self.message}; "
                f"{self._cure()}"
            )
        why = f" ({self.message})" if self.message else ""
        raise ClusterStopped(
            f"cluster {self.name} is {self.state}{why}: start one with %cluster start"
        )

    def _cure(self) -> str:
        lost = tuple(self._lost())
        if not lost:
            return (
                "form the ring anew with %cluster resize, replace ranks with %cluster restart "
                "--ranks N, or stop it with %cluster stop"
            )
        if len(lost) == self.n:
            return "stop it and start another: %cluster stop, %cluster start"
        return (
            f"replace what is lost with %cluster restart --ranks {ranks_text(lost)}, or go on "
            "without it with %cluster resize"
        )

    def _view(self, ranks: str | Iterable[int] | None) -> Any:
        return self._require().view(parse_ranks(ranks, self.n))

    def _take_down(self) -> None:
        if self._pings is not None:
            self._pings.stop()
        try:
            if self._engines is not None:
                self._engines.stop()
        finally:
            if self._inbox is not None:
                self._inbox.close()
            self.timings.close()
            if self._idle is not None:
                self._idle.stop()
            self._set("stopped")
            atexit.unregister(self._stop_at_exit)

    def _lost(self) -> dict[int, str]:
        """Return why ranks can no longer answer, by rank."""
        if self._engines is None:
            return {}
        if self.state in {"stopping", "stopped"}:
            return {info.rank: "the cluster was stopped" for info in self._engines.ranks}
        return self._engines.lost()

    def _lost_text(self) -> str:
        return "; ".join(f"rank {rank}: {why}" for rank, why in self._lost().items())

    def _receive(self, rank: int, message: Message) -> None:
        received_ns = time.perf_counter_ns()
        if message.kind == "pong":
            self.timings.clocks.pong(rank, message.content, received_ns)
            return
        run = self._run
        # where a rank is, is told of the rank and not of a cell
        if run is not None and message.content.get("cell", run.number) in {run.number, None}:
            run.deliver(rank, message)

    def _set(self, state: str, message: str = "") -> None:
        self.state, self.message = state, message
        registry.changed()
