"""The ranks' clocks on the kernel's: offset, drift, and how far each may be wrong.

A ping's answer was stamped between its sending and its receipt, so each ping
bounds a rank's offset, whatever the delays in either direction: the middle of
both, +- half the round trip. Of each burst the ping with the least round trip
is kept (an `anchor`); a line through neighbouring bursts gives the drift and
narrows the bounds of those that travelled under load.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BURST_NS = 800_000_000
"""Pings sent within this long of a burst's first belong to it."""
MOST_DRIFT = 500e-6
"""No host's clock runs faster or slower than this: NTP's own limit (adjtimex(2))."""
WANDER = 5e-17
"""By which the drift may change in a nanosecond: 3 ppm in a minute, some degrees of temperature."""
NEXT_NS = 30e9
"""The time that the next burst is expected within."""
NEIGHBOURS = 4
"""Bursts on either side whose line narrows a burst's bounds."""
ANCHORS_LIMIT = 4096
"""Bursts kept of one clock; beyond it, every second of the older half is forgotten."""
_FAR_NS = 1e15
_LIVES_LIMIT = 16


class Anchor(NamedTuple):
    """The best ping of a burst: at `answered` on the rank's clock, `low` <= offset <= `high`.

    The offset is what is added to the rank's clock to have the kernel's.
    """

    answered: int
    low: int
    high: int

    def agrees(self, other: Anchor) -> bool:
        """Whether both can be of one clock that neither stepped nor was replaced."""
        drifted = MOST_DRIFT * abs(other.answered - self.answered)
        return other.low - self.high <= drifted and self.low - other.high <= drifted


@dataclass
class _Life:
    """One clock between two steps: its anchors by time, and the bounds that follow."""

    anchors: list[Anchor]
    burst_ns: int
    first_ns: int
    last_ns: int
    round_trips: list[int]
    fit: _Fit | None = None

    def take(self, ping: Anchor, sent: int, received: int) -> None:
        """Add a ping to its burst, or begin one."""
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


class Clocks:
    """The clocks of a ring's ranks, from pings; safe to ask while a thread adds.

    All times are ``time.perf_counter_ns()``, of the rank or of the kernel.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lives: dict[int, list[_Life]] = {}
        self._strange: dict[int, tuple[Anchor, int, int]] = {}

    @property
    def ranks(self) -> list[int]:
        """The ranks that have answered."""
        return sorted(self._lives)

    def add(self, rank: int, sent_ns: int, answered_ns: int, received_ns: int) -> None:
        """Take a ping: sent and received on the kernel's clock, answered on the rank's.

        One that contradicts those before is set aside until the next agrees
        with it: then the rank's clock has stepped, or the rank was replaced.
        """
        if received_ns < sent_ns:
            return
        ping = Anchor(answered_ns, sent_ns - answered_ns, received_ns - answered_ns)
        with self._lock:
            lives = self._lives.setdefault(rank, [])
            if not lives:
                lives.append(_Life([ping], sent_ns, sent_ns, received_ns, [received_ns - sent_ns]))
            elif lives[-1].anchors[-1].agrees(ping):
                self._strange.pop(rank, None)
                lives[-1].take(ping, sent_ns, received_ns)
            else:
                self._doubt(rank, ping, sent_ns, received_ns)

    def _doubt(self, rank: int, ping: Anchor, sent: int, received: int) -> None:
        before = self._strange.pop(rank, None)
        if before is None or not before[0].agrees(ping):
            self._strange[rank] = ping, sent, received
            return
        first, began, ended = before
        life = _Life([first], began, began, ended, [ended - began])
        life.take(ping, sent, received)
        self._lives[rank].append(life)
        del self._lives[rank][:-_LIVES_LIMIT]

    def to_kernel(self, rank: int, t_ns: npt.ArrayLike) -> tuple[Times, Floats]:
        """Return a rank's times on the kernel's clock, and how far each may be off.

        Parameters
        ----------
        t_ns
            Nanoseconds of the rank's clock; any shape.

        Returns
        -------
        tuple
            Nanoseconds of the kernel's clock, and the uncertainty: the truth is
            within +- that. It is infinite, and the times are unchanged, for a
            rank that never answered.
        """
        times = np.asarray(t_ns, dtype=np.int64)
        with self._lock:
            lives = [
                (life.first_ns, life.last_ns, life.anchors[0].answered, life.anchors[-1].answered)
                for life in self._lives.get(rank, ())
            ]
            fits = [self._fit(life) for life in self._lives.get(rank, ())]
        if not fits:
            return times.copy(), np.full(times.shape, np.inf)
        base = fits[-1].offset
        low, high = np.full(times.shape, np.inf), np.full(times.shape, -np.inf)
        for place, fit in enumerate(fits):
            least, most = fit.bounds(times)
            could = np.ones(times.shape, dtype=bool)
            # around a step it is not known which of both clocks it was
            if place > 0:
                gap = lives[place][0] - lives[place - 1][1]
                could &= times >= lives[place][2] - gap * (1 + MOST_DRIFT)
            if place + 1 < len(fits):
                gap = lives[place + 1][0] - lives[place][1]
                could &= times <= lives[place][3] + gap * (1 + MOST_DRIFT)
            shift = float(fit.offset - base)
            low = np.where(could, np.minimum(low, least + shift), low)
            high = np.where(could, np.maximum(high, most + shift), high)
        nowhere = low > high  # a moment that a step has jumped over
        if nowhere.any():
            least, most = fits[-1].bounds(times)
            low, high = np.where(nowhere, least, low), np.where(nowhere, most, high)
        middle = np.rint((low + high) / 2).astype(np.int64)
        return times + base + middle, (high - low) / 2 + 1.0

    def describe(self, rank: int) -> dict[str, float]:
        """Return what is known of a rank's clock now.

        ``offset_us`` (to be added to have the kernel's) and ``uncertainty_us``
        at the last burst, ``drift_ppm`` with ``drift_uncertainty_ppm``, the
        last burst's ``round_trip_us`` (least) and ``loaded_round_trip_us`` (median),
        ``bursts``, and ``steps`` that were seen. Empty for a rank that never answered.
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
    def _fit(life: _Life) -> _Fit:
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

    def bounds(self, times: Times) -> tuple[Floats, Floats]:
        since = (times - self.start).astype(np.float64)
        low = np.interp(since, self.knots, self.low)
        return low, np.maximum(low, np.interp(since, self.knots, self.high))


def _fit(anchors: list[Anchor]) -> _Fit:
    """Narrow the anchors' bounds by their neighbours', and bound what lies between and beyond."""
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
    """Return the least and the most drift around each anchor, and how sharply each gap bends.

    Any two anchors bound the drift between them. Where those of all neighbours
    contradict each other the drift has changed, and only the nearest count.
    """
    count = len(times)
    least, most = np.full(count, -MOST_DRIFT), np.full(count, MOST_DRIFT)
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
    # by how much two neighbouring gaps' drifts differ at least
    bends = np.maximum(gap_least[1:] - gap_most[:-1], gap_least[:-1] - gap_most[1:])
    bends = np.concatenate([[0.0], np.maximum(bends, 0.0), [0.0]])
    return least, most, np.maximum(bends[:-1], bends[1:])


def _narrowed(
    times: Floats, low: Floats, high: Floats, least: Floats, most: Floats
) -> tuple[Floats, Floats]:
    """Carry each anchor's bounds to its neighbours by the drift between them."""
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
