"""Measure a cluster's VMs and ranks: their use, the fabric, and the cost of recording."""

from __future__ import annotations

import logging
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


_log = logging.getLogger(__name__)


class Measurements(Execution):
    """Measurements on a cluster's VMs at any time, and on its ranks between the user's cells.

    The base class of `Cluster`.
    """

    fabric: FittedFabric | None
    options: Options

    @property
    @abstractmethod
    def ranks(self) -> list[RankInfo]:
        """The ranks in order."""

    def memory_bytes(self) -> dict[int, int]:
        """Return the resident memory in bytes of each running rank, by rank."""
        sizes = memory_bytes(self.agents)
        members = self._state.processes.engines.members
        return {
            member.info.rank: sizes[member.process] for member in members if member.process in sizes
        }

    def logs(self) -> dict[str, str | Unknown]:
        """Return what this kernel, the agents and the ranks have logged, by process.

        Each record is a line with its time, level and module, and a traceback where there is one.
        The level is that of ``GRADIENT_WORKBENCH_LOG`` when the cluster was started.
        """
        texts: dict[str, str | Unknown] = {"kernel": logs.recent()}
        agents = self.agents
        members = self._state.processes.engines.members if agents else ()
        ranks = {member.process: member.info.rank for member in members}
        for vm, (agent, answer) in enumerate(zip(agents, agent_logs(agents), strict=True)):
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

        The bundle is a zip file. It has the stacks of all ranks, their last 100 iterations, and the
        collectives that each rank has started. For each VM, it has the hardware, its use, findings,
        and the kernel's lines about memory and GPUs. ``manifest.json`` says what is missing and
        why. A cell that fails or hangs writes a bundle by itself: `CellError.evidence`.

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

        The result is empty while a cell runs, if the rank does not answer within half a second, or
        if only running code finds the object, such as a property.

        Parameters
        ----------
        path
            The name of a variable, and names of attributes: ``"model"``, ``"model.layer1"``.
        """
        return self._cells.attributes.names(tuple(path.split(".")))

    def samples(self) -> dict[str, Sample | Unknown]:
        """Return the current use of each VM by its name, or `Unknown` with the reason.

        All VMs are asked concurrently, and have five seconds to answer; their ranks continue to
        run. Each VM has one sampler, which ends ten seconds after the last call. Rates are averages
        since the previous sample, so that the first call has no rates. Calls within half a second
        return the same sample.
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

        The result is also stored, for later clusters of the same VMs, ranks, backend and transport.

        Parameters
        ----------
        timeout
            The ranks are interrupted after this time: seconds, or a text such as ``"5m"``. With
            ``"auto"``, the limit is several times the expected duration.
        seconds
            The approximate maximum duration of the measurement. Less time is less precise.
        stored
            True for the stored calibration instead of a measurement, or a calibration of an
            earlier cluster. The calibration of a different cluster is refused.
        show_progress
            False to show the progress in the cluster's `message` instead of printing it.
        """
        from workbench.fabric.calibration import limit_s  # loaded when it is needed

        about_s = parse_duration(seconds, "seconds")
        run = self._runner(timeout, limit_s(about_s))
        if stored is False:
            show = None if show_progress else self._report_calibration
            self.fabric = _calibrate(self, run, about_s, show)
        else:
            self.fabric = _reuse_calibration(self, stored)
        self._state.timings.note(calibration=asdict(self.fabric))
        return self.fabric

    def _report_calibration(self, output: str) -> None:
        """Report the calibration's progress, from its output such as ``[rank 0] 35%``."""
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
        """Return a function that runs a cell of this package and shows its output as progress."""
        timeout_s = default_s if timeout == "auto" else parse_duration(timeout, "timeout")

        def run(source: str, show: Callable[[str], None]) -> dict[int, Any]:
            sink = TextSink(lambda: show(sink.text))
            run = self._cells.submit(MEASUREMENT + source, None, timeout_s, sink)
            return self._cells.follow(run, record=self.recording).values

        return run

    def stored_calibration(self) -> FittedFabric | None:
        """Return the calibration that ``calibrate(stored=True)`` would use, or None."""
        from workbench.fabric import stored

        return stored.find(runs_folder(self.options.runs), _context(self))

    @property
    def profiling(self) -> Profiling:
        """The profiles of this cluster, with the progress of the latest `profile`."""
        return self._cells.profiling

    def profile(
        self, seconds: str | float | None = None, *, iterations: int | None = None
    ) -> Future[Profile]:
        """Profile the training with PyTorch's profiler on all ranks, and write one common trace.

        May be called from any thread. While a cell trains, the profile begins at the end of an
        iteration. Otherwise the next cell that trains is profiled, after its first iterations. The
        cell needs no changes. The trace has the operators of each rank, with this package's phases
        and collectives, on the ranks' common clock, for https://ui.perfetto.dev. Its iterations are
        marked, and left out of summaries and explanations, because the profiler slows them down.

        Parameters
        ----------
        seconds
            The duration, at most a minute: seconds, or a text such as ``"5s"``, which is the
            default without `iterations`. A profile also ends with its cell. It ends early if the
            memory of a rank has grown by 512 MB, or the memory of all ranks of a VM by a quarter of
            the VM's free memory; `Profile.notes` then says so.
        iterations
            The maximum number of iterations.

        Returns
        -------
        Future
            Its result is the `Profile`. If a rank was lost, the profile has the other ranks, and
            its notes name the lost rank.

        Raises
        ------
        UsageError
            The cell is not recorded, another profile runs, or an argument is not valid.
        ClusterStopped
            The cluster was not started, or has ended.
        """
        if seconds is None:
            seconds = 5.0 if iterations is None else MAX_S
        count = 0 if iterations is None else checked_int(iterations, "iterations", 1)
        return self.profiling.request(parse_duration(seconds, "seconds"), count)

    def measure_overhead(
        self,
        source: str | None = None,
        ranks: Ranks = None,
        *,
        pairs: int = 12,
        timeout: str | float = "10m",
    ) -> Overhead:
        """Measure the time that recording adds to an iteration.

        A cell runs with and without recording, twice per pair and once before. Its output is not
        shown. Each time, its model continues to train, and its files are written again. `recording`
        never changes.

        Parameters
        ----------
        source
            The cell; by default the latest cell, on its ranks.
        ranks
            The ranks, such as ``"0,2-3"``; all by default.
        pairs
            The number of runs with and without recording, in random order; 3 or more.
        timeout
            No further pair begins if it would end after this time: seconds, or a text such as
            ``"5m"``.

        Raises
        ------
        UsageError
            There is no cell, a cell runs, the cell has no iterations or their number varies, or
            three pairs take longer than `timeout`.
        """
        from workbench.timings.overhead import Measurement

        source, ranks = self._cells.measurable(source, ranks)

        def run(timeout_s: float, record: bool) -> tuple[int, list[CellCost]]:
            run = self._cells.submit(source, ranks, timeout_s, TextSink())
            self._cells.follow(run, record=record)
            engines = self._state.usable().engines
            return run.number, engines.call("cell_cost", ranks=list(run.ranks))

        return Measurement(run, self._state.timings).take(pairs, parse_duration(timeout, "timeout"))


def _calibrate(
    cluster: Measurements, run: RunCell, seconds: float, show: Callable[[str], None] | None
) -> FittedFabric:
    """Measure the fabric, and store the result."""
    from workbench.fabric import calibration, stored

    began = time.monotonic()
    fabric = calibration.measure(run, cluster.n, seconds, show)
    _log.info("calibrated the fabric of %d ranks in %.1f s", cluster.n, time.monotonic() - began)
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
    location = ""
    try:
        folder = runs_folder(cluster.options.runs)
        location = f" in {folder}"
        stored.save(folder, fabric)
    except (OSError, RuntimeError) as error:  # a full disk, or no home folder
        reason = getattr(error, "strerror", None) or error
        warnings.warn(
            f"The calibration was measured, but not stored{location} ({reason}): later clusters "
            "have to measure again. Free space there, or choose another folder with runs=....",
            RuntimeWarning,
            stacklevel=3,
        )
    return fabric


def _reuse_calibration(cluster: Measurements, requested: FittedFabric | bool) -> FittedFabric:
    """Return an earlier calibration, if it was measured on such a cluster.

    `requested` is True for the stored calibration, or a calibration.
    """
    from workbench.fabric import FittedFabric, stored

    context = _context(cluster)
    calibration = cluster.stored_calibration() if requested is True else requested
    if isinstance(calibration, FittedFabric):
        stored.check(calibration, context)
        return calibration
    words = ", ".join(f"{name} {value}" for name, value in context.items())
    raise UsageError(
        f"stored={requested!r}: no calibration of such a cluster is stored ({words}). Measure it: "
        "cluster.calibrate() or %fabric calibrate."
    )


def _context(cluster: Measurements) -> dict[str, str]:
    """Return the conditions of a calibration: ranks, VMs, backend, device and transport."""
    infos = cluster.ranks
    slots = Counter(info.vm for info in infos)
    lines = {
        str(transport) for transports in cluster.transports.values() for transport in transports
    }
    return {
        "ranks": str(cluster.n),
        "VMs": ", ".join(f"{vm}:{count}" for vm, count in slots.items()),
        "backend": cluster.options.backend,
        "device": ", ".join(sorted({_model(info) for info in infos})),
        "transport": "; ".join(sorted(lines)) or "unknown",
    }


def _model(info: RankInfo) -> str:
    """Return the model of a rank's GPU, without its number, or ``"CPU"``.

    Examples
    --------
    >>> _model(RankInfo(0, "vm1", 4711, "1 (NVIDIA H100)", "", "", "ready", 4))
    'NVIDIA H100'
    """
    return info.gpu.partition("(")[2].rstrip(")") or info.gpu
