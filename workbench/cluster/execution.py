"""Run cells on the ranks of a cluster, push variables to them and pull variables from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, ClassVar

from workbench.cluster.cell_queue import BackgroundRun, CellQueue
from workbench.cluster.cell_run import CellRun
from workbench.cluster.durations import parse_duration
from workbench.cluster.outcomes import RunResult
from workbench.cluster.processes import ClusterProcesses
from workbench.cluster.recovery import reinstate_ranks
from workbench.cluster.state import ClusterState
from workbench.cluster.threads import (
    LatestTask,
    defer_interrupts,
    in_background,
    uninterrupted,
)
from workbench.cluster.transfer import Transfer, check_pushed, load_pulled
from workbench.errors import UsageError
from workbench.output.sink import Sink
from workbench.ranks import Ranks
from workbench.wire import values

if TYPE_CHECKING:
    from workbench.wire.transport import Transport


class Execution:
    """Runs cells, pushes and pulls on a cluster's ranks, in the order of the calls.

    A base class of `Cluster`.
    """

    after_cell: ClassVar[Callable[[Any], None]] = staticmethod(lambda _: None)
    """Called in a thread after a recorded cell, with the cluster, or None if it was deleted.

    `workbench.Cluster` and ``%load_ext workbench`` set it, because this package does not import the
    advisor. A script with only ``from workbench.cluster import Cluster`` stores no verdict."""

    _state: ClusterState
    _cells: CellQueue
    _conclusions: LatestTask

    @property
    def n(self) -> int:
        """The number of ranks, now or after the start."""
        return self._state.n

    @property
    def transports(self) -> dict[int, tuple[Transport, ...]]:
        """The transports of each rank's collectives, as its libraries last reported them."""
        return dict(self._state.processes.engines.backend.transports)

    def run(
        self,
        source: str,
        ranks: Ranks = None,
        timeout: str | float | None = None,
        *,
        sink: Sink | None = None,
    ) -> RunResult:
        """Run `source` on the ranks, show its output, and return when all have ended it.

        Parameters
        ----------
        source
            A notebook cell's text, IPython's magics included.
        ranks
            The ranks, such as ``"0,2-3"``; all by default.
        timeout
            The ranks are interrupted after this time: seconds, or a text such as ``"5m"``.
        sink
            Receives the output; by default it goes to standard output.

        Raises
        ------
        RanksFailed
            The cell raised on some ranks; the others were freed.
        CellTimeout, CellInterrupted
            The cell was stopped. The ranks are free again, or the message names the ranks that
            still run it; the cluster is ready again when they end.
        ClusterStopped
            The cluster was not started, or has ended.

        Examples
        --------
        >>> result = cluster.run("rank * 2")  # doctest: +SKIP
        >>> result.values  # doctest: +SKIP
        {0: 0, 1: 2}
        """
        run = self._cells.latest = self._cells.submit(source, ranks, timeout, sink)
        try:
            return self._cells.follow(run)
        finally:
            self._conclude(run)

    def run_in_background(
        self,
        source: str,
        ranks: Ranks = None,
        timeout: str | float | None = None,
        *,
        sink: Sink | None = None,
    ) -> BackgroundRun:
        """Run `source` as `run` does, but return a future of the result immediately.

        Cells run one after the other, in the order of the calls. The future's
        ``interrupt()`` stops only this cell.
        """
        with defer_interrupts():  # an unused ticket would block all later cells
            run = self._cells.latest = self._cells.submit(source, ranks, timeout, sink)
            ticket = self._state.turns.ticket()
            future = BackgroundRun(partial(self._cells.interrupt, run))
            future.add_done_callback(lambda _: self._conclude(run))
            in_background(lambda: self._cells.follow(run, ticket), future)
            return future

    def _conclude(self, run: CellRun) -> None:
        """Schedule the verdict of a recorded cell in the background."""
        if any(run.records.values()):
            self._conclusions.request()

    def interrupt(self) -> tuple[int, ...]:
        """Stop the running cell, as the stop button does; return its ranks immediately.

        May be called from any thread. The call that waits for the cell raises
        `CellInterrupted`; variables are kept, and queued cells run next. A second call frees the
        waiting ranks earlier.

        Raises
        ------
        UsageError
            No cell runs.
        """
        return self._cells.interrupt_current()

    @property
    def recording(self) -> bool:
        """Whether the iterations and collectives of the next cell are recorded.

        It can be set between cells. A cell that is not recorded runs without any hook or reader
        of this package. Its ranks report a long collective up to ten seconds later, because the
        begin of the wait is unknown.
        """
        return self._state.timings.recording

    @recording.setter
    def recording(self, on: bool) -> None:
        if not isinstance(on, bool):
            raise UsageError(f"recording={on!r}: not a bool. Assign True or False.")
        self._cells.record(on=on)

    def sample_lines(self, seconds: str | float = 3.0) -> bool:
        """Sample the lines of Python that run while an iteration is in no phase, for `explain`.

        While a cell runs, sample it and return after `seconds`. Otherwise sample all of the next
        cell. Return whether the running cell was sampled.

        Raises
        ------
        UsageError
            The cell is not recorded, or `seconds` is neither a number nor a text such as ``"5s"``.
        ClusterStopped
            The cluster was not started, or has ended.
        """
        return self._cells.sample_lines(parse_duration(seconds, "seconds"))

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a variable to `value` on every rank."""
        _describe("push", [name])
        self.push({name: value})

    def __getitem__(self, name: str) -> list[Any]:
        """Return a variable's value from every rank, in the order of the ranks."""
        return [values_by_name[name] for values_by_name in self.pull([name]).values()]

    def push(
        self, names: Mapping[str, Any], ranks: Ranks = None, *, timeout: str | float = 60.0
    ) -> None:
        """Set variables on the ranks: on all of them, or on none if the push fails.

        Functions and classes of the notebook are sent with the values. Such functions use the
        ranks' variables. The push waits for the cells that were queued before.

        Parameters
        ----------
        names
            Values by name.
        ranks
            The ranks, such as ``"0,2-3"``; all by default.
        timeout
            The push fails after this time without progress: seconds, or a text such as ``"5m"``.

        Raises
        ------
        UsageError
            A value cannot be pickled, or cannot be loaded on a rank.
        RanksFailed
            A rank was lost during the push.
        CellTimeout
            There was no progress for `timeout` seconds.
        ClusterStopped
            The cluster was not started, or has ended.

        Examples
        --------
        >>> cluster.push({"learning_rate": 0.1})  # doctest: +SKIP
        >>> cluster.pull("learning_rate")  # doctest: +SKIP
        {0: {'learning_rate': 0.1}, 1: {'learning_rate': 0.1}}
        """
        chosen = self._state.parse_ranks(ranks)
        timeout_s = parse_duration(timeout, "timeout")
        if not isinstance(names, Mapping):
            raise UsageError(
                f"push: values are of type {type(names).__name__}, and have no names. Give a dict "
                "of values by name, such as {'x': x}."
            )
        if not names:
            return
        description = _describe("push", names)
        names = dict(names)
        check_pushed(names, self._state.options.backend)
        try:
            payload = values.dump(names)
        except Exception:  # noqa: BLE001 - a user's class may raise anything
            name, type_name, reason = values.find_unpicklable(names)
            raise UsageError(
                f"{description}: {name!r} is of type {type_name}, which cannot be pickled "
                f"({reason}). Push a picklable piece of it, or create it in a cell on the ranks."
            ) from None
        with self._turn(description) as processes:
            self._transfer(processes, chosen, description, timeout_s).push(payload, list(names))

    def pull(
        self, names: str | Iterable[str], ranks: Ranks = None, *, timeout: str | float = 60.0
    ) -> dict[int, dict[str, Any]]:
        """Return the values of variables, by rank and name.

        A class that a cell has defined arrives with its value, unless this
        notebook has a class of that name. A function keeps the variables of its rank,
        and uses their values at the time of the call.

        Parameters
        ----------
        names, ranks, timeout
            As for `push`.

        Raises
        ------
        UsageError
            A rank has no such variable, or its value cannot be pickled or loaded.
        RanksFailed, CellTimeout, ClusterStopped
            As for `push`.
        """
        chosen = self._state.parse_ranks(ranks)
        timeout_s = parse_duration(timeout, "timeout")
        try:
            wanted = [names] if isinstance(names, str) else list(names)
        except TypeError:
            raise UsageError(
                f"pull {names!r}: not a name. Give the name of a variable, or a list of names."
            ) from None
        if not wanted:
            return {rank: {} for rank in chosen}
        description = _describe("pull", wanted)
        with self._turn(description) as processes:
            pulled = self._transfer(processes, chosen, description, timeout_s).pull(wanted)
        return {
            rank: load_pulled(description, rank, wanted, payload, types)
            for rank, (payload, types) in pulled.items()
        }

    def _transfer(
        self,
        processes: ClusterProcesses,
        ranks: tuple[int, ...],
        description: str,
        timeout_s: float,
    ) -> Transfer:
        """Return a transfer; a rank that answers after it was given up is reinstated."""
        state = self._state
        backend = processes.engines.backend

        def reinstate(rank: int) -> None:
            in_background(
                lambda: reinstate_ranks(state, processes, [rank], lambda: backend.ring_broken)
            )

        return Transfer(processes, ranks, state.lost, description, timeout_s, reinstate)

    @contextmanager
    def _turn(self, activity: str) -> Iterator[ClusterProcesses]:
        """Wait for the cells that were queued before; later cells wait for the body."""
        state = self._state
        state.usable()
        with state.turns.held(activity=activity):
            processes = state.usable()
            before = (state.state, state.message)
            state.begin(activity)
            try:
                yield processes
            finally:  # without a ring, the previous state is `failed`
                uninterrupted(lambda: state.settle(to=before))


def _describe(verb: str, names: Iterable[str]) -> str:
    """Return a description of a transfer, such as ``"push x"``.

    Raise `UsageError` if a name is not a valid variable name.

    Examples
    --------
    >>> _describe("push", ["x", "y"])
    'push x y'
    """
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
            raise UsageError(
                f"{verb} {name!r}: not a valid Python name. Give the name of a variable."
            )
    return f"{verb} {' '.join(names)}"
