"""The ranks' clocks compared with the kernel's: offset, drift and uncertainty.

A rank answers a ping after the kernel sends it and before the kernel receives the answer. So each
ping bounds the offset of the rank's clock, whatever the delays: the middle of the times of sending
and receiving, minus the time of the answer, +- half the round trip. The ping with the shortest
round trip of each burst is kept (an `Anchor`). Lines through neighbouring anchors give the drift,
and narrower bounds for bursts that were delayed by load.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_log = logging.getLogger(__name__)

Times = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BURST_NS = 800_000_000
"""Pings sent within this time of a burst's first ping belong to the burst."""
MAX_DRIFT = 500e-6
"""Largest drift of a clock, in seconds per second: the limit that NTP itself uses (adjtimex(2))."""
WANDER = 5e-17
"""Largest change of the drift per nanosecond: 3 ppm in a minute, some degrees of temperature."""
NEXT_NS = 30e9
"""Longest expected interval between bursts, in nanoseconds."""
NEIGHBOURS = 4
"""Bursts on either side that narrow a burst's bounds."""
MAX_ANCHORS = 4096
"""Maximum number of anchors per clock. Beyond it, every second anchor of the older half is
deleted."""
_FAR_NS = 1e15
"""How far the bounds extend before the first and after the last anchor, in nanoseconds."""
_MAX_CLOCKS = 16
"""Maximum number of clocks kept per rank; each step of a rank's clock begins a new one."""


class Anchor(NamedTuple):
    """The ping with the shortest round trip of a burst; times in nanoseconds.

    At the time `answered` on the rank's clock, `low` <= offset <= `high`. The rank's clock plus the
    offset is the kernel's clock.
    """

    answered: int
    low: int
    high: int

    def agrees(self, other: Anchor) -> bool:
        """Whether both anchors fit one clock that did not step."""
        drifted = MAX_DRIFT * abs(other.answered - self.answered)
        return other.low - self.high <= drifted and self.low - other.high <= drifted


@dataclass
class _Clock:
    """A rank's clock between two steps: anchors by time, and the bounds computed from them."""

    anchors: list[Anchor]
    burst_ns: int
    first_ns: int
    last_ns: int
    round_trips: list[int]
    fit: _Fit | None = None

    def add(self, ping: Anchor, sent: int, received: int) -> None:
        """Add a ping to the current burst, or begin a new burst with it."""
        self.last_ns = received
        round_trip = received - sent
        if sent - self.burst_ns < BURST_NS:
            self.round_trips.append(round_trip)
            if round_trip >= self.anchors[-1].high - self.anchors[-1].low:
                return
            self.anchors[-1] = ping
        else:
            self.burst_ns = sent
            self.round_trips = [round_trip]
            self.anchors.append(ping)
            if len(self.anchors) > MAX_ANCHORS:
                del self.anchors[1 : MAX_ANCHORS // 2 : 2]
        self.fit = None


class RingClocks:
    """The clocks of a ring's ranks, measured by pings; thread-safe.

    All times are ``time.perf_counter_ns()``, of the rank or of the kernel.

    Examples
    --------
    The kernel sent a ping at 1,000 ns and received the answer at 3,000 ns, when rank 0 had
    answered at 502,000 ns on its own clock:

    >>> clocks = RingClocks()
    >>> clocks.add(0, sent_ns=1_000, answered_ns=502_000, received_ns=3_000)
    >>> time_ns, uncertainty_ns = clocks.to_kernel(0, 502_000)
    >>> int(time_ns), float(uncertainty_ns)
    (2000, 1001.0)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clocks: dict[int, list[_Clock]] = {}
        """The clocks of each rank, a new one after each step of its clock."""
        self._outlier: dict[int, tuple[Anchor, int, int]] = {}

    @property
    def ranks(self) -> list[int]:
        """The ranks that have answered."""
        return sorted(self._clocks)

    def add(self, rank: int, sent_ns: int, answered_ns: int, received_ns: int) -> None:
        """Add a ping, sent and received on the kernel's clock, and answered on the rank's clock.

        A ping that contradicts the earlier pings is ignored, unless the next ping agrees with it.
        In that case, the rank's clock has stepped, or the rank was replaced.
        """
        if received_ns < sent_ns:
            return
        ping = Anchor(answered_ns, sent_ns - answered_ns, received_ns - answered_ns)
        with self._lock:
            clocks = self._clocks.setdefault(rank, [])
            if not clocks:
                round_trips = [received_ns - sent_ns]
                clocks.append(_Clock([ping], sent_ns, sent_ns, received_ns, round_trips))
            elif clocks[-1].anchors[-1].agrees(ping):
                self._outlier.pop(rank, None)
                clocks[-1].add(ping, sent_ns, received_ns)
            else:
                self._add_outlier(rank, ping, sent_ns, received_ns)

    def _add_outlier(self, rank: int, ping: Anchor, sent: int, received: int) -> None:
        outlier = self._outlier.pop(rank, None)
        if outlier is None or not outlier[0].agrees(ping):
            self._outlier[rank] = ping, sent, received
            return
        outlier_ping, outlier_sent, outlier_received = outlier
        clock = _Clock(
            [outlier_ping],
            outlier_sent,
            outlier_sent,
            outlier_received,
            [outlier_received - outlier_sent],
        )
        clock.add(ping, sent, received)
        self._clocks[rank].append(clock)
        del self._clocks[rank][:-_MAX_CLOCKS]
        _log.info("rank %d: its clock has stepped, or the rank was replaced", rank)

    def to_kernel(self, rank: int, t_ns: npt.ArrayLike) -> tuple[Times, Floats]:
        """Return a rank's times on the kernel's clock, and their uncertainties.

        All are nanoseconds; `t_ns` may have any shape. The true time is within +- the
        uncertainty. For a rank that never answered, the times are unchanged and their
        uncertainty is infinite.
        """
        times = np.asarray(t_ns, dtype=np.int64)
        with self._lock:
            clocks = self._clocks.get(rank, [])
            fits = [self._fit(clock) for clock in clocks]
            spans = [
                (c.first_ns, c.last_ns, c.anchors[0].answered, c.anchors[-1].answered)
                for c in clocks
            ]
        if not fits:
            return times.copy(), np.full(times.shape, np.inf)
        base = fits[-1].offset
        if len(fits) == 1:  # the usual case: the clock has never stepped
            low, high = fits[0].bounds(times)
            return times + base + np.rint((low + high) / 2).astype(np.int64), (high - low) / 2 + 1.0
        low = np.full(times.shape, np.inf)
        high = np.full(times.shape, -np.inf)
        for index, fit in enumerate(fits):
            clock_low, clock_high = fit.bounds(times)
            is_possible = np.ones(times.shape, dtype=bool)
            # around a step, a time may be from the clock before the step or from the clock after it
            if index > 0:
                gap = spans[index][0] - spans[index - 1][1]
                is_possible &= times >= spans[index][2] - gap * (1 + MAX_DRIFT)
            if index + 1 < len(fits):
                gap = spans[index + 1][0] - spans[index][1]
                is_possible &= times <= spans[index][3] + gap * (1 + MAX_DRIFT)
            shift = float(fit.offset - base)
            low = np.where(is_possible, np.minimum(low, clock_low + shift), low)
            high = np.where(is_possible, np.maximum(high, clock_high + shift), high)
        is_skipped = low > high  # times that the clock skipped in a step
        if is_skipped.any():
            clock_low, clock_high = fits[-1].bounds(times)
            low = np.where(is_skipped, clock_low, low)
            high = np.where(is_skipped, clock_high, high)
        middle = np.rint((low + high) / 2).astype(np.int64)
        return times + base + middle, (high - low) / 2 + 1.0

    def newest_lines(self, ranks: list[int]) -> tuple[Times, Floats]:
        """Return the last piece of each rank's bounds, for `on_lines`; `_NOWHERE` if it is unknown.

        Both arrays have a row per rank. The columns of the first array are the start and the
        offset of the rank's `_Fit`. The columns of the second array are the begin and the end of
        the piece; the low bound at the begin, and its slope; the high bound at the begin, and its
        slope.
        """
        with self._lock:
            by_rank = [self._clocks.get(rank, ()) for rank in ranks]
            fits = [self._fit(clocks[0]) if len(clocks) == 1 else None for clocks in by_rank]
        origins = [(0, 0) if fit is None else (fit.start, fit.offset) for fit in fits]
        lines = [_NOWHERE if fit is None else fit.newest_line for fit in fits]
        return np.array(origins, np.int64), np.array(lines, np.float64)

    def describe(self, rank: int) -> dict[str, float]:
        """Return the figures of a rank's clock; an empty dict for a rank that never answered.

        Keys: at the last burst, ``offset_us`` (added to the rank's clock, it gives the
        kernel's) with ``uncertainty_us``, ``drift_ppm`` with ``drift_uncertainty_ppm``,
        ``round_trip_us`` (shortest) and ``loaded_round_trip_us`` (median); and the numbers of
        ``bursts`` and ``steps``.
        """
        with self._lock:
            clocks = self._clocks.get(rank)
            if not clocks:
                return {}
            newest = clocks[-1]
            fit = self._fit(newest)
            last = newest.anchors[-1].answered
            round_trips = list(newest.round_trips)
            bursts = sum(len(clock.anchors) for clock in clocks)
            steps = len(clocks) - 1
        low, high = fit.bounds(np.array([last]))
        return {
            "offset_us": (fit.offset + float(low[0] + high[0]) / 2) / 1e3,
            "uncertainty_us": float(high[0] - low[0]) / 2e3,
            "drift_ppm": (fit.min_drift + fit.max_drift) / 2 * 1e6,
            "drift_uncertainty_ppm": (fit.max_drift - fit.min_drift) / 2 * 1e6,
            "round_trip_us": min(round_trips) / 1e3,
            "loaded_round_trip_us": float(np.median(round_trips)) / 1e3,
            "bursts": bursts,
            "steps": steps,
        }

    @staticmethod
    def _fit(clock: _Clock) -> _Fit:
        if clock.fit is None:
            clock.fit = _fit(clock.anchors)
        return clock.fit


@dataclass(frozen=True)
class _Fit:
    """Bounds of a clock's offset, linear between knots; in nanoseconds.

    The times `knots` are relative to `start`; the bounds `low` and `high` are relative to `offset`.
    """

    start: int
    offset: int
    knots: Floats
    low: Floats
    high: Floats
    min_drift: float
    max_drift: float

    @cached_property
    def newest_line(self) -> tuple[float, ...]:
        """The last piece of the bounds, as a row of `RingClocks.newest_lines`."""
        begin, end = self.knots[-2:].tolist()
        bounds = (self.low[-2:].tolist(), self.high[-2:].tolist())
        pieces = ((first, (last - first) / (end - begin)) for first, last in bounds)
        return begin, end, *chain.from_iterable(pieces)

    def bounds(self, times: Times) -> tuple[Floats, Floats]:
        """Return the low and the high bound of the offset minus `self.offset` at some times."""
        since = (times - self.start).astype(np.float64)
        low = np.interp(since, self.knots, self.low)
        return low, np.maximum(low, np.interp(since, self.knots, self.high))


_NOWHERE = (float("inf"), float("-inf"), 0.0, 0.0, 0.0, 0.0)
"""A row of `RingClocks.newest_lines` for a piece that contains no time."""


def on_lines(times: Times, origins: Times, lines: Floats) -> tuple[Times, Floats]:
    """Return times on the kernel's clock as `RingClocks.to_kernel` does, for many ranks at once.

    `whole` and `lines` are arrays of `RingClocks.newest_lines`, with a row for each time. The
    uncertainty of a time outside of the piece in its row is infinite.
    """
    begin, end, low, low_slope, high, high_slope = lines.T
    since = (times - origins[:, 0]).astype(np.float64)
    with np.errstate(invalid="ignore"):
        since_begin = since - begin
        low = low_slope * since_begin + low
        high = np.maximum(low, high_slope * since_begin + high)
    is_inside = (since >= begin) & (since <= end)
    low = np.where(is_inside, low, 0.0)
    high = np.where(is_inside, high, 0.0)
    middle = np.rint((low + high) / 2).astype(np.int64)
    return times + origins[:, 1] + middle, np.where(is_inside, (high - low) / 2 + 1.0, np.inf)


def _fit(anchors: list[Anchor]) -> _Fit:
    """Return bounds at, between and beyond the anchors, narrowed by the neighbouring anchors."""
    start = anchors[0].answered
    offset = anchors[0].low
    times = np.array([anchor.answered - start for anchor in anchors], dtype=np.float64)
    low = np.array([anchor.low - offset for anchor in anchors], dtype=np.float64)
    high = np.array([anchor.high - offset for anchor in anchors], dtype=np.float64)
    min_drift, max_drift, kinks = _drifts(times, low, high)
    low, high = _narrowed(times, low, high, min_drift, max_drift)
    gaps = np.diff(times)
    # in the middle of a gap, the offset may differ by this much from a line between the anchors
    sag = WANDER * gaps**2 / 8 + kinks * gaps / 2
    knots = np.empty(2 * len(times) + 1)
    low_bounds = knots.copy()
    high_bounds = knots.copy()
    knots[1::2] = times
    low_bounds[1::2] = low
    high_bounds[1::2] = high
    knots[2:-1:2] = times[:-1] + gaps / 2
    low_bounds[2:-1:2] = (low[:-1] + low[1:]) / 2 - sag
    high_bounds[2:-1:2] = (high[:-1] + high[1:]) / 2 + sag
    knots[0] = times[0] - _FAR_NS
    knots[-1] = times[-1] + _FAR_NS
    ahead = WANDER * NEXT_NS
    low_bounds[0] = low[0] - (max_drift[0] + ahead) * _FAR_NS
    high_bounds[0] = high[0] - (min_drift[0] - ahead) * _FAR_NS
    low_bounds[-1] = low[-1] + (min_drift[-1] - ahead) * _FAR_NS
    high_bounds[-1] = high[-1] + (max_drift[-1] + ahead) * _FAR_NS
    return _Fit(
        start, offset, knots, low_bounds, high_bounds, float(min_drift[-1]), float(max_drift[-1])
    )


def _drifts(times: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the minimum and maximum drift at each anchor, and its least change in each gap.

    Any two anchors bound the drift between them. If the bounds of all neighbours contradict
    each other, the drift has changed, and only the nearest anchors count.
    """
    count = len(times)
    min_drift = np.full(count, -MAX_DRIFT)
    max_drift = np.full(count, MAX_DRIFT)
    if count < 2:
        return min_drift, max_drift, np.zeros(0)
    indices = np.arange(count)
    window = [indices + shift for shift in range(-NEIGHBOURS, NEIGHBOURS + 1)]
    for position, first in enumerate(window):
        for second in window[position + 1 :]:
            exists = (first >= 0) & (second < count)
            i = first[exists]
            j = second[exists]
            span = times[j] - times[i]
            center = times[exists]
            wander = WANDER * np.maximum(np.abs(times[i] - center), np.abs(times[j] - center))
            min_drift[exists] = np.maximum(min_drift[exists], (low[j] - high[i]) / span - wander)
            max_drift[exists] = np.minimum(max_drift[exists], (high[j] - low[i]) / span + wander)
    gaps = np.diff(times)
    gap_min = (low[1:] - high[:-1]) / gaps
    gap_max = (high[1:] - low[:-1]) / gaps
    has_changed = min_drift > max_drift
    gap_before = np.maximum(indices - 1, 0)
    gap_after = np.minimum(indices, count - 2)
    min_drift[has_changed] = np.minimum(gap_min[gap_before], gap_min[gap_after])[has_changed]
    max_drift[has_changed] = np.maximum(gap_max[gap_before], gap_max[gap_after])[has_changed]
    # the least difference between the drifts of neighbouring gaps
    bends = np.maximum(gap_min[1:] - gap_max[:-1], gap_min[:-1] - gap_max[1:])
    bends = np.concatenate([[0.0], np.maximum(bends, 0.0), [0.0]])
    return min_drift, max_drift, np.maximum(bends[:-1], bends[1:])


def _narrowed(
    times: Floats, low: Floats, high: Floats, min_drift: Floats, max_drift: Floats
) -> tuple[Floats, Floats]:
    """Return each anchor's bounds, narrowed by its neighbours' bounds and the drift."""
    narrow_low = low.copy()
    narrow_high = high.copy()
    for shift in range(1, min(NEIGHBOURS, len(times) - 1) + 1):
        earlier = slice(None, -shift)
        later = slice(shift, None)
        span = times[later] - times[earlier]
        bend = WANDER * span**2 / 2
        narrow_low[later] = np.maximum(
            narrow_low[later], low[earlier] + min_drift[later] * span - bend
        )
        narrow_high[later] = np.minimum(
            narrow_high[later], high[earlier] + max_drift[later] * span + bend
        )
        narrow_low[earlier] = np.maximum(
            narrow_low[earlier], low[later] - max_drift[earlier] * span - bend
        )
        narrow_high[earlier] = np.minimum(
            narrow_high[earlier], high[later] - min_drift[earlier] * span + bend
        )
    is_contradictory = narrow_low > narrow_high  # the drift changed by more than `WANDER` allows
    return np.where(is_contradictory, low, narrow_low), np.where(
        is_contradictory, high, narrow_high
    )
