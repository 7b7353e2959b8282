"""The ranks' clocks compared with the kernel's: offset, drift and uncertainty.

A rank answers a ping between its sending and its receipt. So each ping bounds the rank's
offset, whatever the delays: the middle of both times, +- half the round trip. Of each burst
the ping with the shortest round trip is kept (an `Anchor`). Lines through neighbouring
anchors give the drift, and narrower bounds for bursts that were delayed by load.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BURST_NS = 800_000_000
"""Pings sent within this time of a burst's first ping belong to the burst."""
MAX_DRIFT = 500e-6
"""Largest drift of a host's clock: NTP's own limit (adjtimex(2))."""
WANDER = 5e-17
"""Largest change of the drift per nanosecond: 3 ppm in a minute, some degrees of temperature."""
NEXT_NS = 30e9
"""Expected interval between bursts, at most."""
NEIGHBOURS = 4
"""Bursts on either side that narrow a burst's bounds."""
ANCHORS_LIMIT = 4096
"""Most anchors per clock; when reached, every second anchor of the older half is deleted."""
_FAR_NS = 1e15
_CLOCKS_LIMIT = 16


class Anchor(NamedTuple):
    """The best ping of a burst: at `answered` on the rank's clock, `low` <= offset <= `high`.

    The rank's clock plus the offset is the kernel's clock.
    """

    answered: int
    low: int
    high: int

    def agrees(self, other: Anchor) -> bool:
        """Whether both fit one clock that did not step."""
        drifted = MAX_DRIFT * abs(other.answered - self.answered)
        return other.low - self.high <= drifted and self.low - other.high <= drifted


@dataclass
class _Clock:
    """One clock between two steps: its anchors by time, and the bounds computed from them."""

    anchors: list[Anchor]
    burst_ns: int
    first_ns: int
    last_ns: int
    round_trips: list[int]
    fit: _Fit | None = None

    def take(self, ping: Anchor, sent: int, received: int) -> None:
        """Add a ping to the current burst, or begin a burst."""
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
            if len(self.anchors) > ANCHORS_LIMIT:
                del self.anchors[1 : ANCHORS_LIMIT // 2 : 2]
        self.fit = None


class RingClocks:
    """The clocks of a ring's ranks, measured by pings; thread-safe.

    All times are ``time.perf_counter_ns()``, of the rank or of the kernel.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lives: dict[int, list[_Clock]] = {}
        self._outlier: dict[int, tuple[Anchor, int, int]] = {}

    @property
    def ranks(self) -> list[int]:
        """The ranks that have answered."""
        return sorted(self._lives)

    def add(self, rank: int, sent_ns: int, answered_ns: int, received_ns: int) -> None:
        """Add a ping: sent and received on the kernel's clock, answered on the rank's.

        A ping that contradicts the earlier ones is ignored, unless the next ping agrees with
        it: then the rank's clock has stepped, or the rank was replaced.
        """
        if received_ns < sent_ns:
            return
        ping = Anchor(answered_ns, sent_ns - answered_ns, received_ns - answered_ns)
        with self._lock:
            lives = self._lives.setdefault(rank, [])
            if not lives:
                lives.append(_Clock([ping], sent_ns, sent_ns, received_ns, [received_ns - sent_ns]))
            elif lives[-1].anchors[-1].agrees(ping):
                self._outlier.pop(rank, None)
                lives[-1].take(ping, sent_ns, received_ns)
            else:
                self._add_outlier(rank, ping, sent_ns, received_ns)

    def _add_outlier(self, rank: int, ping: Anchor, sent: int, received: int) -> None:
        before = self._outlier.pop(rank, None)
        if before is None or not before[0].agrees(ping):
            self._outlier[rank] = ping, sent, received
            return
        first, began, ended = before
        life = _Clock([first], began, began, ended, [ended - began])
        life.take(ping, sent, received)
        self._lives[rank].append(life)
        del self._lives[rank][:-_CLOCKS_LIMIT]

    def to_kernel(self, rank: int, t_ns: npt.ArrayLike) -> tuple[Times, Floats]:
        """Return a rank's times on the kernel's clock, and their uncertainties.

        All are nanoseconds; `t_ns` may have any shape. The true time is within +- the
        uncertainty. For a rank that never answered, the times are unchanged and their
        uncertainty is infinite.
        """
        times = np.asarray(t_ns, dtype=np.int64)
        with self._lock:
            every = self._lives.get(rank, [])
            fits = [self._fit(life) for life in every]
            lives = [
                (life.first_ns, life.last_ns, life.anchors[0].answered, life.anchors[-1].answered)
                for life in every
            ]
        if not fits:
            return times.copy(), np.full(times.shape, np.inf)
        base = fits[-1].offset
        if len(fits) == 1:  # the usual case, in which no clock has stepped
            low, high = fits[0].bounds(times)
            return times + base + np.rint((low + high) / 2).astype(np.int64), (high - low) / 2 + 1.0
        low, high = np.full(times.shape, np.inf), np.full(times.shape, -np.inf)
        for place, fit in enumerate(fits):
            least, most = fit.bounds(times)
            could = np.ones(times.shape, dtype=bool)
            # around a step, either clock may be the right one
            if place > 0:
                gap = lives[place][0] - lives[place - 1][1]
                could &= times >= lives[place][2] - gap * (1 + MAX_DRIFT)
            if place + 1 < len(fits):
                gap = lives[place + 1][0] - lives[place][1]
                could &= times <= lives[place][3] + gap * (1 + MAX_DRIFT)
            shift = float(fit.offset - base)
            low = np.where(could, np.minimum(low, least + shift), low)
            high = np.where(could, np.maximum(high, most + shift), high)
        nowhere = low > high  # a time that the clock skipped in a step
        if nowhere.any():
            least, most = fits[-1].bounds(times)
            low, high = np.where(nowhere, least, low), np.where(nowhere, most, high)
        middle = np.rint((low + high) / 2).astype(np.int64)
        return times + base + middle, (high - low) / 2 + 1.0

    def newest_lines(self, ranks: list[int]) -> tuple[Times, Floats]:
        """Return the last piece of each rank's bounds, for `on_lines`; empty where it is unknown.

        The arrays have a row per rank: start and offset; the piece's begin and end, and the low
        and the high bound at its begin with their slopes.
        """
        with self._lock:
            every = [self._lives.get(rank, ()) for rank in ranks]
            fits = [self._fit(lives[0]) if len(lives) == 1 else None for lives in every]
        whole = [(0, 0) if fit is None else (fit.start, fit.offset) for fit in fits]
        lines = [_NOWHERE if fit is None else fit.newest_line for fit in fits]
        return np.array(whole, np.int64), np.array(lines, np.float64)

    def describe(self, rank: int) -> dict[str, float]:
        """Return what is known of a rank's clock; empty for a rank that never answered.

        Keys: at the last burst, ``offset_us`` (added to the rank's clock, it gives the
        kernel's) with ``uncertainty_us``, ``drift_ppm`` with ``drift_uncertainty_ppm``,
        ``round_trip_us`` (shortest) and ``loaded_round_trip_us`` (median); and the numbers of
        ``bursts`` and ``steps``.
        """
        with self._lock:
            lives = self._lives.get(rank)
            if not lives:
                return {}
            life = lives[-1]
            fit = self._fit(life)
            last, round_trips = life.anchors[-1].answered, list(life.round_trips)
            bursts, steps = sum(len(one.anchors) for one in lives), len(lives) - 1
        low, high = fit.bounds(np.array([last]))
        return {
            "offset_us": (fit.offset + float(low[0] + high[0]) / 2) / 1e3,
            "uncertainty_us": float(high[0] - low[0]) / 2e3,
            "drift_ppm": (fit.least_drift + fit.most_drift) / 2 * 1e6,
            "drift_uncertainty_ppm": (fit.most_drift - fit.least_drift) / 2 * 1e6,
            "round_trip_us": min(round_trips) / 1e3,
            "loaded_round_trip_us": float(np.median(round_trips)) / 1e3,
            "bursts": bursts,
            "steps": steps,
        }

    @staticmethod
    def _fit(life: _Clock) -> _Fit:
        if life.fit is None:
            life.fit = _fit(life.anchors)
        return life.fit


@dataclass(frozen=True)
class _Fit:
    """Bounds of an offset, linear between knots; relative to `start` and `offset`."""

    start: int
    offset: int
    knots: Floats
    low: Floats
    high: Floats
    least_drift: float
    most_drift: float

    @cached_property
    def newest_line(self) -> tuple[float, ...]:
        """See `RingClocks.newest_lines`."""
        begin, end = self.knots[-2:].tolist()
        bounds = (self.low[-2:].tolist(), self.high[-2:].tolist())
        pieces = ((first, (last - first) / (end - begin)) for first, last in bounds)
        return begin, end, *chain.from_iterable(pieces)

    def bounds(self, times: Times) -> tuple[Floats, Floats]:
        since = (times - self.start).astype(np.float64)
        low = np.interp(since, self.knots, self.low)
        return low, np.maximum(low, np.interp(since, self.knots, self.high))


_NOWHERE = (float("inf"), float("-inf"), 0.0, 0.0, 0.0, 0.0)


def on_lines(times: Times, whole: Times, lines: Floats) -> tuple[Times, Floats]:
    """Return times on the kernel's clock as `RingClocks.to_kernel` does, for many ranks at once.

    `whole` and `lines` are those of `RingClocks.newest_lines`, with a row for each time. The
    uncertainty of a time outside of its piece is infinite.
    """
    begin, end, low, low_slope, high, high_slope = lines.T
    since = (times - whole[:, 0]).astype(np.float64)
    with np.errstate(invalid="ignore"):
        beyond = since - begin
        low = low_slope * beyond + low
        high = np.maximum(low, high_slope * beyond + high)
    inside = (since >= begin) & (since <= end)
    low, high = np.where(inside, low, 0.0), np.where(inside, high, 0.0)
    middle = np.rint((low + high) / 2).astype(np.int64)
    return times + whole[:, 1] + middle, np.where(inside, (high - low) / 2 + 1.0, np.inf)


def _fit(anchors: list[Anchor]) -> _Fit:
    """Narrow the anchors' bounds by their neighbours, and bound the times between and beyond."""
    start, offset = anchors[0].answered, anchors[0].low
    times = np.array([anchor.answered - start for anchor in anchors], dtype=np.float64)
    low = np.array([anchor.low - offset for anchor in anchors], dtype=np.float64)
    high = np.array([anchor.high - offset for anchor in anchors], dtype=np.float64)
    least, most, kinks = _drifts(times, low, high)
    low, high = _narrowed(times, low, high, least, most)
    gaps = np.diff(times)
    sag = WANDER * gaps**2 / 8 + kinks * gaps / 2
    knots = np.empty(2 * len(times) + 1)
    lows, highs = knots.copy(), knots.copy()
    knots[1::2], lows[1::2], highs[1::2] = times, low, high
    knots[2:-1:2] = times[:-1] + gaps / 2
    lows[2:-1:2] = (low[:-1] + low[1:]) / 2 - sag
    highs[2:-1:2] = (high[:-1] + high[1:]) / 2 + sag
    knots[0], knots[-1] = times[0] - _FAR_NS, times[-1] + _FAR_NS
    ahead = WANDER * NEXT_NS
    lows[0] = low[0] - (most[0] + ahead) * _FAR_NS
    highs[0] = high[0] - (least[0] - ahead) * _FAR_NS
    lows[-1] = low[-1] + (least[-1] - ahead) * _FAR_NS
    highs[-1] = high[-1] + (most[-1] + ahead) * _FAR_NS
    return _Fit(start, offset, knots, lows, highs, float(least[-1]), float(most[-1]))


def _drifts(times: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the least and the most drift at each anchor, and the least change in each gap.

    Any two anchors bound the drift between them. If the bounds of all neighbours contradict
    each other, the drift has changed, and only the nearest anchors count.
    """
    count = len(times)
    least, most = np.full(count, -MAX_DRIFT), np.full(count, MAX_DRIFT)
    if count < 2:
        return least, most, np.zeros(0)
    places = np.arange(count)
    window = [places + shift for shift in range(-NEIGHBOURS, NEIGHBOURS + 1)]
    for before, one in enumerate(window):
        for other in window[before + 1 :]:
            known = (one >= 0) & (other < count)
            i, j = one[known], other[known]
            span = times[j] - times[i]
            here = times[known]
            wander = WANDER * np.maximum(np.abs(times[i] - here), np.abs(times[j] - here))
            least[known] = np.maximum(least[known], (low[j] - high[i]) / span - wander)
            most[known] = np.minimum(most[known], (high[j] - low[i]) / span + wander)
    gaps = np.diff(times)
    gap_least, gap_most = (low[1:] - high[:-1]) / gaps, (high[1:] - low[:-1]) / gaps
    changed = least > most
    left, right = np.maximum(places - 1, 0), np.minimum(places, count - 2)
    least[changed] = np.minimum(gap_least[left], gap_least[right])[changed]
    most[changed] = np.maximum(gap_most[left], gap_most[right])[changed]
    # the least difference between the drifts of neighbouring gaps
    bends = np.maximum(gap_least[1:] - gap_most[:-1], gap_least[:-1] - gap_most[1:])
    bends = np.concatenate([[0.0], np.maximum(bends, 0.0), [0.0]])
    return least, most, np.maximum(bends[:-1], bends[1:])


def _narrowed(
    times: Floats, low: Floats, high: Floats, least: Floats, most: Floats
) -> tuple[Floats, Floats]:
    """Narrow each anchor's bounds by those of its neighbours and the drift between them."""
    narrow_low, narrow_high = low.copy(), high.copy()
    for shift in range(1, min(NEIGHBOURS, len(times) - 1) + 1):
        a, b = slice(None, -shift), slice(shift, None)
        span = times[b] - times[a]
        bend = WANDER * span**2 / 2
        narrow_low[b] = np.maximum(narrow_low[b], low[a] + least[b] * span - bend)
        narrow_high[b] = np.minimum(narrow_high[b], high[a] + most[b] * span + bend)
        narrow_low[a] = np.maximum(narrow_low[a], low[b] - most[a] * span - bend)
        narrow_high[a] = np.minimum(narrow_high[a], high[b] - least[a] * span + bend)
    crossed = narrow_low > narrow_high  # the drift changed by more than it wanders
    return np.where(crossed, low, narrow_low), np.where(crossed, high, narrow_high)
