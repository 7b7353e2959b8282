"""The verdict of a training cell: what an iteration takes, and why, in one line and as figures.

`workbench.advisor.verdict` computes it; the run on disk and the live view have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.errors import RunError, SnapshotError
from workbench.resources import Unknown
from workbench.resources.codec import decode, encode
from workbench.resources.unknown import EARLIER

VERSION = 1
"""Version of the stored JSON; incremented when earlier versions would misread it."""

CHANGE = "; change: "
"""What is before the change in `Verdict.text`."""


@dataclass(frozen=True)
class Cause:
    """One reason why iterations take as long as they do.

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
        The interval of the saving in words, or why it is unknown.
    measure
        What to measure to know more; empty if nothing is missing.
    low_us, high_us
        Where `saving_us` is with a probability of `advisor.interval.CONFIDENCE`. The interval
        combines how the time varies from iteration to iteration with the error of the model: of
        the calibration, or of the simulation of the measured iteration.
    """

    name: str
    evidence: str
    change: str
    saving_us: float | Unknown
    saving_share: float | Unknown
    bound: bool
    uncertainty: str = ""
    measure: str = ""
    low_us: float | Unknown = EARLIER
    high_us: float | Unknown = EARLIER

    @property
    def saving(self) -> str:
        """The saving in words, such as ``"up to 12.00 ms (30%)"``; ``"unknown"`` if it is."""
        if isinstance(self.saving_us, Unknown) or isinstance(self.saving_share, Unknown):
            return "unknown"
        bound = "up to " if self.bound else ""
        return f"{bound}{self.saving_us / 1e3:.2f} ms ({self.saving_share:.0%})"

    @property
    def prediction(self) -> str:
        """The saving and its interval in words, or why the saving is unknown."""
        if isinstance(self.saving_us, Unknown):
            return self.uncertainty
        return f"{self.saving} [{self.uncertainty}]"

    @property
    def text(self) -> str:
        """The evidence, the change, and what to measure, in sentences."""
        text = f"{self.evidence}. {self.change}."
        return f"{text} To measure: {self.measure}." if self.measure else text

    def __str__(self) -> str:
        """Return all of it in one line."""
        return f"{self.prediction}  {self.name}: {self.text}"


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
        The parts of `exposed_us`: how much later the last rank submitted its gradients, in queues,
        for transfers.
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
    causes: tuple[Cause, ...]

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
