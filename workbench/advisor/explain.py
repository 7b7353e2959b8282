"""Ranked causes of a slow iteration, each with its predicted saving."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from workbench.advisor import communication, host, late, links, settings
from workbench.advisor.evidence import Evidence
from workbench.advisor.pipeline import pipeline_causes
from workbench.advisor.training import timings_of
from workbench.advisor.transport import transport_causes
from workbench.errors import UsageError
from workbench.ranks import checked_int
from workbench.resources import Unknown
from workbench.timings import separate
from workbench.timings.store import Rows, last_cell
from workbench.timings.verdict import Cause

if TYPE_CHECKING:
    from workbench.cluster import Cluster
    from workbench.timings import Timings
    from workbench.timings.run import Run

_log = logging.getLogger(__name__)

MIN_SHARE = 0.01
"""Causes below this share of the iteration are not reported."""


def explain(
    training: Cluster | Timings | Run, latest: int | None = None, *, all_cells: bool = False
) -> list[Cause]:
    """Return the causes that slow down a training, the largest saving first.

    Causes are found in the recorded iterations, in simulations of these iterations with other
    settings (see `what_if`), in the calibration of the fabric, in the connections that the backend
    reports, and in the doctor's findings on the VMs. A problem that costs no measured time is not
    a cause.

    Parameters
    ----------
    training
        A cluster, its timings, or a run on disk (`open_run`).
    latest
        Number of the newest iterations to explain, from any cells.
    all_cells
        Explain all iterations. By default, and without `latest`, only the iterations of the last
        cell with recorded iterations are explained. If this cell has a single iteration, the
        cells before it with a single iteration are included.

    Raises
    ------
    UsageError
        No iteration was recorded yet, a cell after the last recorded iterations was not
        recorded, or `latest` is not positive.
    """
    if latest is not None:
        latest = checked_int(latest, "latest", 1)
    timings = timings_of(training)
    if latest is None and not all_cells:
        _check_recorded(timings)
    rows: Rows = timings.rows()
    if latest is not None and len(rows):
        rows = rows[rows["iteration"] > rows["iteration"].max() - latest]
    elif not all_cells and len(rows):
        rows = last_cell(rows)
    if not len(rows):
        unrecorded = getattr(timings, "unrecorded", "")
        reason = unrecorded or (
            "no iteration was recorded. No optimizer stepped in a %%distributed cell; an iteration "
            "ends with optimizer.step()."
        )
        raise UsageError(f"Nothing to explain: {reason}")
    evidence = Evidence(training, timings, rows)
    causes = [cause for find in FINDERS for cause in find(evidence)]
    reported = sorted(filter(_is_reported, causes), key=_sort_key)
    _log.debug("found %d causes, %d of them large enough to report", len(causes), len(reported))
    return reported


def _is_reported(cause: Cause) -> bool:
    return isinstance(cause.saving_share, Unknown) or cause.saving_share >= MIN_SHARE


def _sort_key(cause: Cause) -> float:
    """Return the sort key of a cause: unknown savings come first, then the largest savings."""
    return -math.inf if isinstance(cause.saving_us, Unknown) else -cause.saving_us


def _check_recorded(timings: Any) -> None:
    """Raise an error if a later cell was not recorded, instead of explaining an earlier cell."""
    if not getattr(timings, "outdated", False):
        return
    reason = "the last cell was not recorded"
    if timings.last_recorded:
        reason = "an earlier cell was not recorded, and no later one had iterations"
    switch = "" if timings.recording else "Switch recording on with %timings on. "
    raise UsageError(
        f"Nothing to explain: {reason}. {switch}Run the training again, or explain earlier cells "
        "with %explain --all."
    )


def _unrecorded_communication(evidence: Evidence) -> Iterator[Cause]:
    """Yield communication that is not recorded."""
    summary = evidence.summary
    if not summary.unheard:
        return
    iterations = "every iteration" if summary.unheard >= summary.iterations else "some iterations"
    if 0 < summary.unheard < summary.iterations:
        iterations = f"{summary.unheard:,} of {summary.iterations:,} iterations"
    yield evidence.cause(
        "communication that is not timed",
        f"in {iterations} ranks communicate by means that are not recorded (Horovod from another "
        "build, or torch.distributed.rpc): its time is in the other phases, and its bytes are not "
        "counted",
        "build Horovod with workbench build-horovod, if %doctor shows that it records no times; "
        "calls of torch.distributed.rpc are never timed",
        math.nan,
        bound=True,
        unknown="its time is in the other phases",
    )


def _separate_trainings(evidence: Evidence) -> Iterator[Cause]:
    """Yield separate trainings as a cause, if the ranks of the cell exchanged no gradients."""
    timings = evidence.timings
    cell = int(evidence.rows["cell"].max())
    report = getattr(timings, "separate", None)
    if report is not None and report.cell == cell:
        yield evidence.cause(
            separate.NAME,
            report.evidence,
            report.change,
            math.nan,
            bound=True,
            unknown="the training is another one afterwards",
        )
        return
    # A run on disk, and a cluster of an earlier kernel, have only the verdict.
    verdict = getattr(timings, "stored_verdict", None) or getattr(timings, "verdict", None)
    if verdict is not None and verdict.cell == cell:
        yield from (cause for cause in verdict.causes if cause.name == separate.NAME)


FINDERS: tuple[Callable[[Evidence], Iterator[Cause]], ...] = (
    _separate_trainings,
    _unrecorded_communication,
    late.late_ranks,
    late.uneven,
    late.noisy_neighbour,
    communication.queueing,
    communication.sending,
    links.slower_than_calibrated,
    links.below_nominal,
    links.placement,
    settings.fusion,
    settings.overlap,
    settings.too_little_work,
    transport_causes,
    pipeline_causes,
    host.data_loading,
    host.copies,
    host.other_time,
    host.cpu_of_communication,
)
"""Functions that look for causes; each yields the causes that it finds."""
