"""A scaling study: one cell at several numbers of ranks, against what the fabric allows."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import SnapshotError, UsageError
from workbench.fabric import FittedFabric, ring_us
from workbench.fabric.plan_figures import fully_overlapped
from workbench.ranks import checked_int
from workbench.resources.codec import decode
from workbench.safefiles import load_json, read_file, write_regular
from workbench.timings.derive import columns
from workbench.timings.store import warm

if TYPE_CHECKING:
    import pandas as pd

    from workbench.cluster import Cluster

_VERSION = 1
_LARGEST_FILE = 1 << 20
_LEAST_ITERATIONS = 6
"""Fewer have no 95 % interval of their median."""


@dataclass(frozen=True)
class ScalingPoint:
    """The iterations of the cell at one number of ranks.

    Attributes
    ----------
    ranks
        Number of ranks.
    iterations
        Number of iterations measured, without the first of the cell.
    iteration_us
        Median time of an iteration, of the slowest rank in each.
    low_us, high_us
        Its 95 % interval, from the order statistics of the median (at least six iterations).
    exposed_us
        Mean time in which ranks waited for communication; None if it was not timed.
    efficiency
        Throughput, divided by that of as many ranks as fast as those of the smallest size.
    nominal, calibrated
        The efficiency that the link's rate allows, and that of the calibrated fabric, each
        without and with full overlap; None if unknown, such as for an unreliable calibration.
    """

    ranks: int
    iterations: int
    iteration_us: float
    low_us: float
    high_us: float
    exposed_us: float | None
    efficiency: float
    nominal: tuple[float, float] | None = None
    calibrated: tuple[float, float] | None = None


@dataclass(frozen=True)
class ScalingStudy:
    """Several points of one cell; can be saved, loaded and compared.

    Attributes
    ----------
    label
        Name of the study, such as ``"TCP"``.
    points
        In the order of the number of ranks.
    transports
        How collectives were carried, as the libraries report it.
    hosts
        The VMs of the largest size.
    """

    label: str
    points: tuple[ScalingPoint, ...]
    transports: tuple[str, ...] = field(default=())
    hosts: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        head = f"{'ranks':>5}  {'iteration ms':>12}  {'95 % interval':>17}  {'efficiency':>10}"
        lines = [f"{self.label}: {', '.join(self.transports) or 'transport unknown'}", head]
        for point in self.points:
            interval = f"{point.low_us / 1e3:.2f} to {point.high_us / 1e3:.2f}"
            lines.append(
                f"{point.ranks:>5}  {point.iteration_us / 1e3:>12.2f}  {interval:>17}  "
                f"{point.efficiency:>10.0%}"
                f"{_allowed('nominal', point.nominal)}{_allowed('calibrated', point.calibrated)}"
            )
        return "\n".join(lines)

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each number of ranks; columns as in `ScalingPoint`."""
        import pandas as pd

        return pd.DataFrame(self.points)

    def compare(self, other: ScalingStudy) -> pd.DataFrame:
        """Return the ratios of `other`'s iterations to these, for the sizes that both have.

        Returns
        -------
        pandas.DataFrame
            ``ranks``, ``iteration_us`` and ``other_us``, their ``ratio``, and ``low`` and
            ``high``, between which it is if both medians are within their intervals. A ratio of
            1.05 means that an iteration takes 5 % longer in `other`.

        Raises
        ------
        UsageError
            The studies have no size in common.
        """
        import pandas as pd

        theirs = {point.ranks: point for point in other.points}
        rows = [
            {
                "ranks": point.ranks,
                "iteration_us": point.iteration_us,
                "other_us": theirs[point.ranks].iteration_us,
                "ratio": theirs[point.ranks].iteration_us / point.iteration_us,
                "low": theirs[point.ranks].low_us / point.high_us,
                "high": theirs[point.ranks].high_us / point.low_us,
            }
            for point in self.points
            if point.ranks in theirs
        ]
        if not rows:
            raise UsageError(
                f"{self.label} and {other.label}: no number of ranks in common. Run both with the "
                "same sizes."
            )
        return pd.DataFrame(rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the study as JSON.

        Raises
        ------
        UsageError
            The file cannot be written.
        """
        text = json.dumps({"version": _VERSION, **asdict(self)}, indent=2, allow_nan=False)
        try:
            write_regular(path, text)
        except OSError as error:
            raise UsageError(
                f"{path}: cannot write the study ({error.strerror}). Name another file."
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ScalingStudy:
        """Read a study that `save` has written.

        Raises
        ------
        UsageError
            There is no such file, or it holds no study.
        """
        try:
            plain = load_json(read_file(path, _LARGEST_FILE))
            study = decode(cls, plain, "")
            if plain.get("version") != _VERSION:
                raise ValueError("it is of another version")
            if not all(_is_measured(point) for point in study.points):
                raise ValueError("its values are not those of a measurement")
        except (OSError, ValueError, SnapshotError) as error:
            raise UsageError(
                f"{path}: not a scaling study ({error}). Give a file that ScalingStudy.save wrote."
            ) from error
        return study


def scaling_study(
    cluster: Cluster,
    source: str,
    ranks: Iterable[int],
    *,
    label: str = "",
    nominal_gbps: float | None = None,
    timeout: str | float | None = None,
) -> ScalingStudy:
    """Run a cell at several numbers of ranks and measure its iterations.

    The cluster is resized for each and has its earlier number of ranks afterwards; variables of
    ranks that were taken away are lost, so the cell must create all it needs. Each rank should
    have the same work at every size (weak scaling): the efficiency assumes it.

    Parameters
    ----------
    cluster
        A running cluster.
    source
        The cell, with a training loop.
    ranks
        Numbers of ranks, such as ``(1, 2, 4)``.
    label
        Name of the study; by default its transports.
    nominal_gbps
        Rate of each VM's link in one direction, in 10^9 bits per second; for sizes with ranks
        on several VMs.
    timeout
        For each run of the cell: seconds, or such as ``"5m"``.

    Raises
    ------
    UsageError
        No size was given, recording is off, or a run recorded fewer than six iterations
        after the first.
    """
    sizes = sorted({checked_int(one, "ranks", 1) for one in ranks})
    if not sizes:
        raise UsageError("scaling_study: no number of ranks given. Give some, such as (1, 2, 4).")
    if not cluster.recording:
        raise UsageError(
            "scaling_study: recording is off. Switch it on with cluster.recording = True."
        )
    before = cluster.n
    fabric = cluster.fabric if cluster.fabric and cluster.fabric.reliable else None
    try:
        measured = [_run(cluster, source, size, timeout) for size in sizes]
    finally:
        if cluster.state == "ready" and cluster.n != before:
            cluster.resize(before)
    transports = tuple(sorted({one for size in measured for one in size.transports}))
    hosts = dict.fromkeys(vm for size in measured for vm in size.vms)
    return ScalingStudy(
        label=label or ", ".join(transports) or "study",
        points=tuple(_point_of(one, measured[0], fabric, nominal_gbps) for one in measured),
        transports=transports,
        hosts=tuple(hosts),
    )


@dataclass(frozen=True)
class _MeasuredSize:
    """The iterations at one number of ranks, and where these were."""

    times_us: np.ndarray
    exposed_us: float | None
    moved_bytes: int
    transports: frozenset[str]
    vms: tuple[str, ...]


def _run(cluster: Cluster, source: str, size: int, timeout: str | float | None) -> _MeasuredSize:
    """Run the cell on `size` ranks, and measure its iterations."""
    if cluster.n != size:
        cluster.resize(size)
    earlier = cluster.timings.rows()["cell"].max(initial=-1)
    cluster.run(source, timeout=timeout)
    rows = cluster.timings.rows()
    rows = rows[rows["cell"] > earlier]
    rows = warm(rows) if len(rows) else rows
    table = columns(rows)
    numbers, places = np.unique(rows["iteration"], return_inverse=True)
    if len(numbers) < _LEAST_ITERATIONS:
        raise UsageError(
            f"scaling_study: the cell recorded {len(numbers)} iterations on {size} "
            f"rank{'s' * (size > 1)}, without the first, and at least {_LEAST_ITERATIONS} are "
            "needed. Train for more iterations in it."
        )
    slowest = np.zeros(len(numbers))
    np.maximum.at(slowest, places, table["iteration_us"])
    exposed = table["exposed_us"][~np.isnan(table["exposed_us"])]
    return _MeasuredSize(
        times_us=np.sort(slowest),
        exposed_us=float(exposed.mean()) if len(exposed) else None,
        moved_bytes=round(float(rows["bytes"].mean())),
        transports=frozenset(one.transport for one in cluster.ranks if one.transport),
        vms=tuple(one.vm for one in cluster.ranks),
    )


def _point_of(
    measured: _MeasuredSize,
    smallest: _MeasuredSize,
    fabric: FittedFabric | None,
    gbps: float | None,
) -> ScalingPoint:
    """Return a point, with the efficiency that the fabric allows if one rank was measured."""
    times, ranks = measured.times_us, len(measured.vms)
    low, high = _interval(len(times))
    base = float(np.median(smallest.times_us))
    nominal_us = calibrated_us = None
    if len(smallest.vms) == 1:
        moved = measured.moved_bytes
        if gbps is not None and (ranks == 1 or len(set(measured.vms)) > 1):
            nominal_us = ring_us(moved, ranks, gbps)
        if fabric is not None:
            calibrated_us = fabric.predict_us(moved, ranks) if ranks > 1 else 0.0
    return ScalingPoint(
        ranks=ranks,
        iterations=len(times),
        iteration_us=float(np.median(times)),
        low_us=float(times[low]),
        high_us=float(times[high]),
        exposed_us=measured.exposed_us,
        efficiency=base / float(np.median(times)),
        nominal=_efficiency(base, nominal_us),
        calibrated=_efficiency(base, calibrated_us),
    )


def _efficiency(compute_us: float, communication_us: float | None) -> tuple[float, float] | None:
    """Return the efficiency without and with full overlap."""
    if communication_us is None:
        return None
    overlapped_us = fully_overlapped(compute_us, communication_us)
    return compute_us / (compute_us + communication_us), compute_us / overlapped_us


def _interval(count: int) -> tuple[int, int]:
    """Return the places of the sorted values that enclose the median with 95 %."""
    half = 1.96 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - half))
    return low, min(count - 1, math.ceil(count / 2 + half) - 1)


def _allowed(name: str, efficiency: tuple[float, float] | None) -> str:
    if efficiency is None:
        return ""
    low, high = efficiency
    return f", {name} {low:.0%}" + (f" to {high:.0%}" if high > low else "")


def _is_measured(point: ScalingPoint) -> bool:
    times = point.low_us, point.iteration_us, point.high_us
    return 0 < times[0] <= times[1] <= times[2] and point.ranks > 0 and point.iterations > 0
