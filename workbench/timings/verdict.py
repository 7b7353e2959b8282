"""The verdict of a training cell: what an iteration takes, and why, in one line and as figures.

`workbench.advisor.verdict` computes it; the run on disk and the live view have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.errors import RunError, SnapshotError
from workbench.resources import Unknown
from workbench.resources.codec import decode, encode

VERSION = 1
"""Version of the stored JSON; incremented when earlier versions would misread it."""

CHANGE = "; change: "
"""What is before the change in `Verdict.text`."""


def saving_text(us: float, share: float, *, bound: bool) -> str:
    """Return a saving per iteration in words, such as ``"up to 7.20 ms (31%)"``."""
    return f"{'up to ' if bound else ''}{us / 1e3:.2f} ms ({share:.0%})"


@dataclass(frozen=True)
class VerdictCause:
    """One reason why iterations take as long as they do; see `workbench.advisor.Cause`.

    Attributes
    ----------
    name
        Name of the cause, such as ``"exposed communication"``.
    evidence
        What was measured.
    change
        What would help.
    saving_us
        Predicted saving per iteration, in microseconds.
    saving_share
        The same as a share of the iteration.
    bound
        Whether `saving_us` is only an upper bound.
    uncertainty
        In which interval the saving is, in words; empty if nothing is known about it.
    measure
        What to measure to know more; empty if nothing is missing.
    """

    name: str
    evidence: str
    change: str
    saving_us: float | Unknown
    saving_share: float | Unknown
    bound: bool
    uncertainty: str = ""
    measure: str = ""

    @property
    def saving(self) -> str:
        """The saving as text; see `saving_text`."""
        if isinstance(self.saving_us, Unknown) or isinstance(self.saving_share, Unknown):
            return "unknown"
        return saving_text(self.saving_us, self.saving_share, bound=self.bound)


@dataclass(frozen=True)
class Verdict:
    """What an iteration of a training cell takes, and why.

    The figures are those of the cell's newest iterations, at most 64, without its first one.

    Attributes
    ----------
    text
        The verdict in one line.
    cell
        Number of the cell.
    first_iteration, last_iteration
        The iterations of the figures, both included.
    ranks
        Number of ranks.
    iteration_us, median_us
        Mean and median duration of an iteration, in microseconds.
    exposed_us, exposed_share
        Mean time in which training waited for gradients, and its share of the iteration.
    waiting_us, queued_us, transfer_us
        The parts of `exposed_us`: until the last rank was ready, in queues, and for transfers.
    samples_per_s
        Of all ranks together.
    causes
        As `workbench.explain` names them, the largest saving first.
    """

    text: str
    cell: int
    first_iteration: int
    last_iteration: int
    ranks: int
    iteration_us: float
    median_us: float
    exposed_us: float | Unknown
    exposed_share: float | Unknown
    waiting_us: float | Unknown
    queued_us: float | Unknown
    transfer_us: float | Unknown
    samples_per_s: float | Unknown
    causes: tuple[VerdictCause, ...]

    def __str__(self) -> str:
        return self.text

    @property
    def headline(self) -> str:
        """The line without the change."""
        return self.text.partition(CHANGE)[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values; an unknown one is ``{"unknown": reason}``."""
        return {"version": VERSION, **encode(self)}

    @classmethod
    def from_dict(cls, values: Any) -> Verdict:
        """Return the verdict of some plain values.

        Raises
        ------
        RunError
            They are of another version, or damaged.
        """
        version = values.get("version") if isinstance(values, dict) else None
        if version != VERSION:
            raise RunError(
                f"a verdict of version {version!r}: only version {VERSION} can be read. "
                "Use the version of gradient-workbench that wrote it."
            )
        try:
            return decode(cls, values, "")
        except SnapshotError as error:
            raise RunError(
                f"a damaged verdict: {error}. Explain the run again with %explain NAME."
            ) from error
