"""A scaling study: one cell at several numbers of ranks, against what the fabric allows."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import UsageError
from workbench.fabric import FittedFabric, ModelSize, plan
from workbench.ranks import checked_int
from workbench.safefiles import load_json, read_file
from workbench.timings.derive import columns
from workbench.timings.store import Rows, warm

if TYPE_CHECKING:
    import pandas as pd

    from workbench.cluster import Cluster

_VERSION = 1
_LARGEST_FILE = 1 << 20


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
        Its 95 % interval, from the order statistics of the median.
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
        """Write the study as JSON."""
        text = json.dumps({"version": _VERSION, **asdict(self)}, indent=2, allow_nan=False)
        Path(path).write_text(text, encoding="utf-8")

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
            if plain.pop("version") != _VERSION:
                raise ValueError("it is of another version")
            points = tuple(_point(one) for one in plain.pop("points"))
            return cls(points=points, **{name: _tupled(one) for name, one in plain.items()})
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{path}: not a scaling study ({error}). Give a file that ScalingStudy.save wrote."
            ) from error


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
        Rate of each VM's link in one direction, in 10^9 bits per second.
    timeout
        For each run of the cell: seconds, or such as ``"5m"``.

    Raises
    ------
    UsageError
        No size was given, or a run recorded fewer than three iterations.
    """
    sizes = sorted({checked_int(one, "ranks", 1) for one in ranks})
    if not sizes:
        raise UsageError("scaling_study: no number of ranks given. Give some, such as (1, 2, 4).")
    before = cluster.n
    fabric = cluster.fabric if cluster.fabric and cluster.fabric.reliable else None
    measured = []
    transports: set[str] = set()
    hosts: dict[str, None] = {}
    try:
        for size in sizes:
            if cluster.n != size:
                cluster.resize(size)
            earlier = cluster.timings.rows()["cell"].max(initial=-1)
            cluster.run(source, timeout=timeout)
            rows = cluster.timings.rows()
            measured.append((size, *_measure(rows[rows["cell"] > earlier], size)))
            transports |= {one.transport for one in cluster.ranks if one.transport}
            hosts.update(dict.fromkeys(one.vm for one in cluster.ranks))
    finally:
        if cluster.state == "ready" and cluster.n != before:
            cluster.resize(before)
    points = _points(measured, fabric, nominal_gbps)
    found = tuple(sorted(transports))
    return ScalingStudy(label or ", ".join(found) or "study", points, found, tuple(hosts))


def _measure(rows: Rows, size: int) -> tuple[np.ndarray, float | None, int]:
    """Return the times of a cell's iterations, their exposed time and their bytes."""
    rows = warm(rows) if len(rows) else rows
    times = columns(rows)
    slowest = [
        times["iteration_us"][rows["iteration"] == one].max()
        for one in np.unique(rows["iteration"])
    ]
    if len(slowest) < 3:
        raise UsageError(
            f"scaling_study: the cell recorded {len(slowest)} iterations on {size} "
            f"rank{'s' * (size > 1)}, without the first, and at least 3 are needed. Train for more "
            "iterations in it."
        )
    exposed = times["exposed_us"][~np.isnan(times["exposed_us"])]
    return (
        np.sort(np.asarray(slowest)),
        float(exposed.mean()) if len(exposed) else None,
        round(float(rows["bytes"].mean())),
    )


def _points(
    measured: Sequence[tuple[int, np.ndarray, float | None, int]],
    fabric: FittedFabric | None,
    gbps: float | None,
) -> tuple[ScalingPoint, ...]:
    """Return a point for each size, with the efficiency that the fabric allows."""
    first, alone, _, _ = measured[0]
    base = float(np.median(alone))
    points = []
    for size, times, exposed, moved in measured:
        low, high = _interval(len(times))
        middle = float(np.median(times))
        allowed = _predicted(base, moved, size, fabric, gbps) if first == 1 else (None, None)
        points.append(
            ScalingPoint(
                *(size, len(times), middle, float(times[low]), float(times[high]), exposed),
                base / middle,
                *allowed,
            )
        )
    return tuple(points)


def _interval(count: int) -> tuple[int, int]:
    """Return the places of the sorted values that enclose the median with 95 %."""
    half = 1.96 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - half))
    return low, min(count - 1, math.ceil(count / 2 + half) - 1)


def _predicted(
    compute_us: float, moved: int, size: int, fabric: FittedFabric | None, gbps: float | None
) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
    """Return the efficiency of nominal and calibrated fabric, without and with overlap."""
    if size == 1:
        return ((1.0, 1.0) if gbps else None), ((1.0, 1.0) if fabric else None)
    model = ModelSize(max(1, moved // 4), max(1, moved // 4))
    found: list[tuple[float, float] | None] = []
    for options in ({"gbps": gbps}, {"fabric": fabric}):
        row: Any = plan(model, vms=size, compute_ms=compute_us / 1e3, **options).scaling[-1]
        known = row.sequential_s is not None
        found.append(
            (compute_us / 1e6 / row.sequential_s, compute_us / 1e6 / row.overlapped_s)
            if known
            else None
        )
    return found[0], found[1]


def _allowed(name: str, efficiency: tuple[float, float] | None) -> str:
    if efficiency is None:
        return ""
    low, high = efficiency
    return f", {name} {low:.0%}" + (f" to {high:.0%}" if high > low else "")


def _point(plain: dict[str, Any]) -> ScalingPoint:
    return ScalingPoint(**{name: _tupled(value) for name, value in plain.items()})


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
