"""`Unknown`: the value of a field that could not be read, with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unknown:
    """Replaces a value that could not be read, instead of zero or an empty value.

    Attributes
    ----------
    reason
        Why it could not be read: ``"not reported by the driver"``, ``"needs root"``.
        In JSON: ``{"unknown": reason}``.
    """

    reason: str

    def __str__(self) -> str:
        return f"unknown ({self.reason})"


EARLIER = Unknown("the workbench that took this snapshot did not record it")
"""Default of a field that snapshots of earlier versions do not have."""
