"""Fit a line to a measured sweep of collectives: T(S) = a + b S."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.errors import UsageError

UNRELIABLE = 0.5
"""Largest relative error of a fitted line that is still used for predictions."""


@dataclass(frozen=True)
class FittedFabric:
    """The measured performance of a fabric, as a line through a sweep of allreduces.

    Attributes
    ----------
    n
        Number of ranks in the sweep.
    fixed_us
        Time of an empty allreduce.
    us_per_byte
        Additional time per byte of payload.
    error
        Largest relative error of the line at the measured sizes.
    sizes_bytes, measured_us
        The measured sizes and their median times.
    """

    n: int
    fixed_us: float
    us_per_byte: float
    error: float
    sizes_bytes: tuple[int, ...]
    measured_us: tuple[float, ...]

    @property
    def reliable(self) -> bool:
        """Whether the line fits well enough for predictions."""
        return self.error <= UNRELIABLE

    @property
    def caveat(self) -> str:
        """Why predictions are not used, or an empty string."""
        if self.reliable:
            return ""
        return (
            f"calibration is unreliable (error {self.error:.0%}): "
            "run cluster.calibrate() again on an idle cluster"
        )

    def __repr__(self) -> str:
        """Return the line, its error and the measured times in words."""
        lines = [
            (
                f"An allreduce on {self.n} ranks takes {self.fixed_us:,.0f} µs and "
                f"{self.us_per_byte * 1e6:,.0f} µs per MB ({self.busbw_gbps:,.2f} Gbit/s bus "
                f"bandwidth), within {self.error:.0%} of each measured time."
            ),
            *filter(None, [self.caveat]),
            f"{'bytes':>12}  {'measured µs':>12}  {'line µs':>12}",
        ]
        for size, measured in zip(self.sizes_bytes, self.measured_us, strict=True):
            lines.append(f"{size:>12,}  {measured:>12,.0f}  {self.predict_us(size):>12,.0f}")
        return "\n".join(lines)

    def predict_us(self, size: float) -> float:
        """Return the predicted time of an allreduce of `size` bytes."""
        return self.fixed_us + self.us_per_byte * size

    @property
    def busbw_gbps(self) -> float:
        """Bus bandwidth of a very large allreduce, 10^9 bits per second.

        That is 2(n-1)/n times its algorithm bandwidth (nccl-tests).
        """
        return 2 * (self.n - 1) / self.n * 8 / (self.us_per_byte * 1e3)


def fit(sizes_bytes: list[int], measured_us: list[float], n: int) -> FittedFabric:
    """Return the line with the smallest squared relative error and no negative coefficient.

    Parameters
    ----------
    sizes_bytes, measured_us
        At least two sizes, and their median times.
    n
        Number of ranks in the sweep.
    """
    if len(set(sizes_bytes)) < 2 or len(sizes_bytes) != len(measured_us):
        raise UsageError(
            f"Cannot fit a line to {len(set(sizes_bytes))} sizes and {len(measured_us)} times: at "
            "least two sizes and one time for each are needed. Measure more sizes."
        )
    size, time = np.asarray(sizes_bytes, float), np.asarray(measured_us, float)
    # Each row is divided by its time, so that relative errors are squared. Sizes are in units
    # of the largest, because otherwise the system would be ill-conditioned.
    scale = size.max()
    rows = np.stack([1 / time, size / scale / time], axis=1)
    fixed, slope = _least_squares(rows)
    slope = max(slope / scale, np.finfo(float).tiny)
    error = float(np.abs((fixed + slope * size) / time - 1).max())
    return FittedFabric(
        n, float(fixed), float(slope), error, tuple(sizes_bytes), tuple(measured_us)
    )


def _least_squares(rows: np.ndarray) -> tuple[float, float]:
    """Return x >= 0 with the smallest ``|rows @ x - 1|``; one of the two may be 0."""
    inside = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0]
    if (inside >= 0).all():
        return float(inside[0]), float(inside[1])
    edges = [float(column.sum() / (column @ column)) for column in rows.T]
    errors = [float(((rows[:, k] * edges[k] - 1) ** 2).sum()) for k in (0, 1)]
    return (edges[0], 0.0) if errors[0] < errors[1] else (0.0, edges[1])
