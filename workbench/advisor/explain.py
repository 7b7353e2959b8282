"""Ranked causes of a slow iteration, each with its predicted saving."""

from __future__ import annotations

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

WORTH_SHARE = 0.01
"""Causes below this share of the iteration are not reported."""


def explain(
    training: Cluster | Timings | Run, latest: int | None = None, *, all_cells: bool = False
) -> list[Cause]:
    """Return what slows down a training, the largest saving first.

    Causes are found in the recorded iterations, in simulations of these with other settings (see
    `what_if`), in the calibration of the fabric, in how the backend says that it is connected, and
    in what the doctor finds on the VMs. What costs no measured time is not a cause.

    Parameters
    ----------
    training
        A cluster, its timings, or a run on disk (`open_run`).
    latest
        Number of the newest iterations to explain, from any cells.
    all_cells
        Explain all iterations; by default, and without `latest`, those of the
        last cell that recorded any. If this cell has one iteration, those of the cells
        before it with one iteration are included.

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
        off = getattr(timings, "unrecorded", "")
        why = off or (
            "no iteration was recorded. No optimizer stepped in a %%distributed cell; an iteration "
            "ends with optimizer.step()."
        )
        raise UsageError(f"Nothing to explain: {why}")
    evidence = Evidence(training, timings, rows)
    causes = [one for find in FINDERS for one in find(evidence)]
    return sorted(filter(_is_worth, causes), key=_order)


def _is_worth(one: Cause) -> bool:
    return isinstance(one.saving_share, Unknown) or one.saving_share >= WORTH_SHARE


def _order(one: Cause) -> float:
    """Return what sorts a cause: unknown savings are first, then the largest ones."""
    return -math.inf if isinstance(one.saving_us, Unknown) else -one.saving_us


def _check_recorded(timings: Any) -> None:
    """Raise an error if a later cell was not recorded, so that no earlier one is explained."""
    if not getattr(timings, "outdated", False):
        return
    what = "the last cell was not recorded"
    if timings.last_recorded:
        what = "an earlier cell was not recorded, and no later one had iterations"
    switch = "" if timings.recording else "Switch recording on with %timings on. "
    raise UsageError(
        f"Nothing to explain: {what}. {switch}Run the training again, or explain earlier cells "
        "with %explain --all."
    )


def _unheard(evidence: Evidence) -> Iterator[Cause]:
    """Yield communication that is not recorded."""
    summary = evidence.summary
    if not summary.unheard:
        return
    where = "every iteration" if summary.unheard >= summary.iterations else "some iterations"
    if 0 < summary.unheard < summary.iterations:
        where = f"{summary.unheard:,} of {summary.iterations:,} iterations"
    yield evidence.cause(
        "communication that is not timed",
        f"in {where} ranks communicate by means that are not recorded (Horovod from another build, "
        "or torch.distributed.rpc): its time is in the other phases, and its bytes are not counted",
        "build Horovod with workbench build-horovod, if %doctor shows that it records no times; "
        "calls of torch.distributed.rpc are never timed",
        math.nan,
        bound=True,
        unknown="its time is in the other phases",
    )


def _separate(evidence: Evidence) -> Iterator[Cause]:
    """Yield that the ranks exchange no gradients, if the rows are of such a cell."""
    timings, cell = evidence.timings, int(evidence.rows["cell"].max())
    found = getattr(timings, "separate", None)
    if found is not None and found.cell == cell:
        unknown = "the training is another one afterwards"
        what = found.evidence, found.change
        yield evidence.cause(separate.NAME, *what, math.nan, bound=True, unknown=unknown)
        return
    # of a run on disk, or of a cluster that an earlier kernel has started
    verdict = getattr(timings, "stored_verdict", None) or getattr(timings, "verdict", None)
    if verdict is not None and verdict.cell == cell:
        yield from (cause for cause in verdict.causes if cause.name == separate.NAME)


FINDERS: tuple[Callable[[Evidence], Iterator[Cause]], ...] = (
    _separate,
    _unheard,
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
"""What is looked for; each function yields its causes."""
