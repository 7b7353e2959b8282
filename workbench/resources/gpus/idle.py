"""For how long a GPU has done nothing for the process that holds it."""

from __future__ import annotations

from workbench.resources.unknown import Unknown


class IdleTime:
    """Counts, from samples, the seconds for which a GPU was held and idle."""

    def __init__(self) -> None:
        self._since: float | None = None

    def update(
        self, utilization: float | Unknown, allocated: bool | Unknown, now: float
    ) -> float | Unknown:
        """Take a sample, and give the seconds so far; 0 where it is busy, or free.

        Parameters
        ----------
        utilization
            In percent.
        allocated
            Whether a process holds memory on it.
        now
            In seconds, on a clock that never goes back.
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
        """Give what stands in the place of a time, or None while it is held and idle."""
        if isinstance(utilization, Unknown):
            return 0.0 if allocated is False else utilization
        if utilization > 0:
            return 0.0
        if isinstance(allocated, Unknown):
            return allocated
        return None if allocated else 0.0
