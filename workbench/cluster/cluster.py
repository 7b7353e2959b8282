"""A cluster: ipyparallel engines on this machine that are the ranks of a Horovod ring."""

from __future__ import annotations

import atexit
import itertools
import secrets
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from workbench.cluster import registry
from workbench.cluster.processes import Processes, exit_text
from workbench.cluster.ranks import RankInfo, parse_ranks, ranks_text
from workbench.cluster.run import CellRun, RunResult
from workbench.cluster.sink import NotebookSink, Sink
from workbench.errors import (
    ClusterError,
    ClusterStopped,
    HorovodMissing,
    StartFailed,
    UsageError,
)
from workbench.timings import Timings
from workbench.wire import Inbox, Message

if TYPE_CHECKING:
    import ipyparallel

    from workbench.fabric import FittedFabric

_INTERFACE = "lo"
"""Ranks of one machine meet on its loopback interface."""


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
        self._ranks: list[RankInfo] = []
        self._numbers = itertools.count(1)
        self._runs: dict[int, CellRun] = {}
        self._processes: Processes | None = None
        self._client: ipyparallel.Client | None = None
        self._engines: list[int] = []
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
            self._set("starting", f"starting {self.n} ranks")
        atexit.register(self.stop)
        try:
            self._bring_up()
        except BaseException as error:
            self._take_down()
            self._set("stopped", f"did not start: {error}".splitlines()[0])
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
        """The ranks, in order, as they are now."""
        lost = self._lost()
        running = {rank for run in list(self._runs.values()) for rank in run.ranks}
        return [
            replace(
                info,
                state="dead"
                if info.rank in lost
                else "running"
                if info.rank in running
                else info.state,
            )
            for info in self._ranks
        ]

    def memory_bytes(self) -> dict[int, int]:
        """Return the resident memory of each rank that runs, by rank."""
        sizes = self._processes.memory_bytes() if self._processes else {}
        return {info.rank: sizes[info.pid] for info in self._ranks if info.pid in sizes}

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
        future: Future[RunResult] = Future()

        def follow() -> None:
            try:
                future.set_result(self._follow(run))
            except BaseException as error:  # noqa: BLE001 - whoever asks the future gets it
                future.set_exception(error)

        # the copied context pins the output to the cell that asked for it
        threading.Thread(target=copy_context().run, args=(follow,), daemon=True).start()
        return future

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a name to `value` in every rank."""
        self.push({name: value})

    def __getitem__(self, name: str) -> list[Any]:
        """Return a name's value from every rank, by rank."""
        return [self.pull([name])[rank][name] for rank in range(self.n)]

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

    # bringing up

    def _bring_up(self) -> None:
        processes = self._processes = Processes(self.n)
        # imported while the processes start: it takes as long as they do
        import ipyparallel

        from workbench.cluster import ring

        processes.wait_for_controller(self._start_timeout_s)
        self._client = ipyparallel.Client(str(processes.client_file))
        self._wait_for_engines(processes)
        self._engines = sorted(self._client.ids)
        self._inbox = Inbox(self._receive, name="control")
        greetings = self._call("hello", [(processes.threads,)] * self.n)
        self._ranks = [_rank_info(rank, found) for rank, found in enumerate(greetings)]
        self._call(
            "join",
            [
                (
                    self._inbox.address_for(rank).to_content(),
                    self.timings.address_for(rank).to_content(),
                    self.n,
                )
                for rank in range(self.n)
            ],
        )
        self._meet(ring)

    def _wait_for_engines(self, processes: Processes) -> None:
        assert self._client is not None
        deadline = time.monotonic() + self._start_timeout_s
        while len(self._client.ids) < self.n:
            processes.check()
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"{self.n} ranks were asked for, {len(self._client.ids)} were ready after "
                    f"{self._start_timeout_s:g} s; is the machine overloaded?"
                )
            time.sleep(0.02)

    def _meet(self, ring: Any) -> None:
        """Form the ring: every rank is known to be ready by now."""
        plan = ring.assign([info.vm for info in self._ranks])
        with ring.Rendezvous(plan) as rendezvous:
            environments = [(rendezvous.environment(r, _INTERFACE),) for r in range(self.n)]
            sums = self._call("meet", environments)
        if any(total != self.n for total in sums):
            raise StartFailed(f"the ring's first sum over {self.n} ranks was {sums}")

    def _reform(self) -> None:
        """Leave the broken ring and form a new one; namespaces stand."""
        from workbench.cluster import ring

        if self._lost():
            self._set("failed", self._lost_text())
            return
        self._call("part", [()] * self.n)
        self._meet(ring)

    def _call(self, name: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Call a function of `workbench.rank.session` on every rank at once."""
        assert self._client is not None
        pending = [
            self._client[engine].apply_async(_Remote(name), *given)
            for engine, given in zip(self._engines, arguments, strict=True)
        ]
        try:
            return [answer.get(timeout=self._start_timeout_s) for answer in pending]
        except Exception as error:
            raise _start_error(error, name) from error

    def _take_down(self) -> None:
        for run in list(self._runs.values()):
            run.guard.interrupt(run.ranks)
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._processes is not None:
            self._processes.stop()
        if self._inbox is not None:
            self._inbox.close()
        self.timings.close()
        atexit.unregister(self.stop)

    # running

    def _submit(
        self, source: str, ranks: str | Iterable[int] | None, timeout: float | None, sink: Sink
    ) -> CellRun:
        self._require()
        assert self._inbox is not None
        assert self._client is not None
        chosen = parse_ranks(ranks, self.n)
        number = next(self._numbers)
        run = CellRun(
            number,
            chosen,
            sink,
            send=self._inbox.send,
            lost=self._lost,
            timeout_s=timeout,
        )
        self._runs[number] = run
        self.timings.begin_cell(number)
        self._set("running")
        for rank in chosen:
            self._client[self._engines[rank]].apply_async(_Remote("run_cell"), number, source)
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
        if self.state != "running":
            return
        if self._lost():
            self._set("failed", self._lost_text())
            return
        if run.broken:
            self._set("running", "forming the ring anew")
            self._reform()
        if not self._runs and self.state == "running":
            self._set("ready")

    def _require(self) -> None:
        if self.state in {"ready", "running"} and not self._lost():
            return
        if self.state in {"ready", "running", "failed"}:
            raise ClusterStopped(
                f"cluster {self.name} cannot run a cell: {self._lost_text()}; "
                "stop it and start another: %cluster stop, %cluster start"
            )
        raise ClusterStopped(
            f"cluster {self.name} is {self.state}: start one with %cluster start -n {self.n}"
        )

    def _view(self, ranks: str | Iterable[int] | None) -> Any:
        self._require()
        assert self._client is not None
        return self._client[[self._engines[rank] for rank in parse_ranks(ranks, self.n)]]

    def _lost(self) -> dict[int, str]:
        """Return why ranks can no longer answer, by rank."""
        if self.state in {"stopping", "stopped"}:
            return {info.rank: "the cluster was stopped" for info in self._ranks}
        exits = self._processes.exits() if self._processes else {}
        return {
            info.rank: f"its process {info.pid} on {info.vm} {exit_text(exits[info.pid])}"
            for info in self._ranks
            if info.pid in exits
        }

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


class _Remote:
    """Calls a function of the rank's session there, without importing it here."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.__name__ = name

    def __call__(self, *args: Any) -> Any:
        """Called in the rank."""
        import workbench.rank.session as session

        return getattr(session, self.name)(*args)


def _rank_info(rank: int, found: dict[str, Any]) -> RankInfo:
    gpu = str(rank % found["gpus"]) if found["gpus"] else "CPU"
    return RankInfo(rank, found["host"], found["pid"], gpu, _INTERFACE, "ready", found["threads"])


def _start_error(error: Exception, step: str) -> Exception:
    """Return the error to raise for a rank that failed in a step of the start."""
    text = str(error)
    if "No module named 'horovod'" in text or ("horovod" in text and "ImportError" in text):
        return HorovodMissing(
            f"the ranks cannot load Horovod ({text.splitlines()[-1]}): "
            "build it for this PyTorch with `workbench build-horovod`"
        )
    return StartFailed(f"the ranks failed at {step!r}: {text}")
