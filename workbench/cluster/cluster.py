"""A cluster: ipyparallel engines on this machine that are the ranks of a Horovod ring."""

from __future__ import annotations

import atexit
import itertools
import secrets
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from workbench.cluster import registry
from workbench.cluster.background import in_background
from workbench.cluster.engines import Engines
from workbench.cluster.ranks import RankInfo, parse_ranks, ranks_text
from workbench.cluster.run import CellRun, RunResult
from workbench.cluster.sink import NotebookSink, Sink
from workbench.errors import (
    ClusterError,
    ClusterStopped,
    UsageError,
)
from workbench.timings import Timings
from workbench.wire import Inbox, Message

if TYPE_CHECKING:
    from workbench.fabric import FittedFabric

_UP = frozenset({"ready", "running"})


class Cluster:
    """Ranks that run cells together.

    Used as a context manager, or by `start` and `stop`.

    Parameters
    ----------
    n
        Number of ranks on this machine.
    start_timeout_s
        After this long without all ranks ready, the start fails.

    Attributes
    ----------
    name
        A word for people.
    state
        ``"stopped"``, ``"starting"``, ``"ready"``, ``"running"``,
        ``"stopping"`` or ``"failed"``.
    message
        One line that says more about the state, or an empty string.
    timings
        What the ranks' iterations took; stands after `stop`.
    fabric
        What the fabric gives, once `calibrate` has measured it, or None.
    """

    def __init__(self, n: int = 2, *, start_timeout_s: float = 60.0) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise UsageError(f"a cluster of n={n!r} ranks was asked for: n is a number from 1")
        self.n = n
        self.name = f"local-{secrets.token_hex(2)}"
        self.state = "stopped"
        self.message = ""
        self.timings: Timings = Timings()
        self.fabric: FittedFabric | None = None
        self._start_timeout_s = start_timeout_s
        self._numbers = itertools.count(1)
        self._runs: dict[int, CellRun] = {}
        self._engines: Engines | None = None
        self._inbox: Inbox | None = None
        self._lock = threading.RLock()

    # up and down

    def start(self) -> Cluster:
        """Start the ranks, and return when a collective over all of them was answered.

        Raises
        ------
        StartFailed
            A rank did not come up; what had started was taken down again.
        HorovodMissing
            There is no Horovod that fits the installed PyTorch.
        """
        with self._lock:
            if self.state != "stopped":
                raise ClusterError(f"cluster {self.name} is {self.state}: stop it first")
            if self.timings.closed:
                self.timings = Timings()
            self._engines = None
            self._set("starting", f"starting {self.n} ranks")
        atexit.register(self.stop)
        try:
            self.timings.listen()
            self._inbox = Inbox(self._receive, name="control")
            self._engines = Engines(self.n, self._start_timeout_s)
            self._engines.start(self._inbox, self.timings)
        except BaseException as error:
            stopped = self.state != "starting"
            self._take_down()
            if stopped:
                self._set("stopped", "stopped while it started")
                raise ClusterStopped(f"cluster {self.name} was stopped while it started") from None
            self._set("stopped", f"did not start: {error}")
            raise
        self._set("ready")
        return self

    def stop(self) -> None:
        """Stop every process of the cluster; timings stand. May be called again."""
        with self._lock:
            if self.state in {"stopped", "stopping"}:
                return
            self._set("stopping")
        self._take_down()
        self._set("stopped")

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
        for run in tuple(self._runs.values()):
            states |= {rank: states.get(rank, "running") for rank in run.ranks}
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
        run = self._submit(source, ranks, timeout, sink or NotebookSink())
        return self._follow(run)

    def run_in_background(
        self,
        source: str,
        ranks: str | Iterable[int] | None = None,
        timeout: float | None = None,
        *,
        sink: Sink | None = None,
    ) -> Future[RunResult]:
        """Do as `run` does, but return at once; the future gives the result or the error."""
        run = self._submit(source, ranks, timeout, sink or NotebookSink())
        return in_background(lambda: self._follow(run))

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

    def _submit(
        self, source: str, ranks: str | Iterable[int] | None, timeout: float | None, sink: Sink
    ) -> CellRun:
        engines = self._require()
        assert self._inbox is not None
        chosen = parse_ranks(ranks, self.n)
        number = next(self._numbers)
        run = CellRun(
            number, chosen, sink, send=self._inbox.send, lost=self._lost, timeout_s=timeout
        )
        self._runs[number] = run
        self.timings.begin_cell(number)
        self._set("running")
        for rank in chosen:
            engines.run(rank, number, source)
        return run

    def _follow(self, run: CellRun) -> RunResult:
        try:
            return run.wait()
        finally:
            self.timings.end_cell(run.number, run.iterations)
            self._runs.pop(run.number, None)
            self._settle(run)

    def _settle(self, run: CellRun) -> None:
        """Make the cluster ready again after a cell."""
        if self.state != "running" or self._engines is None:
            return
        if self._lost():
            self._set("failed", self._lost_text())
            return
        if run.broken:
            self._set("running", "forming the ring anew")
            self._engines.reform()
        if not self._runs:
            self._set("ready")

    def _require(self) -> Engines:
        """Return the engines, or raise `ClusterStopped` where they cannot run a cell."""
        if self.state in _UP and self._engines is not None and not self._lost():
            return self._engines
        if self.state in {*_UP, "failed"}:
            raise ClusterStopped(
                f"cluster {self.name} cannot run a cell: {self._lost_text()}; "
                "stop it and start another: %cluster stop, %cluster start"
            )
        raise ClusterStopped(
            f"cluster {self.name} is {self.state}: start one with %cluster start -n {self.n}"
        )

    def _view(self, ranks: str | Iterable[int] | None) -> Any:
        return self._require().view(parse_ranks(ranks, self.n))

    def _take_down(self) -> None:
        for run in tuple(self._runs.values()):
            run.guard.interrupt(run.ranks)
        if self._engines is not None:
            self._engines.stop()
        if self._inbox is not None:
            self._inbox.close()
        self.timings.close()
        atexit.unregister(self.stop)

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
        if message.kind == "where":
            # whichever cell it is in: the answer is about the rank
            for run in list(self._runs.values()):
                run.deliver(rank, message)
            return
        found = self._runs.get(int(message.content.get("cell", -1)))
        if found is not None:
            found.deliver(rank, message)

    def _set(self, state: str, message: str = "") -> None:
        self.state, self.message = state, message
        registry.changed()
