"""Figures that follow from rows: bandwidths, overlap, waiting. All times in microseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.timings.lateness import waiting_us
from workbench.timings.store import (
    PHASES,
    Rows,
    communication_unseen,
    forward_unseen,
    peers_of,
)

Column = npt.NDArray[Any]


def columns(rows: Rows) -> dict[str, Column]:
    """Return the columns of ``to_frame()`` for `rows`.

    ``algbw`` is bytes over communication time, ``busbw`` that times
    2(n-1)/n for n ranks (nccl-tests, PERFORMANCE.md), which are those of the
    process set where all went through one; Gbit/s are 10^9 bits/s. NaN where
    there is nothing to divide, or where it is not known: what a rank
    communicated that nothing could time is in its other phases.
    """
    micro = {f"{phase}_us": rows[f"{phase}_ns"] / 1e3 for phase in PHASES}
    unseen = forward_unseen(rows)
    for name in ("data_us", "forward_us"):
        micro[name] = np.where(unseen, np.nan, micro[name])
    silent = communication_unseen(rows)
    communication = rows["communication_ns"]
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
        "exposed_us": np.where(silent, np.nan, micro["exposed_us"]),
        "optimizer_us": micro["optimizer_us"],
        "wait_us": np.where(silent, np.nan, waiting_us(rows)),
        "bytes": rows["bytes"],
        "tensors": rows["tensors"],
        "algbw_gbps": algbw,
        "busbw_gbps": algbw * 2 * (n - 1) / n,  # as if all were allreduces
        "overlap": _divide(rows["overlapped_ns"], communication, some),
        "other_us": micro["other_us"],
        "copy_us": micro["copy_us"],
    }


def bandwidth_gbps(rows: Rows, *, bus: bool) -> float:
    """Return the algorithm or bus bandwidth of rows together: all bytes over all their time.

    That is the mean of single ones by the time that each took. NaN where
    nothing was communicated.
    """
    n = np.maximum(peers_of(rows), 1)
    bits = rows["bytes"] * 8.0 * (2 * (n - 1) / n if bus else 1.0)
    some = rows["communication_ns"] > 0
    time_ns = rows["communication_ns"][some].sum()
    return float(bits[some].sum() / time_ns) if time_ns else float("nan")


def bus_factor(kind: str, ranks: int) -> float:
    """Return what a collective's algorithm bandwidth is multiplied by for its bus bandwidth.

    After nccl-tests' PERFORMANCE.md, for the bytes that one rank hands over: an
    allgather's total is `ranks` times that, a sparse allreduce is allgathers.
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
