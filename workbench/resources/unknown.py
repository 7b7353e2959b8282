"""A value that could not be read, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unknown:
    """Stands where a value could not be read; never zero, never blank.

    Attributes
    ----------
    reason
        Why, in plain words: ``"not reported by the driver"``, ``"needs root"``.
        In JSON: ``{"unknown": reason}``.
    """

    reason: str

    def __str__(self) -> str:
        return f"unknown ({self.reason})"


EARLIER = Unknown("the workbench that took this snapshot did not look")
"""A field that snapshots of earlier workbenches do not have."""
