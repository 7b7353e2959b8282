"""What every holder of timings can do: give them to another tool."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal

from workbench.timings.store import CollectiveRecord, Rows

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from workbench.timings.export.alignment import CellClocksLike, ClocksLike


class Exports(ABC):
    """Methods for other tools; what they need comes from who inherits."""

    def places(self) -> dict[int, str]:
        """Return the host name of each rank's VM, where known."""
        return {}

    def known_clocks(self) -> CellClocksLike | None:
        """Return what the ranks' pings told of their clocks, where there were any."""
        return None

    @abstractmethod
    def rows(self, start: int = 0) -> Rows:
        """Return a copy of the raw rows from the `start`-th on (see `arrivals.ALIGNED`)."""

    @abstractmethod
    def records(self, first: int | None = None, last: int | None = None) -> list[CollectiveRecord]:
        """Return the records of single collectives, of the iterations `first` to `last`."""

    def to_arrow(self, what: Literal["iterations", "collectives"] = "iterations") -> pa.Table:
        """Return the columns of ``to_frame()``, or of ``collectives()``, as an Arrow table.

        NaN, where a figure is not known, becomes null; the unit of each column
        is in its metadata.

        Raises
        ------
        UsageError
            `what` is something else.
        """
        from workbench.timings.export.arrow import table

        return table(self, what)

    def to_trace(
        self,
        path: str | os.PathLike[str],
        *,
        iterations: tuple[int, int] | None = None,
        clocks: ClocksLike | None = None,
    ) -> Path:
        """Write all ranks on one clock for Perfetto (ui.perfetto.dev) or chrome://tracing.

        A process per rank. Its thread "phases" has a slice per iteration with
        the phases in it: only their sums are known, so they are stacked in
        their usual order. The threads "collectives" have each collective at
        its true time, from submitted to first seen finished, with bytes,
        bandwidth and the bracket of its end; those that a cell ran outside its
        iterations (a broadcast before the first, a metric after the last) have
        threads of their own, on every rank that trained. Arrows lead from the rank that
        submitted an iteration's last collective last to those that waited.

        Parameters
        ----------
        path
            ``.json``, or ``.json.gz`` to have it compressed.
        iterations
            First and last one to write, and what ran in their time; all by default.
        clocks
            Maps a rank's clock to a common one: an object with
            ``to_kernel(rank, t_ns) -> (ns, uncertainty_ns)``, or such a
            callable. Without it, ranks of one VM share its clock; others are
            aligned by the pings of their cluster, or, where there were none, by
            the ends of the collectives that they share. The trace's
            ``otherData`` says which, and how sure it is.

        Raises
        ------
        UsageError
            There is no such iteration, or no such folder.
        """
        from workbench.timings.export.perfetto import write

        return write(self, path, iterations, clocks)

    def to_hta(
        self,
        folder: str | os.PathLike[str],
        *,
        iterations: tuple[int, int] | None = None,
        clocks: ClocksLike | None = None,
    ) -> Path:
        """Write a trace per rank for HolisticTraceAnalysis (``TraceAnalysis(trace_dir=folder)``).

        That tool reads GPU kernels; here forward, backward and optimizer stand
        for the kernels that compute, and collectives for NCCL's. What it says
        of overlap, temporal breakdown, kernel breakdown and stragglers is of
        these; its analyses of CUDA launches, queues, idle times, memory and
        critical paths have nothing to go on. It leaves out the last iteration,
        and takes long for more than some hundred of them.

        Parameters
        ----------
        folder
            Made if it is not there; gets a ``rank0.json.gz`` and so on.
        iterations, clocks
            As for `to_trace`.

        Raises
        ------
        UsageError
            There is no such iteration.
        """
        from workbench.timings.export.hta import write

        return write(self, folder, iterations, clocks)

    def to_tensorboard(self, folder: str | os.PathLike[str], *, per_rank: bool = True) -> Path:
        """Write scalars per iteration for TensorBoard: a run ``mean``, and one per rank.

        Wall times have the run's spacing and end with the moment of the export.

        Parameters
        ----------
        folder
            TensorBoard's log directory.
        per_rank
            Whether each rank gets a run of its own.

        Raises
        ------
        UsageError
            There is no iteration, or no package `tensorboard`.
        """
        from workbench.timings.export.tensorboard import write

        return write(self, folder, per_rank)

    def to_mlflow(
        self,
        run_id: str | None = None,
        *,
        experiment: str = "gradient-workbench",
        tracking_uri: str | None = None,
        per_rank: bool = True,
    ) -> str:
        """Log scalars per iteration as metrics of an MLflow run; return its id.

        Parameters
        ----------
        run_id
            An existing run; a new one of `experiment` by default.
        experiment
            Made if it is not there.
        tracking_uri
            Where; MLflow's own setting by default.
        per_rank
            Whether to log each rank (``rank0/iteration_ms``) beside the mean.

        Raises
        ------
        UsageError
            There is no iteration, or no package `mlflow`.
        """
        from workbench.timings.export.mlflow import log

        options: dict[str, Any] = {"experiment": experiment, "tracking_uri": tracking_uri}
        return log(self, run_id, per_rank, **options)
