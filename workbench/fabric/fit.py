"""Fit of the time of an allreduce as a function of its size, to a measured sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from workbench.errors import UsageError

UNRELIABLE = 0.5
"""Largest `FittedFabric.error` of a fit that is still used for predictions."""
BUSY = 0.15
"""If the halves of a sweep differ by this share, something else uses the fabric or the cores."""
_ERROR_QUANTILE = 0.9
"""The error of a fit is this quantile of the relative errors at all sizes."""
_BENDS = (0, 1, 2)
"""Numbers of bends that are tried, in this order."""
_SIZES_PER_BEND = 4
"""Minimum number of sizes for each line of a fit with bends."""
_SMALL_ERROR = 0.01
"""Up to this relative error, the fit minimizes squares of errors; above it, their magnitude."""
_CERTAIN_NOISE = 0.05
"""Times with a smaller relative standard error than this have equal weights."""
_COPY_NAMES = {"PCIe": "host to GPU", "device to host": "GPU to host"}
"""Names of copies in text, if they differ from the keys of `FittedFabric.devices`."""
_NO_BANDWIDTH = "no bandwidth: measure larger sizes"

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FittedFabric:
    """The measured time of allreduces on a fabric by their size, as one to three lines.

    Attributes
    ----------
    n
        Number of ranks in the sweep.
    error
        Relative error that nine of ten measured sizes do not exceed; held-out sizes are included.
    sizes_bytes, measured_us
        The sizes that the fit used, and their times in microseconds, as means over ranks.
    knots_bytes, knots_us
        Ends of the lines, as sizes and times. The first end is at 0 bytes; the last line continues
        beyond its end.
    held_out
        Sizes that were measured but not used by the fit, with their times in microseconds and the
        relative errors of the fit.
    held_out_noise
        Relative standard errors of the held-out times. A smaller difference between fit and
        measurement may be due to the measurement. Empty if they are unknown.
    disagreement
        Relative difference between the two halves of the sweep's rounds, as median over sizes; 0
        if the sweep has only one round.
    context
        The measured cluster: ``"ranks"``, ``"VMs"``, ``"backend"``, ``"device"`` and
        ``"transport"``; empty if it is unknown.
    measured_at
        Time of the measurement in seconds since the epoch; 0 if unknown.
    devices
        Measured rates of copies in GB/s, as medians of several runs. The keys are the VM, and
        within it the kind of `nominal.Bandwidth` or ``"device to host"``.
    device_spreads
        Half of the range of these runs, as a share of the median; keys as in `devices`.

    Examples
    --------
    >>> fabric = fit([1_000, 1_000_000], [50.0, 1_049.0], n=4)
    >>> round(fabric.fixed_us)
    49
    >>> round(fabric.predict_us(2_000_000))
    2049
    """

    n: int
    error: float
    sizes_bytes: tuple[int, ...]
    measured_us: tuple[float, ...]
    knots_bytes: tuple[float, ...]
    knots_us: tuple[float, ...]
    held_out: tuple[tuple[int, float, float], ...] = ()
    disagreement: float = 0.0
    context: Mapping[str, str] = field(default_factory=dict)
    measured_at: float = 0.0
    devices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    held_out_noise: tuple[float, ...] = ()
    device_spreads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def fixed_us(self) -> float:
        """Time of an empty allreduce, in microseconds."""
        return self.knots_us[0]

    @property
    def us_per_byte(self) -> float:
        """Additional time per byte of a large payload, in microseconds."""
        last_line_bytes = self.knots_bytes[-1] - self.knots_bytes[-2]
        return (self.knots_us[-1] - self.knots_us[-2]) / last_line_bytes

    @property
    def held_out_error(self) -> float:
        """Median relative error at the held-out sizes; NaN without such sizes."""
        errors = [error for _, _, error in self.held_out]
        return float(np.median(errors)) if errors else math.nan

    @property
    def reliable(self) -> bool:
        """Whether the fit is good enough for predictions, and has a bandwidth."""
        return self.error <= UNRELIABLE and math.isfinite(self.busbw_gbps)

    @property
    def caveat(self) -> str:
        """The reason why predictions are not used or may be wrong; an empty string without one."""
        if self.n == 1:
            return "a single rank has no collectives: only copies were measured."
        if math.isinf(self.busbw_gbps):
            return f"{_NO_BANDWIDTH}, as the times of these do not grow with the size"
        if not self.reliable:
            return (
                f"calibration is unreliable (error {self.error:.0%}): "
                "run cluster.calibrate() again on an idle cluster"
            )
        if self.disagreement > BUSY:
            return (
                f"the fabric or the cores were busy: repeated sweeps differ by "
                f"{self.disagreement:.0%}. Run cluster.calibrate() again on an idle cluster"
            )
        return ""

    @property
    def sentences(self) -> list[str]:
        """Sentences about the fit, its errors at the held-out sizes, its caveat, and copies."""
        if self.n == 1:
            return [*filter(None, [self.caveat]), *self._copies]
        large = (
            f"{self.us_per_byte * 1e6:,.0f} µs per MB ({self.busbw_gbps:,.2f} Gbit/s bus bandwidth)"
            if math.isfinite(self.busbw_gbps)
            else f"an unknown time per MB ({_NO_BANDWIDTH})"
        )
        summary = (
            f"An allreduce on {self.n} ranks takes {self.fixed_us:,.0f} µs and, if large, "
            f"{large}, within {self.error:.0%} of nine in ten measured times."
        )
        lines = [summary]
        if self.held_out:
            sizes = ", ".join(f"{size:,}" for size, _, _ in self.held_out)
            worst = max(error for _, _, error in self.held_out)
            lines.append(
                f"At sizes that the fit has not used ({sizes} bytes): median error "
                f"{self.held_out_error:.1%}, largest {worst:.1%}.{self._noise}"
            )
        return [*lines, *filter(None, [self.caveat]), *self._copies]

    @property
    def _copies(self) -> list[str]:
        """A sentence about the rates of copies on the VMs, in a list; empty if not measured."""
        kinds = dict.fromkeys(kind for rates in self.devices.values() for kind in rates)
        if not kinds:
            return []
        vms = list(self.devices)
        vm_text = vms[0] if len(vms) == 1 else f"{len(vms)} VMs"
        return [f"Copies on {vm_text}: {', '.join(map(self._describe_copy, kinds))}."]

    def _describe_copy(self, kind: str) -> str:
        """Return the rate of a kind of copies; for several VMs, the range and the slowest VM."""
        rates = {vm: rates[kind] for vm, rates in self.devices.items() if kind in rates}
        slowest = min(rates, key=rates.__getitem__)
        low, high = (f"{rate:,.1f}" for rate in (rates[slowest], max(rates.values())))
        text = low if low == high else f"{low} ({slowest}) to {high}"
        spreads = [by_kind[kind] for by_kind in self.device_spreads.values() if kind in by_kind]
        spread = f" (± {max(spreads):.0%})" if spreads else ""
        return f"{_COPY_NAMES.get(kind, kind)} {text} GB/s{spread}"

    @property
    def _noise(self) -> str:
        if not self.held_out_noise:
            return ""
        return f" Noise of these times: up to {max(self.held_out_noise):.1%}."

    def __repr__(self) -> str:
        """Return the sentences, and the measured and fitted times as a table."""
        lines = self.sentences
        if not self.sizes_bytes:
            return "\n".join(lines)
        lines.append(f"{'bytes':>12}  {'measured µs':>12}  {'fitted µs':>12}")
        rows = [*zip(self.sizes_bytes, self.measured_us, strict=True)]
        for size, measured in sorted([*rows, *((size, us) for size, us, _ in self.held_out)]):
            lines.append(f"{size:>12,}  {measured:>12,.0f}  {self.predict_us(size):>12,.0f}")
        return "\n".join(lines)

    def predict_us(self, size_bytes: float, n: int | None = None) -> float:
        """Return the predicted time of an allreduce of `size_bytes` bytes.

        Parameters
        ----------
        size_bytes
            Size of the buffer of one rank, 0 or more.
        n
            Another number of ranks, in a ring on the same links. The time per byte is then
            proportional to (n-1)/n, and the time of an empty allreduce to n-1. By default the
            number of ranks in the sweep.

        Raises
        ------
        UsageError
            The size or `n` is not possible, or the calibration has one rank and `n` is larger.
        """
        if not (size_bytes >= 0 and math.isfinite(size_bytes)):
            raise UsageError(f"size_bytes={size_bytes}: not a size. Give 0 or more bytes.")
        beyond_us = max(0.0, size_bytes - self.knots_bytes[-1]) * self.us_per_byte
        us = float(np.interp(size_bytes, self.knots_bytes, self.knots_us)) + beyond_us
        if n is None or n == self.n:
            return us
        if n < 1:
            raise UsageError(f"n={n}: not a number of ranks. Give 1 or more.")
        if n == 1:
            return 0.0
        if self.n == 1:
            raise UsageError(
                "This calibration is of 1 rank, which has no collectives. Calibrate several ranks."
            )
        fixed_us = self.fixed_us * (n - 1) / (self.n - 1)
        return fixed_us + (us - self.fixed_us) * (n - 1) / n * self.n / (self.n - 1)

    @property
    def busbw_gbps(self) -> float:
        """Bus bandwidth of a very large allreduce, 10^9 bits per second; infinite if unknown.

        The bus bandwidth is 2(n-1)/n times the algorithm bandwidth, as in nccl-tests. It is
        unknown if the last line is flat.
        """
        if self.knots_us[-1] - self.knots_us[-2] <= _SMALL_ERROR * self.knots_us[-1]:
            return math.inf
        return 2 * (self.n - 1) / self.n * 8 / (self.us_per_byte * 1e3)


ONE_RANK = FittedFabric(1, 0.0, (), (), (0.0, 1.0), (0.0, 0.0))
"""The fabric of a single rank: an allreduce takes no time."""


def fit(
    sizes_bytes: Sequence[int],
    measured_us: Sequence[float],
    n: int,
    held_out: Sequence[tuple[int, float]] = (),
    noise: Sequence[float] = (),
) -> FittedFabric:
    """Return the increasing lines with the smallest relative error.

    A single line, T(S) = a + b S, fits a fabric that is limited by latency for small sizes S and
    by bandwidth for large ones. In between there may be other regimes, because buffers and the
    library's algorithms differ by size. Lines with one or two bends are therefore chosen if they
    predict left-out sizes better.

    Parameters
    ----------
    sizes_bytes, measured_us
        At least two different sizes, and their times in microseconds.
    n
        Number of ranks in the sweep, at least 2.
    held_out
        Further sizes with their times in microseconds. The fit does not use them; they show
        the error of the fit.
    noise
        Relative standard errors of the times. Uncertain times have smaller weights. Without
        `noise`, all times have the same weight.

    Raises
    ------
    UsageError
        There are too few ranks or sizes, or a size or a time is not positive.

    Examples
    --------
    >>> fabric = fit([1_000, 1_000_000], [50.0, 1_049.0], n=4, held_out=[(500_000, 500.0)])
    >>> round(fabric.busbw_gbps, 3)
    12.0
    >>> round(fabric.held_out_error, 3)
    0.098
    """
    _check_measured(sizes_bytes, [*measured_us, *(us for _, us in held_out)], n)
    _check_lengths(sizes_bytes, measured_us)
    order = np.argsort(sizes_bytes)
    size = np.asarray(sizes_bytes, float)[order]
    time = np.asarray(measured_us, float)[order]
    scale = time * np.maximum(np.asarray(noise or [0.0] * len(time))[order] / _CERTAIN_NOISE, 1.0)
    knots = _best_knots(size, time, scale)
    values = _fit_values(size, time, scale, knots)
    fabric = FittedFabric(
        n,
        0.0,
        tuple(int(size_bytes) for size_bytes in size),
        tuple(map(float, time)),
        tuple(map(float, knots)),
        tuple(map(float, values)),
    )
    errors = [abs(fabric.predict_us(size_bytes) / us - 1) for size_bytes, us in held_out]
    all_errors = [*np.abs(_predict(size, knots, values) / time - 1), *errors]
    error = float(np.quantile(all_errors, _ERROR_QUANTILE, method="higher"))
    rows = [
        (size_bytes, us, error) for (size_bytes, us), error in zip(held_out, errors, strict=True)
    ]
    return FittedFabric(**{**vars(fabric), "error": error, "held_out": tuple(rows)})


def _check_lengths(sizes: Sequence[int], times: Sequence[float]) -> None:
    """Raise `UsageError` if there are too few sizes, or more or fewer times than sizes."""
    if len(set(sizes)) < 2 or len(sizes) != len(times):
        raise UsageError(
            f"Cannot fit a line to {len(set(sizes))} sizes and {len(times)} times: at "
            "least two sizes and one time for each are needed. Measure more sizes."
        )


def _check_measured(sizes: Sequence[int], times: Sequence[float], n: int) -> None:
    """Raise an error for values that no measurement gives, because a fit to them has no meaning."""
    if n < 2:
        raise UsageError(f"n={n}: a collective takes at least 2 ranks. Measure it on more.")
    for quantity, values in (("size", sizes), ("time", times)):
        wrong = [value for value in values if not (value > 0 and math.isfinite(value))]
        if wrong:
            raise UsageError(
                f"{quantity} {wrong[0]}: not positive. Give bytes and microseconds as measured."
            )


def _best_knots(size: Array, time: Array, scale: Array) -> Array:
    """Return the ends and bends of the lines that predict left-out sizes best.

    `scale` divides the error of each time. It is the time itself, or more if the time is
    uncertain.
    """
    candidates = []
    for bends in _BENDS:
        if bends and len(np.unique(size)) < _SIZES_PER_BEND * (bends + 1):
            break
        knots = _place_bends(size, time, scale, bends)
        errors = []
        for index in range(1, len(size) - 1):
            rest = np.arange(len(size)) != index
            values = _fit_values(size[rest], time[rest], scale[rest], knots)
            predicted = float(_predict(size[index : index + 1], knots, values)[0])
            errors.append(abs(predicted - time[index]) / scale[index])
        candidates.append((float(np.mean(errors)) if errors else 0.0, bends, knots))
    return min(candidates, key=lambda candidate: candidate[:2])[2]


def _place_bends(size: Array, time: Array, scale: Array, bends: int) -> Array:
    """Return the ends of the lines, with bends at the measured sizes with the smallest error."""

    def total_error(knots: Array) -> float:
        fitted = _predict(size, knots, _fit_values(size, time, scale, knots))
        return float((np.abs(fitted - time) / scale).sum())

    inner_sizes = combinations(np.unique(size)[1:-1].tolist(), bends)
    return min((np.array([0.0, *inner, size[-1]]) for inner in inner_sizes), key=total_error)


def _fit_values(size: Array, time: Array, scale: Array, knots: Array) -> Array:
    """Return the times at the knots. No time is shorter than the time before it."""
    rows = _interpolation_weights(size, knots)
    weights = 1 / scale
    for _ in range(1 if len(size) < 2 * _SIZES_PER_BEND else 8):
        values = _increasing(rows * weights[:, None], time * weights)
        # With these weights, the sum of squares approximates the sum of the errors' magnitudes, so
        # that a few disturbed sizes do not shift the lines for the other sizes.
        relative_errors = np.maximum(np.abs(rows @ values - time) / scale, _SMALL_ERROR)
        weights = 1 / scale / np.sqrt(relative_errors)
    return values


def _increasing(rows: Array, target: Array) -> Array:
    """Return the least-squares solution with values that increase from 0 or more.

    The unknowns are the increments. Negative increments are set to 0 one after another, the most
    negative first.
    """
    steps = rows @ np.tri(rows.shape[1])
    free = list(range(rows.shape[1]))
    increments = np.zeros(rows.shape[1])
    while free:
        solution = np.linalg.lstsq(steps[:, free], target, rcond=None)[0]
        if (solution >= 0).all():
            increments[free] = solution
            break
        del free[int(np.argmin(solution))]
    return np.asarray(np.cumsum(increments))


def _interpolation_weights(size: Array, knots: Array) -> Array:
    """Return the weights of the knots' times in the time of each size."""
    return np.stack([np.interp(size, knots, unit) for unit in np.eye(len(knots))], axis=1)


def _predict(size: Array, knots: Array, values: Array) -> Array:
    return _interpolation_weights(size, knots) @ values
