"""Rates from counters that only count up."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.resources.unknown import Unknown

FIRST = Unknown("needs two samples")


class Rate:
    """Turns readings of one counter into its rate per second.

    A counter that goes back (it wrapped, or its driver was loaded again) gives
    `Unknown` for that interval: the difference would be a spike that never was.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def update(self, count: float | Unknown, time_s: float) -> float | Unknown:
        """Take a reading and give the rate since the one before.

        Parameters
        ----------
        count
            The counter, or why it could not be read.
        time_s
            When it was read, on a clock that never goes back.

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
    """Add rates up; one that is not known leaves the sum unknown: a part of it would mislead."""
    total = 0.0
    for rate in rates:
        if isinstance(rate, Unknown):
            return rate
        total += rate
    return total
