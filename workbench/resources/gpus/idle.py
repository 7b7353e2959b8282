"""Measure how long a GPU with allocated memory has been idle."""

from __future__ import annotations

from workbench.resources.unknown import Unknown


class IdleTime:
    """Counts the seconds for which a GPU was idle in all samples, with memory allocated."""

    def __init__(self) -> None:
        self._since: float | None = None

    def update(
        self, utilization: float | Unknown, allocated: bool | Unknown, now: float
    ) -> float | Unknown:
        """Add a sample, and return the seconds so far; 0 if the GPU is busy or unused.

        Parameters
        ----------
        utilization
            In percent.
        allocated
            Whether a process uses memory on it.
        now
            Time of the sample in seconds, on a monotonic clock.
        """
        why = self._why_not(utilization, allocated)
        if why is not None:
            self._since = None
            return why
        if self._since is None:
            self._since = now
        return now - self._since

    @staticmethod
    def _why_not(utilization: float | Unknown, allocated: bool | Unknown) -> float | Unknown | None:
        """Return 0 or `Unknown` if it is not idle with memory allocated, else None."""
        if isinstance(utilization, Unknown):
            return 0.0 if allocated is False else utilization
        if utilization > 0:
            return 0.0
        if isinstance(allocated, Unknown):
            return allocated
        return None if allocated else 0.0
