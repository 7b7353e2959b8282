"""The verdict of a training cell, from its newest iterations and `explain`."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.advisor.explain import explain
from workbench.advisor.training import timings_of
from workbench.errors import UsageError
from workbench.resources import Unknown
from workbench.resources.unknown import number_or_unknown
from workbench.timings import Summary, separate
from workbench.timings.figures import typical
from workbench.timings.store import Rows, last_cell
from workbench.timings.summary import COMPILED, UNHEARD, summarize
from workbench.timings.verdict import CHANGE, Cause, Verdict

if TYPE_CHECKING:
    from workbench.cluster import Cluster
    from workbench.timings import Timings
    from workbench.timings.run import Run

_log = logging.getLogger(__name__)

MAX_ITERATIONS = 64
"""Maximum number of iterations of a verdict: the newest ones of the cell."""
_NOTHING = "nothing visible here slows it down by 1 % or more"
_ONE_RANK = "a single rank does not communicate"
_NO_SAMPLES = "its batches have no common first dimension"
_NO_PARTS = "the transfers of these iterations were not recorded"


def verdict(training: Cluster | Timings | Run) -> Verdict:
    """Return the duration of an iteration of the last training cell, with its causes.

    After each cell with recorded iterations, a cluster stores its verdict with the run, as
    ``verdict.json``. For a run on disk, the stored verdict is returned, if there is one.

    Parameters
    ----------
    training
        A cluster, its timings, or a run on disk (`open_run`).

    Raises
    ------
    UsageError
        There is nothing to explain; see `explain`.
    """
    stored = getattr(training, "stored_verdict", None)
    if isinstance(stored, Verdict):
        return stored
    timings = timings_of(training)
    rows = _newest(timings)
    # Only these rows are passed to `explain`, because copying and searching all rows takes long.
    part = _View(timings, rows=lambda start=0: rows[start:].copy())
    view: Any = part if timings is training else _View(training, timings=part)
    causes = explain(view)
    return _verdict(rows, summarize(rows), causes)


def conclude(cluster: Cluster | None) -> None:
    """Store the verdict of a cluster's last training cell with its run; None is ignored."""
    if cluster is None:
        return
    timings = cluster.timings
    started_s = time.monotonic()
    try:
        timings.conclude(verdict(cluster))
        _log.debug("stored the verdict of the last cell in %.2f s", time.monotonic() - started_s)
    except UsageError:
        pass  # the cell has not completed any iteration
    except Exception as error:  # noqa: BLE001 - no other thread would report the error
        timings.storage_errors.append(f"the verdict of the last cell is not stored: {error}")


class _View:
    """A view of a training that replaces some of its attributes."""

    def __init__(self, training: object, **attributes: Any) -> None:
        self._training = training
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._training, name)


def _newest(timings: Any) -> Rows:
    """Return the rows of the newest iterations of the last cell that recorded any."""
    size = len(timings)
    last: Rows = timings.rows(max(0, size - 1))
    ranks = int(last["world_size"].max(initial=1))
    # Ranks send several rows at a time, so rows are not always ordered by iteration.
    rows: Rows = timings.rows(max(0, size - 2 * MAX_ITERATIONS * ranks))
    rows = last_cell(rows)
    return np.asarray(rows[rows["iteration"] > rows["iteration"].max(initial=0) - MAX_ITERATIONS])


def _verdict(rows: Rows, summary: Summary, causes: list[Cause]) -> Verdict:
    ranks = int(rows["world_size"].max())
    exposed_reason = UNHEARD if summary.unheard else COMPILED if summary.compiled else _ONE_RANK
    parts = (summary.waiting_us, summary.queued_us, summary.transfer_us)
    parts_reason = exposed_reason if math.isnan(summary.exposed_us) else _NO_PARTS
    waiting, queued, transfer = (number_or_unknown(us, parts_reason) for us in parts)
    return Verdict(
        text=f"{_figures(summary, ranks, causes)}; {_first(causes)}",
        cell=int(rows["cell"].max()),
        first_iteration=int(rows["iteration"].min()),
        last_iteration=int(rows["iteration"].max()),
        ranks=ranks,
        iteration_us=float(summary.iteration_us),
        median_us=float(np.median(typical(rows)["iteration_ns"])) / 1e3,
        exposed_us=number_or_unknown(summary.exposed_us, exposed_reason),
        exposed_share=number_or_unknown(summary.exposed_share, exposed_reason),
        waiting_us=waiting,
        queued_us=queued,
        transfer_us=transfer,
        samples_per_s=number_or_unknown(summary.progress.samples_per_s, _NO_SAMPLES),
        causes=tuple(causes),
    )


def _figures(summary: Summary, ranks: int, causes: list[Cause]) -> str:
    """Describe the duration of an iteration, with the share of exposed communication if known."""
    text = f"{_duration(summary.iteration_us)} per iteration ({summary.scope})"
    if summary.compiled:
        return f"{text}, its phases are unknown (a tf.function does not report them)"
    if ranks < 2:
        return f"{text} on one rank, without communication"
    if any(cause.name == separate.NAME for cause in causes):
        return f"{text}, {separate.NO_GRADIENT}"
    if summary.unheard or math.isnan(summary.exposed_share):
        return f"{text}, communication is not timed"
    return f"{text}, {summary.exposed_share * 100:.0f} % of it exposed communication"


def _first(causes: list[Cause]) -> str:
    """Describe the first cause with its fix."""
    if not causes:
        return _NOTHING
    first = causes[0]
    saving = ""
    if not isinstance(first.saving_us, Unknown):
        saving = f" ({'up to ' if first.bound else ''}{_duration(first.saving_us)})"
    return f"first cause: {first.name}{saving}{CHANGE}{first.change}"


def _duration(us: float) -> str:
    """Format a duration with three digits in a suitable unit.

    Examples
    --------
    >>> _duration(12_345.0)
    '12.3 ms'
    >>> _duration(2.5e6)
    '2.5 s'
    """
    for unit, scale in (("\u00b5s", 1.0), ("ms", 1e3)):
        if us < 999.5 * scale:
            return f"{us / scale:.3g} {unit}"
    return f"{us / 1e6:,.3g} s" if us < 999.5e6 else f"{us / 1e6:,.0f} s"
