"""A cluster: ipyparallel engines, here or on VMs, that are the ranks of a Horovod ring."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from workbench.cluster import keeping
from workbench.cluster.background import in_background, interrupts_later
from workbench.cluster.cells import BackgroundRun
from workbench.cluster.condition import Condition
from workbench.cluster.hosts import HostsLike
from workbench.cluster.lifecycle import Lifecycle
from workbench.cluster.options import Options
from workbench.cluster.ranks import RankInfo, parse_ranks, phrase
from workbench.cluster.run import RunResult
from workbench.cluster.sink import NotebookSink, Sink
from workbench.errors import StartFailed, UsageError

if TYPE_CHECKING:
    from workbench.cluster.agent import Agent
    from workbench.cluster.engines import Engines
    from workbench.cluster.preflight import Preflight
    from workbench.fabric import FittedFabric
    from workbench.resources import Snapshot, Unknown
    from workbench.resources.usage import Sample
    from workbench.timings import Timings

_DOWN = frozenset({"stopping", "stopped"})


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
    name
        A word for people.
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
        self.name = name
        self.fabric: FittedFabric | None = None
        self._condition = Condition(name)
        self._lifecycle = Lifecycle(name, options, self._condition)
        self._cells = self._lifecycle.cells
        self._exchange = self._lifecycle.exchange

    @property
    def n(self) -> int:
        """How many ranks there are, or will be."""
        return self._lifecycle.n

    @property
    def state(self) -> str:
        """What it does: ``"stopped"``, ``"starting"``, ``"ready"``, ``"running"``, ``"stopping"``.

        Or ``"failed"``: it cannot run a cell until its ranks are changed.
        """
        return self._condition.state

    @property
    def message(self) -> str:
        """One line that says more about the state, or an empty string."""
        return self._condition.message

    @property
    def preflight(self) -> Preflight | None:
        """What was found on the VMs before their ranks were started; None on this machine."""
        engines = self._engines
        return None if engines is None else engines.preflight

    @property
    def timings(self) -> Timings:
        """What the ranks' iterations took; stands after `stop`, begins anew with `start`."""
        return self._lifecycle.timings

    @property
    def ranks(self) -> list[RankInfo]:
        """The ranks, in order, as they are now; none before the start."""
        engines = self._engines
        if engines is None:
            return []
        states = dict.fromkeys(self._condition.lost(), "dead")
        states |= dict.fromkeys(engines.given_up, "running")
        states |= {rank: states.get(rank, "running") for rank in self._cells.busy}
        return [replace(r, state=states.get(r.rank, r.state)) for r in engines.ranks]

    def memory_bytes(self) -> dict[int, int]:
        """Return the resident memory of each rank that runs, by rank."""
        engines = self._engines
        return {} if engines is None else engines.memory_bytes()

    def snapshot(self) -> dict[str, Snapshot]:
        """Return what each VM has now, by its name; one that does not answer is left out."""
        from workbench.cluster import looks

        return looks.snapshots(self.agents)

    def samples(self) -> dict[str, Sample | Unknown]:
        """Return what is used of each VM at this moment, by its name.

        All VMs are asked at once, beside what their ranks do, and given five
        seconds. `Unknown` says why a VM has no sample: it is lost, or slow.
        Each VM has one sampler, which ends ten seconds after it was asked last.
        Rates are over the time since the sample before, so the first call has
        none; calls within half a second get the same sample.
        """
        from workbench.cluster import looks

        return looks.samples(self.agents)

    @property
    def agents(self) -> tuple[Agent, ...]:
        """What answers for each VM, in the order of the hosts, for the panel; none when down."""
        engines = self._engines
        return () if engines is None or self.state in _DOWN else engines.agents

    @property
    def _engines(self) -> Engines | None:
        running = self._condition.running
        return None if running is None else running.engines

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
        self._lifecycle.start()
        return self

    @classmethod
    def attach(cls, name: str | None = None) -> Cluster:
        """Meet a cluster again that an earlier kernel has started with `keep`.

        Its ranks' variables stand, and so do its timings up to the last cell
        whose end that kernel saw. A cell that still runs is waited for; an
        interrupt meanwhile ends it. Where a VM went meanwhile, the cluster is
        ``"failed"`` until `restart` or `resize`.

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
        try:
            cluster._set_up(Options.from_plain(state["options"]), state["name"])
            cluster._lifecycle.find(folder, state)
        except (AttributeError, KeyError, TypeError) as error:
            raise StartFailed(
                f"cannot attach to {state['name']}: {folder / 'cluster.json'} is damaged, or of "
                f"another version ({type(error).__name__}: {error})",
                cure="end its processes, and start another cluster",
            ) from error
        return cluster

    def stop(self) -> None:
        """Stop every process of the cluster; timings stand. May be called again."""
        self._lifecycle.stop()

    def restart(self, ranks: str | Iterable[int] | None = None) -> Cluster:
        """Put new processes in the place of some ranks; the others keep their variables.

        A VM that was lost is taken in again, where it answers. Where no rank is lost, but
        the ring could not be formed, it is formed again, and all keep their variables.
        Where an earlier change was interrupted, it starts the ranks that are missing.
        Broadcast the parameters and the optimizer's state to bring a new rank up to date.

        Parameters
        ----------
        ranks
            Such as ``"0,2-3"``; by default those that are lost.

        Raises
        ------
        UsageError
            No rank is lost and the ring is not broken, and none was named. Or some were
            named after a change that was interrupted.
        StartFailed
            A VM does not answer, or a new process did not come up.
        """
        wanted = self._condition.wanted
        if wanted is not None and ranks is None:
            return self.resize(wanted)
        if self._condition.renumbered:
            raise UsageError(
                f"--ranks {ranks}: ranks are missing, because an earlier change ended early, and "
                "the others have changed their numbers. Start what is missing with %cluster "
                "restart first."
            )
        chosen = tuple(self._condition.lost()) if ranks is None else parse_ranks(ranks, self.n)
        if not chosen and self._condition.lacks_only_ring:
            self._lifecycle.change("rebuilding the ring", lambda engines: engines.reform())
            return self
        if not chosen:
            raise UsageError(
                "Nothing to restart: no rank is lost. Name the ranks to replace, such as "
                "%cluster restart --ranks 1."
            )
        self._lifecycle.change(
            f"replacing {phrase(chosen)}",
            lambda engines: engines.restart(chosen),
            self.n,
        )
        return self

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
            raise UsageError(f"n={n!r}: must be a positive integer. Write the number of ranks.")
        self._lifecycle.change(
            f"going on with {n} ranks" if n else "going on with the ranks that are left",
            lambda engines: engines.resize(n),
            n,
        )
        return self

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # cells

    def run(
        self,
        source: str,
        ranks: str | Iterable[int] | None = None,
        timeout: str | float | None = None,
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
            When the ranks are interrupted: seconds, or such as ``"5m"``.
        sink
            Where the output goes; by default, where printing goes.

        Raises
        ------
        RanksFailed
            It raised on some ranks; the others are free again.
        CellTimeout, CellInterrupted
            It was stopped. The ranks are free again, or the message names those that
            still run it: the cluster is ready again when they end.
        ClusterStopped
            The cluster was not started, or is gone.
        """
        follow, _ = self._queue(source, ranks, timeout, sink)
        return follow()

    def run_in_background(
        self,
        source: str,
        ranks: str | Iterable[int] | None = None,
        timeout: str | float | None = None,
        *,
        sink: Sink | None = None,
    ) -> BackgroundRun:
        """Do as `run` does, but return at once; the future gives the result or the error.

        Cells run one after the other, in the order of the calls. The future's
        ``interrupt()`` stops this one.
        """
        with interrupts_later():  # a cell in the queue that nobody runs would block all others
            follow, interrupt = self._queue(source, ranks, timeout, sink, ahead=True)
            future = BackgroundRun(interrupt)
            in_background(follow, future)
            return future

    def interrupt(self) -> tuple[int, ...]:
        """Stop the cell that runs, as the stop button does; return the ranks on which it runs.

        Returns at once, and may be called from any thread. Whoever waits for the
        cell gets `CellInterrupted`; variables are kept, and the cells that are
        queued behind it run next. A second call while it stops hurries its ranks.

        Raises
        ------
        UsageError
            No cell runs.
        """
        return self._cells.interrupt()

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a name to `value` in every rank."""
        self.push({name: value})

    def __getitem__(self, name: str) -> list[Any]:
        """Return a name's value from every rank, by rank."""
        return [row[name] for row in self.pull([name]).values()]

    def push(
        self,
        names: dict[str, Any],
        ranks: str | Iterable[int] | None = None,
        *,
        timeout: float = 60.0,
    ) -> None:
        """Set names in the ranks' namespace, on all of them or, where it fails, on none.

        What the notebook itself defines (functions, classes) is sent along;
        functions use the ranks' namespace. Waits for the cells queued before.

        Parameters
        ----------
        names
            Values by name.
        ranks
            Such as ``"0,2-3"``; all by default.
        timeout
            Seconds without progress after which it fails.

        Raises
        ------
        UsageError
            A value cannot be pickled, or not be read on a rank.
        RanksFailed
            A rank was lost meanwhile.
        CellTimeout
            Nothing moved for `timeout` seconds.
        ClusterStopped
            The cluster was not started, or is gone.
        """
        chosen = parse_ranks(ranks, self.n)
        if names:
            self._exchange.push(dict(names), chosen, timeout)

    def pull(
        self,
        names: str | Iterable[str],
        ranks: str | Iterable[int] | None = None,
        *,
        timeout: float = 60.0,
    ) -> dict[int, dict[str, Any]]:
        """Return the values of `names`, by rank.

        A class that a cell has defined arrives with its value, unless this
        notebook has a class of that name.

        Parameters
        ----------
        names, ranks, timeout
            As for `push`.

        Raises
        ------
        UsageError
            A rank does not have one of them, or its value cannot be sent or read.
        RanksFailed, CellTimeout, ClusterStopped
            As for `push`.
        """
        chosen = parse_ranks(ranks, self.n)
        wanted = [names] if isinstance(names, str) else list(names)
        if not wanted:
            return {rank: {} for rank in chosen}
        return self._exchange.pull(wanted, chosen, timeout)

    def calibrate(self, timeout: float = 300.0) -> FittedFabric:
        """Measure what the fabric gives this cluster's allreduces, and keep it in `fabric`.

        Parameters
        ----------
        timeout
            Seconds after which the ranks are interrupted.
        """
        from workbench.cluster.calibration import measure

        self.fabric = measure(self, timeout)
        return self.fabric

    def _queue(
        self,
        source: str,
        ranks: str | Iterable[int] | None,
        timeout: str | float | None,
        sink: Sink | None,
        *,
        ahead: bool = False,
    ) -> tuple[Callable[[], RunResult], Callable[[], None]]:
        self._condition.whole(ring=False)
        where = NotebookSink() if sink is None else sink
        return self._cells.queue(source, parse_ranks(ranks, self.n), timeout, where, ahead=ahead)
