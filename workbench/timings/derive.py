"""Figures computed from rows: bandwidths, overlap, waiting; times in microseconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.timings.lateness import Lateness, exposed_parts, lateness
from workbench.timings.progress import cpu_us, samples, samples_per_s
from workbench.timings.store import (
    PHASES,
    Rows,
    communication_unseen,
    forward_unseen,
    peers_of,
    phases_unseen,
)

Column = npt.NDArray[Any]

EXPOSED_PARTS = ("wait_us", "queued_us", "transfer_us")
"""The columns that `exposed_us` consists of."""


def columns(rows: Rows, rings: Iterable[Lateness] | None = None) -> dict[str, Column]:
    """Return the columns of ``to_frame()`` for `rows`; `rings` are their `lateness`, if known.

    ``algbw`` is bytes over communication time; ``busbw`` is ``algbw`` times 2(n-1)/n for n
    ranks, those of the process set if all collectives used one (nccl-tests, PERFORMANCE.md).
    Gbit/s are 10^9 bits/s. Unknown figures are NaN. The time of communication that could not be
    timed is in the other phases.
    """
    micro = {f"{phase}_us": rows[f"{phase}_ns"] / 1e3 for phase in PHASES}
    unseen = forward_unseen(rows)
    for name in ("data_us", "forward_us"):
        micro[name] = np.where(unseen, np.nan, micro[name])
    compiled = phases_unseen(rows)
    for name in ("backward_us", "optimizer_us"):
        micro[name] = np.where(compiled, np.nan, micro[name])
    silent = communication_unseen(rows)
    unknown = silent | compiled
    communication = rows["communication_ns"]
    parts = exposed_parts(rows, lateness(rows) if rings is None else rings)
    some = communication > 0
    algbw = _divide(rows["bytes"] * 8.0, communication, some)
    n = np.maximum(peers_of(rows), 1)
    return {
        "iteration": rows["iteration"],
        "rank": rows["rank"],
        "iteration_us": rows["iteration_ns"] / 1e3,
        "data_us": micro["data_us"],
        "forward_us": micro["forward_us"],
        "backward_us": micro["backward_us"],
        "communication_us": np.where(silent, np.nan, communication / 1e3),
        "exposed_us": np.where(unknown, np.nan, micro["exposed_us"]),
        "optimizer_us": micro["optimizer_us"],
        "wait_us": np.where(unknown, np.nan, parts.waiting_us),
        "queued_us": np.where(unknown, np.nan, parts.queued_us),
        "transfer_us": np.where(unknown, np.nan, parts.transfer_us),
        "bytes": rows["bytes"],
        "tensors": rows["tensors"],
        "algbw_gbps": algbw,
        "busbw_gbps": algbw * 2 * (n - 1) / n,  # as if all were allreduces
        "overlap": _divide(rows["overlapped_ns"], communication, some & ~compiled),
        "other_us": micro["other_us"],
        "copy_us": micro["copy_us"],
        "samples": samples(rows),
        "samples_per_s": samples_per_s(rows),
        "communication_cpu_us": cpu_us(rows),
    }


def mean_parts(
    exposed: Column, wait: Column, queued: Column, transfer: Column
) -> tuple[float, float, float]:
    """Return the means of the parts of the exposed time, which add up to its mean.

    It is divided as in the rows in which the parts are known. A part is NaN if it is unknown
    in all rows with exposed time.
    """
    some = exposed > 0
    mean = float(exposed[~np.isnan(exposed)].mean()) if not np.isnan(exposed).all() else np.nan
    if not some.any():
        return mean, mean, mean  # 0, or unknown
    known, timed = some & ~np.isnan(wait), some & ~np.isnan(transfer)
    waiting = mean * wait[known].sum() / exposed[known].sum() if known.any() else np.nan
    spent, rest = transfer[timed].sum(), transfer[timed].sum() + queued[timed].sum()
    share = (spent / rest if rest > 0 else 0.0) if timed.any() else np.nan
    others = mean - waiting
    return float(waiting), float(others * (1 - share)), float(others * share)


def group_means(values: Column, groups: Column, weights: Column) -> tuple[Column, Column]:
    """Return the weighted mean of the known values of each group, and the sum of their weights.

    `groups` are numbers from 0; a group without known values has the mean NaN.
    """
    known, count = ~np.isnan(values), int(groups.max(initial=-1)) + 1
    total = np.bincount(groups[known], weights[known], count)
    sums = np.bincount(groups[known], values[known] * weights[known], count)
    return _divide(sums, total, total > 0), total


def bus_factor(kind: str, ranks: int) -> float:
    """Return the ratio of a collective's bus bandwidth to its algorithm bandwidth.

    From nccl-tests' PERFORMANCE.md, for the bytes that one rank submits: the total of an
    allgather is `ranks` times as large, and a sparse allreduce consists of allgathers.
    """
    others = max(ranks, 1) - 1
    return {
        "allreduce": 2 * others / max(ranks, 1),
        "adasum": 2 * others / max(ranks, 1),
        "allgather": float(others),
        "sparse allreduce": float(others),
        "alltoall": others / max(ranks, 1),
        "reducescatter": others / max(ranks, 1),
    }.get(kind, 1.0)


def _divide(above: Column, below: Column, where: Column) -> Column:
    return np.asarray(np.divide(above, below, out=np.full(len(below), np.nan), where=where))
