"""Compute rates from monotonic counters."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.resources.unknown import Unknown

FIRST = Unknown("needs two samples")


class Rate:
    """Computes the rate per second of one counter from its readings.

    If the counter decreases (it wrapped, or its driver was reloaded), the rate of that
    interval is `Unknown`.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def update(self, count: float | Unknown, time_s: float) -> float | Unknown:
        """Add a reading and return the rate since the previous one.

        Parameters
        ----------
        count
            The counter, or why it could not be read.
        time_s
            Time of the reading, on a monotonic clock.

        Returns
        -------
        float or Unknown
            Counts per second.
        """
        if isinstance(count, Unknown):
            self._last = None
            return count
        last, self._last = self._last, (count, time_s)
        if last is None:
            return FIRST
        if count < last[0]:
            return Unknown("the counter went back (it wrapped or was reset) in this interval")
        if time_s <= last[1]:
            return Unknown("no time passed between two readings of the counter")
        return (count - last[0]) / (time_s - last[1])


def added(rates: Iterable[float | Unknown]) -> float | Unknown:
    """Return the sum of rates; it is unknown if one of them is, as a partial sum misleads."""
    total = 0.0
    for rate in rates:
        if isinstance(rate, Unknown):
            return rate
        total += rate
    return total
