"""What a cluster measures on its VMs and ranks: their use, the fabric, and what recording costs."""

from __future__ import annotations

import os
import time
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import logs
from workbench.cluster.agents import agent_logs, memory_bytes, samples, snapshots
from workbench.cluster.durations import parse_duration
from workbench.cluster.execution import Execution
from workbench.cluster.options import Options
from workbench.cluster.profiling import MAX_S, Profiling
from workbench.errors import UsageError
from workbench.output.sink import TextSink
from workbench.ranks import Process, RankInfo, Ranks, checked_int, phrase
from workbench.resources.unknown import Unknown
from workbench.timings.runs import runs_folder
from workbench.wire.rank_messages import MEASUREMENT

if TYPE_CHECKING:
    from concurrent.futures import Future

    from workbench.cluster.agent import Agent
    from workbench.cluster.profiling import Profile
    from workbench.fabric import BandwidthMatrix, FittedFabric
    from workbench.fabric.calibration import RunCell
    from workbench.resources import Snapshot
    from workbench.resources.usage import Sample
    from workbench.timings.overhead import Overhead
    from workbench.wire.cell_cost import CellCost


class Measurements(Execution):
    """What a cluster measures on its VMs, and between the cells of the user on its ranks.

    The base class of `Cluster`.
    """

    fabric: FittedFabric | None
    options: Options

    @property
    @abstractmethod
    def ranks(self) -> list[RankInfo]:
        """The ranks in order."""

    def memory_bytes(self) -> dict[int, int]:
        """Return the resident memory in bytes of each rank that runs, by rank."""
        sizes = memory_bytes(self.agents)
        members = self._state.processes.engines.members
        return {one.info.rank: sizes[one.process] for one in members if one.process in sizes}

    def logs(self) -> dict[str, str | Unknown]:
        """Return what this kernel, the agents and the ranks have logged, by process.

        Each record is a line with its time, level and module, and a traceback where there is one.
        The level is that of ``GRADIENT_WORKBENCH_LOG`` when the cluster was started.
        """
        texts: dict[str, str | Unknown] = {"kernel": logs.recent()}
        members = self._state.processes.engines.members if self.agents else ()
        ranks = {member.process: member.info.rank for member in members}
        for vm, (agent, answer) in enumerate(
            zip(self.agents, agent_logs(self.agents), strict=True)
        ):
            if isinstance(answer, Unknown):
                texts[f"agent of {agent.name}"] = answer
                continue
            for pid, text in answer.items():
                rank = ranks.get(Process(vm, int(pid))) if pid else None
                name = f"agent of {agent.name}" if not pid else f"process {pid} on {agent.name}"
                texts[name if rank is None else f"rank {rank}"] = text
        return texts

    def snapshot(self) -> dict[str, Snapshot]:
        """Return a snapshot of each VM that answers, by its name."""
        return snapshots(self.agents)

    def bundle(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write an evidence bundle of the current state, also while a cell runs.

        A zip file with the stacks of all ranks, their last 100 iterations, the collectives that
        each has started, and of each VM the hardware, its use, findings, and the kernel's lines
        about memory and GPUs; ``manifest.json`` says what is missing and why. A cell that fails or
        hangs writes one by itself: `CellError.evidence`.

        Parameters
        ----------
        path
            The file; by default ``evidence-now.zip`` in the run's folder.

        Raises
        ------
        UsageError
            The cluster was never started, or the file cannot be written.
        """
        return self._cells.evidence.on_demand(path, self._cells.current)

    def attribute_names(self, path: str) -> tuple[str, ...]:
        """Return the names of the attributes of an object of rank 0, without running its code.

        There are none while a cell runs, if the rank does not answer within half a second, or if
        the object can only be found by running code, such as that of a property.

        Parameters
        ----------
        path
            The name of a variable, and names of attributes: ``"model"``, ``"model.layer1"``.
        """
        return self._cells.attributes.names(tuple(path.split(".")))

    def samples(self) -> dict[str, Sample | Unknown]:
        """Return the current use of each VM by its name, or `Unknown` with the reason.

        All VMs are asked concurrently, and have five seconds; their ranks go on. Each VM has one
        sampler, which ends ten seconds after the last call. Rates are averages since the
        previous sample, so the first call has none; calls within half a second return the same
        sample.
        """
        return samples(self.agents)

    @property
    def agents(self) -> tuple[Agent, ...]:
        """The agent of each VM, in the order of the hosts; empty while the cluster is stopped."""
        processes = self._state.processes
        down = self._state.state in {"stopping", "stopped"} or self._state.forked
        return () if down or not processes.engines.ranks else tuple(processes.agents.all)

    def calibrate(
        self,
        timeout: str | float = "auto",
        *,
        seconds: str | float = 30.0,
        stored: bool | FittedFabric = False,
        show_progress: bool = True,
    ) -> FittedFabric:
        """Measure the time of this cluster's allreduces by size, and keep it in `fabric`.

        It is also stored, for later clusters of the same VMs, ranks, backend and transport.

        Parameters
        ----------
        timeout
            The ranks are interrupted after this time: seconds, or such as ``"5m"``; with
            ``"auto"`` after several times what it should take.
        seconds
            About the longest time of the measurement; less is less precise.
        stored
            True for the stored calibration instead of a measurement, or a calibration of an
            earlier cluster, which is refused if it was another one.
        show_progress
            False to have the progress in the cluster's `message` instead of printing it.
        """
        from workbench.fabric.calibration import limit_s  # loaded when it is needed

        about_s = parse_duration(seconds, "seconds")
        run = self._runner(timeout, limit_s(about_s))
        if stored is False:
            show = None if show_progress else self._report_calibration
            self.fabric = _calibrated(self, run, about_s, show)
        else:
            self.fabric = _reused(self, stored)
        self._state.timings.note(calibration=asdict(self.fabric))
        return self.fabric

    def _report_calibration(self, output: str) -> None:
        """Report how far the calibration is, from its output so far, such as ``[rank 0] 35%``."""
        share = output.rstrip().rpartition(" ")[2]
        self._state.report(f"calibrating: {share}" if share.endswith("%") else "calibrating")

    def bandwidth_matrix(self, timeout: str | float = "auto") -> BandwidthMatrix:
        """Measure the bandwidth between each pair of VMs, alone and with other pairs at once.

        It names the slow links and VMs. On one VM, it measures the pairs of its ranks.

        Parameters
        ----------
        timeout
            As for `calibrate`.
        """
        from workbench.fabric import matrix

        ends: dict[str, int] = {}
        for info in self.ranks:
            ends.setdefault(info.vm, info.rank)
        if len(ends) == 1:
            ends = {phrase([info.rank]): info.rank for info in self.ranks}
        return matrix.measure(self._runner(timeout, matrix.limit_s(len(ends))), ends)

    def _runner(self, timeout: str | float, default_s: float) -> RunCell:
        """Return a function that runs a cell of ours, with its output for a progress line."""
        timeout_s = default_s if timeout == "auto" else parse_duration(timeout, "timeout")

        def run(source: str, show: Callable[[str], None]) -> dict[int, Any]:
            sink = TextSink(lambda: show(sink.text))
            run = self._cells.submit(MEASUREMENT + source, None, timeout_s, sink)
            return self._cells.follow(run, record=self.recording).values

        return run

    def stored_calibration(self) -> FittedFabric | None:
        """Return what ``calibrate(stored=True)`` would use; None if nothing is stored."""
        from workbench.fabric import stored

        return stored.find(runs_folder(self.options.runs), _context(self))

    @property
    def profiling(self) -> Profiling:
        """How far the latest `profile` has come."""
        return self._cells.profiling

    def profile(
        self, seconds: str | float | None = None, *, iterations: int | None = None
    ) -> Future[Profile]:
        """Profile the training with PyTorch's profiler on all ranks, and write one trace for all.

        May be called from any thread. While a cell trains, it begins at the end of an iteration.
        Otherwise the next cell that trains is profiled, after its first iterations. The cell does
        not need to know. The trace has the operators of each rank with our phases and collectives
        on the ranks' common clock, for https://ui.perfetto.dev. Its iterations are marked, and
        left out of summaries and explanations, because the profiler slows them down.

        Parameters
        ----------
        seconds
            How long, at most a minute: seconds, or such as ``"5s"``, which is the default without
            `iterations`. A profile also ends with its cell, and when a rank's memory has grown by
            512 MB, or those of its VM by a quarter of what that has free; `Profile.notes` says so.
        iterations
            Most iterations.

        Returns
        -------
        Future
            Its result is the `Profile`. If a rank was lost, it has the others, and says so.

        Raises
        ------
        UsageError
            The cell is not recorded, another profile runs, or an argument is not valid.
        ClusterStopped
            The cluster was not started, or is gone.
        """
        given = (5.0 if iterations is None else MAX_S) if seconds is None else seconds
        count = 0 if iterations is None else checked_int(iterations, "iterations", 1)
        return self.profiling.request(parse_duration(given, "seconds"), count)

    def measure_overhead(
        self,
        source: str | None = None,
        ranks: Ranks = None,
        *,
        pairs: int = 12,
        timeout: str | float = "10m",
    ) -> Overhead:
        """Measure what recording adds to an iteration, by running a cell with and without it.

        The cell runs twice per pair and once before, and its output is not shown. Each time, its
        model continues to train, and its files are written again. `recording` never changes.

        Parameters
        ----------
        source
            The cell; by default the latest one, on its ranks.
        ranks
            Such as ``"0,2-3"``; all by default.
        pairs
            How often the cell runs with and without recording, in random order; 3 or more.
        timeout
            No further pair begins if it would end after this time: seconds, or such as ``"5m"``.

        Raises
        ------
        UsageError
            There is no cell, one runs, it has no iterations or not always as many, or three
            pairs take longer than `timeout`.
        """
        from workbench.timings.overhead import Measurement

        source, ranks = self._cells.measurable(source, ranks)

        def run(timeout_s: float, record: bool) -> tuple[int, list[CellCost]]:
            run = self._cells.submit(source, ranks, timeout_s, TextSink())
            self._cells.follow(run, record=record)
            engines = self._state.usable().engines
            return run.number, engines.call("cell_cost", ranks=list(run.ranks))

        return Measurement(run, self._state.timings).take(pairs, parse_duration(timeout, "timeout"))


def _calibrated(
    cluster: Measurements, run: RunCell, seconds: float, show: Callable[[str], None] | None
) -> FittedFabric:
    """Measure the fabric, and store the result."""
    from workbench.fabric import calibration, stored

    fabric = calibration.measure(run, cluster.n, seconds, show)
    vm_of = {str(info.rank): info.vm for info in cluster.ranks}

    def by_vm(by_rank: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
        first: dict[str, Mapping[str, float]] = {}
        for rank, copies in by_rank.items():
            first.setdefault(vm_of.get(rank, rank), copies)
        return first

    fabric = replace(
        fabric, context=_context(cluster), measured_at=time.time(),
        devices=by_vm(fabric.devices), device_spreads=by_vm(fabric.device_spreads),
    )  # fmt: skip
    where = ""
    try:
        folder = runs_folder(cluster.options.runs)
        where = f" in {folder}"
        stored.save(folder, fabric)
    except (OSError, RuntimeError) as error:  # a full disk, or no home
        why = getattr(error, "strerror", None) or error
        warnings.warn(
            f"The calibration was measured, but not stored{where} ({why}): later clusters have to "
            "measure again. Free space there, or choose another folder with runs=....",
            RuntimeWarning,
            stacklevel=3,
        )
    return fabric


def _reused(cluster: Measurements, given: FittedFabric | bool) -> FittedFabric:
    """Return a calibration that was measured before, if it is of such a cluster."""
    from workbench.fabric import FittedFabric, stored

    own = _context(cluster)
    found = cluster.stored_calibration() if given is True else given
    if isinstance(found, FittedFabric):
        stored.check(found, own)
        return found
    words = ", ".join(f"{what} {value}" for what, value in own.items())
    raise UsageError(
        f"stored={given!r}: no calibration of such a cluster is stored ({words}). Measure it: "
        "cluster.calibrate() or %fabric calibrate."
    )


def _context(cluster: Measurements) -> dict[str, str]:
    """Return what decides a calibration: ranks, VMs, backend, device and transport."""
    infos = cluster.ranks
    slots = Counter(info.vm for info in infos)
    lines = {str(one) for ones in cluster.transports.values() for one in ones}
    return {
        "ranks": str(cluster.n),
        "VMs": ", ".join(f"{vm}:{count}" for vm, count in slots.items()),
        "backend": cluster.options.backend,
        "device": ", ".join(sorted({_model(info) for info in infos})),
        "transport": "; ".join(sorted(lines)) or "unknown",
    }


def _model(info: RankInfo) -> str:
    """Return the model of a rank's GPU, without its number, or ``"CPU"``."""
    return info.gpu.partition("(")[2].rstrip(")") or info.gpu
