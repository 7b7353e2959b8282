"""Fit the time of an allreduce by its size to a measured sweep."""

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
_MAX = 0.9
_BENDS = (0, 1, 2)
_SIZES_PER_BEND = 4
"""How many sizes are needed for each line of a fit with bends."""
_SMALL_ERROR = 0.01
"""Relative errors below this one count as squares, larger ones as they are."""
_CERTAIN = 0.05
"""Times whose noise is below this count equally."""
_COPIES = {"PCIe": "host to GPU", "device to host": "GPU to host"}
"""Names of copies, where they differ from `FittedFabric.devices`."""
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
        Relative error that nine of ten measured sizes do not exceed, with those that were held
        out.
    sizes_bytes, measured_us
        The sizes of the fit, and their times, means over ranks.
    knots_bytes, knots_us
        Where the lines begin and end; the first is at 0 bytes, the last line goes on.
    held_out
        Sizes that were measured but not used by the fit, with their times and relative errors.
    held_out_noise
        Relative standard errors of these times: a smaller error of the fit is not known to be
        its own. Empty if they are unknown.
    disagreement
        By how much the halves of the sweep differ (median over sizes); 0 if there is one only.
    context
        On what it was measured: ``"ranks"``, ``"VMs"``, ``"backend"``, ``"device"`` and
        ``"transport"``; empty if that is unknown.
    measured_at
        Seconds since the epoch; 0 if unknown.
    devices
        Measured GB/s of copies on each VM, by the kind of `nominal.Bandwidth`, and
        ``"device to host"``: the median of several runs.
    device_spreads
        Half of the range of these runs, as a share of the median.
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
        """Time of an empty allreduce."""
        return self.knots_us[0]

    @property
    def us_per_byte(self) -> float:
        """Additional time per byte of a large payload."""
        last = self.knots_bytes[-1] - self.knots_bytes[-2]
        return (self.knots_us[-1] - self.knots_us[-2]) / last

    @property
    def held_out_error(self) -> float:
        """Median relative error at the sizes that were held out; NaN if there are none."""
        errors = [error for _, _, error in self.held_out]
        return float(np.median(errors)) if errors else math.nan

    @property
    def reliable(self) -> bool:
        """Whether it fits well enough for predictions, and has a bandwidth."""
        return self.error <= UNRELIABLE and math.isfinite(self.busbw_gbps)

    @property
    def caveat(self) -> str:
        """Why predictions are not used, or may be off, or an empty string."""
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
        """The fit, its errors at the sizes that were held out, its caveat, and copies."""
        if self.n == 1:
            return [*filter(None, [self.caveat]), *self._copies]
        large = (
            f"{self.us_per_byte * 1e6:,.0f} µs per MB ({self.busbw_gbps:,.2f} Gbit/s bus bandwidth)"
            if math.isfinite(self.busbw_gbps)
            else f"an unknown time per MB ({_NO_BANDWIDTH})"
        )
        first = (
            f"An allreduce on {self.n} ranks takes {self.fixed_us:,.0f} µs and, if large, "
            f"{large}, within {self.error:.0%} of nine in ten measured times."
        )
        lines = [first]
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
        """What copies on the VMs have measured, in a sentence, if anything."""
        kinds = dict.fromkeys(kind for rates in self.devices.values() for kind in rates)
        if not kinds:
            return []
        vms = list(self.devices)
        where = vms[0] if len(vms) == 1 else f"{len(vms)} VMs"
        return [f"Copies on {where}: {', '.join(map(self._copy, kinds))}."]

    def _copy(self, kind: str) -> str:
        """Return the rate of a kind of copies; of several VMs the range, and which is slowest."""
        rates = {vm: rates[kind] for vm, rates in self.devices.items() if kind in rates}
        slowest = min(rates, key=rates.__getitem__)
        low, high = (f"{rate:,.1f}" for rate in (rates[slowest], max(rates.values())))
        text = low if low == high else f"{low} ({slowest}) to {high}"
        spreads = [each[kind] for each in self.device_spreads.values() if kind in each]
        spread = f" (± {max(spreads):.0%})" if spreads else ""
        return f"{_COPIES.get(kind, kind)} {text} GB/s{spread}"

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
        n
            Another number of ranks, as a ring on the same links: the time per byte is
            proportional to (n-1)/n, and that of an empty allreduce to n-1.
        """
        if not (size_bytes >= 0 and math.isfinite(size_bytes)):
            raise UsageError(f"size_bytes={size_bytes}: not a size. Give 0 or more bytes.")
        beyond = max(0.0, size_bytes - self.knots_bytes[-1]) * self.us_per_byte
        us = float(np.interp(size_bytes, self.knots_bytes, self.knots_us)) + beyond
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
        fixed = self.fixed_us * (n - 1) / (self.n - 1)
        return fixed + (us - self.fixed_us) * (n - 1) / n * self.n / (self.n - 1)

    @property
    def busbw_gbps(self) -> float:
        """Bus bandwidth of a very large allreduce, 10^9 bits per second; infinite if unknown.

        That is 2(n-1)/n times its algorithm bandwidth (nccl-tests). It is unknown if the last
        line is flat.
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

    One line, T(S) = a + b S, fits a fabric that is limited by latency or by bandwidth. Between
    the two there may be other regimes, as buffers and the library's algorithms differ by size:
    lines with one or two bends are chosen if they predict sizes better that are left out.

    Parameters
    ----------
    sizes_bytes, measured_us
        At least two sizes, and their times.
    n
        Number of ranks in the sweep, at least 2.
    held_out
        Further sizes with their times, which the fit does not use, to measure its error.
    noise
        Relative standard errors of the times: uncertain ones count less. Without, all count
        equally.
    """
    _check(sizes_bytes, [*measured_us, *(us for _, us in held_out)], n)
    if len(set(sizes_bytes)) < 2 or len(sizes_bytes) != len(measured_us):
        raise UsageError(
            f"Cannot fit a line to {len(set(sizes_bytes))} sizes and {len(measured_us)} times: at "
            "least two sizes and one time for each are needed. Measure more sizes."
        )
    order = np.argsort(sizes_bytes)
    size, time = np.asarray(sizes_bytes, float)[order], np.asarray(measured_us, float)[order]
    scale = time * np.maximum(np.asarray(noise or [0.0] * len(time))[order] / _CERTAIN, 1.0)
    knots = _best_knots(size, time, scale)
    values = _fit_values(size, time, scale, knots)
    fabric = FittedFabric(
        n,
        0.0,
        tuple(int(one) for one in size),
        tuple(map(float, time)),
        tuple(map(float, knots)),
        tuple(map(float, values)),
    )
    errors = [abs(fabric.predict_us(one) / us - 1) for one, us in held_out]
    all_errors = [*np.abs(_predict(size, knots, values) / time - 1), *errors]
    error = float(np.quantile(all_errors, _MAX, method="higher"))
    rows = [(one, us, e) for (one, us), e in zip(held_out, errors, strict=True)]
    return FittedFabric(**{**vars(fabric), "error": error, "held_out": tuple(rows)})


def _check(sizes: Sequence[int], times: Sequence[float], n: int) -> None:
    """Refuse what cannot be measured: it would give figures without meaning."""
    if n < 2:
        raise UsageError(f"n={n}: a collective takes at least 2 ranks. Measure it on more.")
    for what, values in (("size", sizes), ("time", times)):
        wrong = [value for value in values if not (value > 0 and math.isfinite(value))]
        if wrong:
            raise UsageError(
                f"{what} {wrong[0]}: not positive. Give bytes and microseconds as measured."
            )


def _best_knots(size: Array, time: Array, scale: Array) -> Array:
    """Return the ends and bends of the lines that predict left-out sizes best.

    `scale` is by what the error of each time is divided: the time, or more if that is uncertain.
    """
    found = []
    for bends in _BENDS:
        if bends and len(np.unique(size)) < _SIZES_PER_BEND * (bends + 1):
            break
        knots = _place_bends(size, time, scale, bends)
        errors = []
        for place in range(1, len(size) - 1):
            rest = np.arange(len(size)) != place
            values = _fit_values(size[rest], time[rest], scale[rest], knots)
            guess = float(_predict(size[place : place + 1], knots, values)[0])
            errors.append(abs(guess - time[place]) / scale[place])
        found.append((float(np.mean(errors)) if errors else 0.0, bends, knots))
    return min(found, key=lambda one: one[:2])[2]


def _place_bends(size: Array, time: Array, scale: Array, bends: int) -> Array:
    def total(knots: Array) -> float:
        fitted = _predict(size, knots, _fit_values(size, time, scale, knots))
        return float((np.abs(fitted - time) / scale).sum())

    inner = combinations(np.unique(size)[1:-1].tolist(), bends)
    return min((np.array([0.0, *places, size[-1]]) for places in inner), key=total)


def _fit_values(size: Array, time: Array, scale: Array, knots: Array) -> Array:
    """Return the times at the knots: each at least as long as the one before."""
    rows = _hats(size, knots)
    weights = 1 / scale
    for _ in range(1 if len(size) < 2 * _SIZES_PER_BEND else 8):
        values = _increasing(rows * weights[:, None], time * weights)
        # a few disturbed sizes must not move the others: weights as for absolute errors
        wrong = np.maximum(np.abs(rows @ values - time) / scale, _SMALL_ERROR)
        weights = 1 / scale / np.sqrt(wrong)
    return values


def _increasing(rows: Array, target: Array) -> Array:
    """Return the least-squares solution whose values increase from 0 or more.

    The unknowns are the increments; negative ones are set to 0, the largest first.
    """
    steps = rows @ np.tri(rows.shape[1])
    used = list(range(rows.shape[1]))
    found = np.zeros(rows.shape[1])
    while used:
        inside = np.linalg.lstsq(steps[:, used], target, rcond=None)[0]
        if (inside >= 0).all():
            found[used] = inside
            break
        del used[int(np.argmin(inside))]
    return np.asarray(np.cumsum(found))


def _hats(size: Array, knots: Array) -> Array:
    """Return the weights of the knots' times in the time of each size."""
    return np.stack([np.interp(size, knots, one) for one in np.eye(len(knots))], axis=1)


def _predict(size: Array, knots: Array, values: Array) -> Array:
    return _hats(size, knots) @ values
