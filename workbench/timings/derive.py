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
"""The columns that add up to `exposed_us`."""


def columns(rows: Rows, rings: Iterable[Lateness] | None = None) -> dict[str, Column]:
    """Return the columns of ``to_frame()`` for `rows`.

    `rings` is the result of `lateness` for these rows, if the caller has it. ``algbw`` is bytes
    over communication time; ``busbw`` is ``algbw`` times 2(n-1)/n for n ranks (nccl-tests,
    PERFORMANCE.md). n is the size of the process set if all collectives used the same one. Gbit/s
    are 10^9 bits/s. Unknown figures are NaN. The time of communication that could not be timed is
    in the other phases.
    """
    phases_us = {f"{phase}_us": rows[f"{phase}_ns"] / 1e3 for phase in PHASES}
    is_forward_unseen = forward_unseen(rows)
    for name in ("data_us", "forward_us"):
        phases_us[name] = np.where(is_forward_unseen, np.nan, phases_us[name])
    is_compiled = phases_unseen(rows)
    for name in ("backward_us", "optimizer_us"):
        phases_us[name] = np.where(is_compiled, np.nan, phases_us[name])
    is_untimed = communication_unseen(rows)
    is_exposed_unknown = is_untimed | is_compiled
    communication = rows["communication_ns"]
    parts = exposed_parts(rows, lateness(rows) if rings is None else rings)
    has_communication = communication > 0
    algbw = _divide(rows["bytes"] * 8.0, communication, has_communication)
    n = np.maximum(peers_of(rows), 1)
    return {
        "iteration": rows["iteration"],
        "rank": rows["rank"],
        "iteration_us": rows["iteration_ns"] / 1e3,
        "data_us": phases_us["data_us"],
        "forward_us": phases_us["forward_us"],
        "backward_us": phases_us["backward_us"],
        "communication_us": np.where(is_untimed, np.nan, communication / 1e3),
        "exposed_us": np.where(is_exposed_unknown, np.nan, phases_us["exposed_us"]),
        "optimizer_us": phases_us["optimizer_us"],
        "wait_us": np.where(is_exposed_unknown, np.nan, parts.waiting_us),
        "queued_us": np.where(is_exposed_unknown, np.nan, parts.queued_us),
        "transfer_us": np.where(is_exposed_unknown, np.nan, parts.transfer_us),
        "bytes": rows["bytes"],
        "tensors": rows["tensors"],
        "algbw_gbps": algbw,
        "busbw_gbps": algbw * 2 * (n - 1) / n,  # as if all collectives were allreduces
        "overlap": _divide(rows["overlapped_ns"], communication, has_communication & ~is_compiled),
        "other_us": phases_us["other_us"],
        "copy_us": phases_us["copy_us"],
        "samples": samples(rows),
        "samples_per_s": samples_per_s(rows),
        "communication_cpu_us": cpu_us(rows),
    }


def mean_parts(
    exposed: Column, wait: Column, queued: Column, transfer: Column
) -> tuple[float, float, float]:
    """Return the means of the parts of the exposed time, which add up to the mean exposed time.

    The mean exposed time is divided in the same proportions as in the rows with known parts. A part
    is NaN if it is unknown in all rows with exposed time.
    """
    is_exposed = exposed > 0
    mean = float(exposed[~np.isnan(exposed)].mean()) if not np.isnan(exposed).all() else np.nan
    if not is_exposed.any():
        return mean, mean, mean  # 0, or unknown
    has_wait = is_exposed & ~np.isnan(wait)
    has_transfer = is_exposed & ~np.isnan(transfer)
    waiting = mean * wait[has_wait].sum() / exposed[has_wait].sum() if has_wait.any() else np.nan
    transfer_sum = transfer[has_transfer].sum()
    transfer_or_queueing = transfer[has_transfer].sum() + queued[has_transfer].sum()
    share = (
        (transfer_sum / transfer_or_queueing if transfer_or_queueing > 0 else 0.0)
        if has_transfer.any()
        else np.nan
    )
    others = mean - waiting
    return float(waiting), float(others * (1 - share)), float(others * share)


def group_means(values: Column, groups: Column, weights: Column) -> tuple[Column, Column]:
    """Return the weighted mean of each group's known values, and the sum of these values' weights.

    `groups` are numbers from 0; a group without known values has the mean NaN.

    Examples
    --------
    >>> values = np.array([1.0, 3.0, np.nan, np.nan])
    >>> means, weights = group_means(values, np.array([0, 0, 0, 1]), np.ones(4))
    >>> means.tolist(), weights.tolist()
    ([2.0, nan], [2.0, 0.0])
    """
    is_known = ~np.isnan(values)
    count = int(groups.max(initial=-1)) + 1
    total = np.bincount(groups[is_known], weights[is_known], count)
    sums = np.bincount(groups[is_known], values[is_known] * weights[is_known], count)
    return _divide(sums, total, total > 0), total


def bus_factor(kind: str, ranks: int) -> float:
    """Return the ratio of a collective's bus bandwidth to its algorithm bandwidth.

    The ratios are from nccl-tests' PERFORMANCE.md, for the bytes that one rank submits. The total
    bytes of an allgather are `ranks` times as many, and a sparse allreduce consists of allgathers.

    Examples
    --------
    >>> bus_factor("allreduce", 4)
    1.5
    >>> bus_factor("broadcast", 4)
    1.0
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
    """Return quotients where the mask `where` is true, and NaN elsewhere."""
    return np.asarray(np.divide(above, below, out=np.full(len(below), np.nan), where=where))
