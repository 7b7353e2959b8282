"""The key figures of a run, or of its latest iterations."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from workbench.timings.derive import EXPOSED_PARTS, columns
from workbench.timings.figures import iterations_text, mean, means, typical
from workbench.timings.lateness import lateness
from workbench.timings.progress import TrainingProgress, progress
from workbench.timings.store import (
    PHASES,
    Rows,
    first_of_cell,
    has_flag,
    phases_unseen,
    profiled,
)
from workbench.timings.stragglers import always_late
from workbench.wire import Flag

LATEST = 100
"""Number of the latest iterations that live figures are computed over."""

_TIMES = ("iteration_us", "communication_us", "exposed_us")
_RATIOS = ("exposed_share", "algbw_gbps", "busbw_gbps")


@dataclass(frozen=True)
class Summary:
    """Key figures: means over iterations and ranks.

    The first iteration of a cell is left out unless there are no others, because it allocates,
    negotiates and warms up. Iterations that were profiled are left out, too. Unknown figures are
    NaN.

    Attributes
    ----------
    iteration
        Number of the latest iteration, or -1.
    first_iteration, last_iteration
        Numbers of the first and the last iteration in the figures, or -1.
    iterations
        Number of iterations in the figures.
    left_out
        Number of first iterations of cells that are left out.
    profiled
        Number of iterations that were profiled.
    profiled_left_out
        Whether the profiled iterations are left out; they are not if there are no others.
    ranks
        Number of ranks that reported.
    iterations_per_s
        One over `iteration_us`, so that pauses between cells do not count.
    iteration_us
        Duration of an iteration.
    phases_us
        Phases by name; their sum is `iteration_us`.
    communication_us, overlapped_us
        Duration of the communication of gradients, and how much of it overlapped with compute.
    exposed_us, exposed_share
        How long training waited for gradients, and the share of this time in the iteration.
    waiting_us, queued_us, transfer_us
        The parts of `exposed_us`: waiting for the last rank, which submitted its gradients later
        (also if training was stopped only after they were on their way); time in queues; and time
        in transfers. The last two are unknown if the backend does not record transfers.
    messages_us
        The part of `exposed_us` that training waited for sends and receives. In iterations with
        such waits, the parts of `exposed_us` are unknown.
    unheard
        Number of iterations with communication that cannot be timed. If there is no other
        communication, its figures are NaN, and its time is in the other phases.
    compiled
        Number of iterations that are one compiled function, so that their phases are unknown.
    algbw_gbps, busbw_gbps
        Bandwidths in 10^9 bits per second: all bytes over all communication time.
    bytes, tensors
        Size and number of the gradients of one rank and iteration.
    progress
        Samples per second; and the passes over the data and the cost of communication since the
        first iteration, independent of the number of iterations in the figures.
    slowest_rank, slowest_excess_us
        The rank that is always late, and by how much (`stragglers.always_late`); or None.
    """

    iteration: int
    iterations: int
    left_out: int
    profiled: int
    profiled_left_out: bool
    ranks: int
    iterations_per_s: float
    iteration_us: float
    phases_us: dict[str, float]
    communication_us: float
    overlapped_us: float
    exposed_us: float
    exposed_share: float
    waiting_us: float
    queued_us: float
    transfer_us: float
    messages_us: float
    unheard: int
    compiled: int
    algbw_gbps: float
    busbw_gbps: float
    bytes: int
    tensors: int
    slowest_rank: int | None
    slowest_excess_us: float | None
    progress: TrainingProgress
    first_iteration: int = -1
    last_iteration: int = -1

    @property
    def scope(self) -> str:
        """The iterations of the figures as text, such as ``"iterations 230 to 329"``."""
        return iterations_text(self.first_iteration, self.last_iteration)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return asdict(self)


def summarize(rows: Rows, latest: int | None = None) -> Summary:
    """Return the key figures of `rows`, or of their `latest` iterations."""
    whole = rows
    last = int(rows["iteration"].max()) if len(rows) else -1
    if latest is not None and len(rows):
        rows = rows[rows["iteration"] > last - latest]
    every = rows
    rows = typical(every)
    rings = list(lateness(rows))
    table = columns(rows, rings)
    figures = means(table, [*_TIMES, *EXPOSED_PARTS, *_RATIOS])
    iteration_us = figures["iteration_us"]
    exposed = ~np.isnan(table["exposed_us"])
    rank, excess = always_late(rings)
    return Summary(
        iteration=last,
        iterations=_count(rows),
        left_out=first_left_out(every, rows),
        profiled=_count(every[profiled(every)]),
        profiled_left_out=not profiled(rows).any(),
        ranks=len(np.unique(rows["rank"])),
        iterations_per_s=1e6 / iteration_us if iteration_us > 0 else float("nan"),
        iteration_us=iteration_us,
        phases_us={phase: mean(rows[f"{phase}_ns"] / 1e3) for phase in PHASES},
        communication_us=figures["communication_us"],
        overlapped_us=mean((rows["overlapped_ns"] / 1e3)[exposed]),
        exposed_us=figures["exposed_us"],
        exposed_share=figures["exposed_share"],
        waiting_us=figures["wait_us"],
        queued_us=figures["queued_us"],
        transfer_us=figures["transfer_us"],
        messages_us=mean(rows["messages_ns"] / 1e3),
        unheard=_count(rows[has_flag(rows, Flag.UNHEARD)]),
        compiled=_count(rows[phases_unseen(rows)]),
        algbw_gbps=figures["algbw_gbps"],
        busbw_gbps=figures["busbw_gbps"],
        bytes=round(mean(rows["bytes"])) if len(rows) else 0,
        tensors=round(mean(rows["tensors"])) if len(rows) else 0,
        slowest_rank=rank,
        slowest_excess_us=excess,
        progress=progress(whole, rows),
        first_iteration=int(rows["iteration"].min()) if len(rows) else -1,
        last_iteration=int(rows["iteration"].max()) if len(rows) else -1,
    )


def warm_note(left_out: int) -> str:
    """Return a sentence on the warm-up iterations that means leave out; empty if there are none.

    Examples
    --------
    >>> warm_note(3)
    'The first iterations of 3 cells are left out: they warm up.'
    """
    if not left_out:
        return ""
    if left_out == 1:
        return "The first iteration is left out: it warms up."
    return f"The first iterations of {left_out} cells are left out: they warm up."


def left_out_notes(every: Rows) -> tuple[str, ...]:
    """Return sentences on the iterations of `every` that `typical` leaves out, with the reasons."""
    used = typical(every)
    sentences = (
        warm_note(first_left_out(every, used)),
        profiled_note(_count(every[profiled(every)]), left_out=not profiled(used).any()),
    )
    return tuple(filter(None, sentences))


def first_left_out(every: Rows, used: Rows) -> int:
    """Return how many first iterations of cells the rows `used` leave out of the rows `every`."""
    return _count(every[first_of_cell(every)]) if len(used) < len(every) else 0


def profiled_note(count_profiled: int, *, left_out: bool) -> str:
    """Return a sentence on the iterations that were profiled; empty if there are none."""
    if not count_profiled:
        return ""
    count = "1 iteration" if count_profiled == 1 else f"{count_profiled:,} iterations"
    verb = "was" if count_profiled == 1 else "were"
    slower = "the profiler changes their duration"
    if not left_out:
        return f"The figures are of {count} that {verb} profiled: {slower}."
    return f"{count} that {verb} profiled {'is' if verb == 'was' else 'are'} left out: {slower}."


UNHEARD = (
    "Some communication is not timed (Horovod from another build, torch.distributed.rpc, more "
    "collectives than a rank keeps): its time is in the other phases"
)
"""Note on iterations with communication that cannot be timed."""


COMPILED = "A tf.function does not report its phases: all of its time is in other"
"""Note on iterations that are one compiled function."""


def notes(summary: Summary) -> tuple[str, ...]:
    """Return sentences on the limits of a summary, such as iterations that are left out."""
    sentences = [
        warm_note(summary.left_out),
        profiled_note(summary.profiled, left_out=summary.profiled_left_out),
    ]
    if summary.unheard:
        scope = "" if summary.unheard >= summary.iterations else " (in some iterations)"
        sentences.append(f"{UNHEARD}{scope}.")
    if summary.compiled:
        sentences.append(f"{COMPILED}.")
    return tuple(filter(None, sentences))


def _count(rows: Rows) -> int:
    """Return the number of distinct iterations."""
    return len(np.unique(rows["iteration"]))
