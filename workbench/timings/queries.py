"""Tables, figures and exports of timings."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import fields
from typing import TYPE_CHECKING, Literal

from workbench.errors import UsageError, shortened
from workbench.ranks import checked_int
from workbench.timings import frame, groups, stages, stragglers, totals
from workbench.timings.compare import Comparison, compare
from workbench.timings.source import ClocksLike, TimingsSource
from workbench.timings.summary import Summary, summarize

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import pyarrow as pa

_MAX_SHOWN = 80
"""Maximum number of characters of an argument in an error message."""


class TimingsQueries(TimingsSource):
    """Tables, figures and exports of a `TimingsSource`.

    `Timings` receives the rows and records from the ranks, `Run` reads them from files.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows received so far."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row per iteration and rank.

        Columns: iteration, rank, iteration_us, data_us, forward_us, backward_us,
        communication_us, exposed_us, optimizer_us, wait_us, queued_us, transfer_us, bytes,
        tensors, algbw_gbps, busbw_gbps, overlap, other_us, copy_us, samples, samples_per_s,
        communication_cpu_us (of the backend's threads). The sum of the phases data, copy, forward,
        backward, exposed, optimizer and other is the iteration. The sum of wait_us (how much
        later than this rank the last rank submitted its gradients), queued_us (negotiation, earlier
        buffers, copies) and transfer_us is exposed_us. With a GPU, the duration and the phases are
        measured on its stream, otherwise on the CPU's clock. Communication includes all
        collectives with their queueing, also collectives that the cell itself calls. Unknown
        figures are NaN. A column for each name that the cell logs (`workbench.log`) follows.
        """
        return frame.iterations(self.rows(), self.logged())

    def collectives(self, first: int | None = None, last: int | None = None) -> pd.DataFrame:
        """Return one row per iteration, rank and collective; see `frame.collectives`.

        Parameters
        ----------
        first, last
            Iterations, both included; by default the newest `MAX_COLLECTIVE_RECORDS` records.

        Raises
        ------
        UsageError
            An iteration is not an integer.
        """
        return frame.collectives(self.records(first, last))

    def groups(self, first: int | None = None, last: int | None = None) -> pd.DataFrame:
        """Return one row per group of ranks that had collectives; see `groups.summarize_groups`.

        `first` and `last` are as for `collectives`.
        """
        return groups.summarize_groups(self.collectives(first, last))

    def stages(self, first: int | None = None, last: int | None = None) -> pd.DataFrame:
        """Return one row per iteration and rank of pipelines, with the idle time of its stage.

        Columns: iteration, rank; group, the name of the pipeline's group of ranks; stage, the
        rank's position in the pipeline, from 0; stages, the number of stages; microbatches, counted
        as messages from each stage to the next; ideal_share, the share of idle time if all stages
        are equally fast, (stages - 1) / (microbatches + stages - 1); iteration_us; idle_us, how
        long the rank waited in sends and receives; idle_share, its share of the iteration. Unknown
        values are missing: for example the stage, if the ranks do not send to each other in a
        chain, or if the rank is in several pipelines.

        `first` and `last` are as for `collectives`.
        """
        rows = self.rows()
        records = self.records(first, last)
        if first is not None:
            rows = rows[rows["iteration"] >= first]
        if last is not None:
            rows = rows[rows["iteration"] <= last]
        return stages.table(rows, records)

    def stragglers(self) -> pd.DataFrame:
        """Return the spans of iterations where the other ranks waited for one rank or VM.

        Columns: rank, phase, excess_us, first_iteration, last_iteration, kind,
        how_often, late_us, uncertainty_us, vm; see `stragglers.Straggler`.
        """
        import pandas as pd

        names = [field.name for field in fields(stragglers.Straggler)]
        return pd.DataFrame(stragglers.find(self.rows(), self.vm_names()), columns=names)

    def arrivals(self) -> pd.DataFrame:
        """Return when each rank submitted the first and the last collective of each iteration.

        Columns: iteration, rank, first_us, last_us, late_us, uncertainty_us;
        see `frame.arrivals`.
        """
        return frame.arrivals(self.rows())

    def summary(self, latest: int | None = None) -> Summary:
        """Return the key figures of all iterations, or of the `latest`.

        Raises
        ------
        UsageError
            `latest` is not a positive integer.
        """
        if latest is not None:
            latest = checked_int(latest, "latest", 1)
        return summarize(self.rows(), latest)

    def collective_totals(self, first: int, last: int) -> totals.CollectiveTotals:
        """Return the cost of each collective in the iterations `first` to `last`, both included.

        The cost is computed from at most `totals.MAX_RECORDS` stored records, evenly spread.
        """
        return totals.total(self.records(first, last))

    def compare(self, other: object) -> Comparison:
        """Compare the figures of another run with this run; see `compare.compare`.

        Raises
        ------
        UsageError
            `other` is neither timings nor a run, or either of them has no iteration.
        """
        if not isinstance(other, TimingsQueries):
            argument = shortened(repr(other), _MAX_SHOWN)
            raise UsageError(
                f"compare({argument}): neither timings nor a run. Give cluster.timings, or a run "
                "such as wb.open_run(name)."
            )
        return compare(self.rows(), other.rows(), (str(self), str(other)))

    def to_arrow(
        self,
        what: Literal["iterations", "collectives"] = "iterations",  # language: a public name
    ) -> pa.Table:
        """Return the columns of ``to_frame()``, or of ``collectives()``, as an Arrow table.

        Unknown figures are null; the unit of each column is in its metadata.

        Raises
        ------
        UsageError
            There is no such table.
        """
        return frame.arrow_table(self, what)

    def to_trace(
        self,
        path: str | os.PathLike[str],
        *,
        iterations: tuple[int, int] | None = None,
        clocks: ClocksLike | None = None,
    ) -> Path:
        """Write all ranks on one clock for Perfetto (ui.perfetto.dev) or chrome://tracing.

        Each rank is a process. Its thread "phases" has a slice per iteration with the phases
        stacked in their usual order, because only their sums are known. The threads
        "collectives" have each collective at its measured time, from submitted to finished, with
        its bytes and bandwidth, and how long it queued, was copied and transferred. The thread
        "transfers" has each buffer with its copies and its transfer; several collectives may travel
        in one buffer. Collectives outside the iterations of a cell (a broadcast before the first, a
        metric after the last) are in threads of their own. Arrows lead from the rank that was the
        last to submit the last collective of an iteration to the ranks that waited for it.

        Parameters
        ----------
        path
            A ``.json`` file, or ``.json.gz`` for a compressed one.
        iterations
            The first and the last iteration to write; all by default.
        clocks
            Converts a rank's times to a common clock: an object with
            ``to_kernel(rank, t_ns) -> (ns, uncertainty_ns)``, or such a callable. By default,
            ranks of one VM share its clock; others are aligned by the cluster's pings or,
            without pings, by the ends of common collectives. The trace's ``otherData``
            contains the method and its uncertainty.

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

        HolisticTraceAnalysis reads GPU kernels. In these traces, the phases forward, backward and
        optimizer represent compute kernels, and collectives represent NCCL's kernels. Its overlap,
        temporal breakdown, kernel breakdown and stragglers are valid; its analyses of CUDA
        launches, queues, idle times, memory and critical paths have no data. It leaves out the last
        iteration, and is slow for more than a few hundred iterations.

        Parameters
        ----------
        folder
            Folder of the files ``rank0.json.gz`` and so on; created if it does not exist.
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
        """Write scalars per iteration for TensorBoard: a run ``mean``, and a run per rank.

        Wall times are relative: the last iteration ends at the time of the export.

        Parameters
        ----------
        folder
            TensorBoard's log directory.
        per_rank
            Whether to write a run for each rank in addition to the mean.

        Raises
        ------
        UsageError
            There is no iteration, or `tensorboard` is not installed.
        """
        from workbench.timings.export.scalars import write_tensorboard

        return write_tensorboard(self, folder, per_rank=per_rank)

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
            Created if it does not exist.
        tracking_uri
            MLflow's own setting by default.
        per_rank
            Whether to log each rank (``rank0/iteration_ms``) in addition to the mean.

        Raises
        ------
        UsageError
            There is no iteration, `mlflow` is not installed, or the tracking server cannot be
            reached or refuses.
        """
        from workbench.timings.export.scalars import log_to_mlflow

        return log_to_mlflow(self, run_id, experiment, tracking_uri, per_rank=per_rank)
