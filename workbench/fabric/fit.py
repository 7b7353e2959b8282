"""Fitting a line to a measured sweep of collectives: T(S) = a + b S."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.errors import UsageError

UNRELIABLE = 0.5
"""A line that is further than this from one of the times that it was fitted to predicts nothing."""


@dataclass(frozen=True)
class FittedFabric:
    """What this fabric gives, as a line through a sweep of allreduces.

    Attributes
    ----------
    n
        Ranks that took part.
    fixed_us
        Time of an empty allreduce.
    us_per_byte
        Further time per byte of payload.
    error
        Largest relative error of the line at the sizes that were measured.
    sizes_bytes, measured_us
        The sweep: sizes and their median times.
    """

    n: int
    fixed_us: float
    us_per_byte: float
    error: float
    sizes_bytes: tuple[int, ...]
    measured_us: tuple[float, ...]

    @property
    def reliable(self) -> bool:
        """Whether the line describes what was measured, so that advice may rest on it."""
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

    def predict_us(self, size: float) -> float:
        """Return what an allreduce of `size` bytes should take."""
        return self.fixed_us + self.us_per_byte * size

    @property
    def busbw_gbps(self) -> float:
        """Bus bandwidth of a very large allreduce, 10^9 bits per second.

        That is 2(n-1)/n times its algorithm bandwidth (nccl-tests).
        """
        return 2 * (self.n - 1) / self.n * 8 / (self.us_per_byte * 1e3)


def fit(sizes_bytes: list[int], measured_us: list[float], n: int) -> FittedFabric:
    """Return the line with the least squared relative error, neither part negative.

    Parameters
    ----------
    sizes_bytes, measured_us
        At least two sizes, and their median times.
    n
        Ranks that took part.
    """
    if len(set(sizes_bytes)) < 2 or len(sizes_bytes) != len(measured_us):
        raise UsageError(
            f"Cannot fit a line to {len(set(sizes_bytes))} sizes and {len(measured_us)} times: it "
            "takes two sizes, and a time for each. Measure more sizes."
        )
    size, time = np.asarray(sizes_bytes, float), np.asarray(measured_us, float)
    # each row over its time: what is squared is the relative error; sizes in
    # units of the largest, or the two unknowns are too far apart to solve for
    scale = size.max()
    rows = np.stack([1 / time, size / scale / time], axis=1)
    fixed, slope = _least_squares(rows)
    slope = max(slope / scale, np.finfo(float).tiny)
    error = float(np.abs((fixed + slope * size) / time - 1).max())
    return FittedFabric(
        n, float(fixed), float(slope), error, tuple(sizes_bytes), tuple(measured_us)
    )


def _least_squares(rows: np.ndarray) -> tuple[float, float]:
    """Return x >= 0 with the least ``|rows @ x - 1|``; with two unknowns, the edges suffice."""
    free = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0]
    if (free >= 0).all():
        return float(free[0]), float(free[1])
    along = [float(column.sum() / (column @ column)) for column in rows.T]
    left = [float(((rows[:, k] * along[k] - 1) ** 2).sum()) for k in (0, 1)]
    return (along[0], 0.0) if left[0] < left[1] else (0.0, along[1])
