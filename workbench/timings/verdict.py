"""The verdict of a training cell: how long an iteration takes and why, as a line and as figures.

`workbench.advisor.verdict` computes the verdict; the run on disk and the live view keep it.
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
"""The text that precedes the change in `Verdict.text`."""


@dataclass(frozen=True)
class Cause:
    """One reason why iterations take as long as they do.

    Attributes
    ----------
    name
        Name of the cause, such as ``"exposed communication"``.
    evidence
        The measurements that show the cause, as a text.
    change
        The change that would help, as a text.
    saving_us
        Predicted saving per iteration, in microseconds.
    saving_share
        The same as a share of the iteration.
    bound
        Whether `saving_us` is only an upper bound.
    uncertainty
        The interval of the saving in words, or the reason why it is unknown.
    measure
        What to measure for a better prediction; empty if nothing is missing.
    low_us, high_us
        The interval that contains `saving_us` with a probability of `advisor.interval.CONFIDENCE`.
        It combines the variation between iterations with the error of the model, which is the error
        of the calibration or of the simulation of the measured iteration.

    Examples
    --------
    >>> cause = Cause(
    ...     name="slow link",
    ...     evidence="the link has 1 of 10 Gbit/s",
    ...     change="Use the faster network",
    ...     saving_us=12_000.0,
    ...     saving_share=0.3,
    ...     bound=True,
    ... )
    >>> cause.saving
    'up to 12.00 ms (30%)'
    >>> cause.text
    'the link has 1 of 10 Gbit/s. Use the faster network.'
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
        """The saving in words, such as ``"up to 12.00 ms (30%)"``, or ``"unknown"``."""
        if isinstance(self.saving_us, Unknown) or isinstance(self.saving_share, Unknown):
            return "unknown"
        bound = "up to " if self.bound else ""
        return f"{bound}{self.saving_us / 1e3:.2f} ms ({self.saving_share:.0%})"

    @property
    def prediction(self) -> str:
        """The saving and its interval in words, or the reason why the saving is unknown."""
        if isinstance(self.saving_us, Unknown):
            return self.uncertainty
        return f"{self.saving} [{self.uncertainty}]"

    @property
    def text(self) -> str:
        """Sentences with the evidence, the change, and what to measure."""
        text = f"{self.evidence}. {self.change}."
        return f"{text} To measure: {self.measure}." if self.measure else text

    def __str__(self) -> str:
        """Return the prediction, the name and the text in one line."""
        return f"{self.prediction}  {self.name}: {self.text}"


@dataclass(frozen=True)
class Verdict:
    """How long an iteration of a training cell takes, and why.

    The figures are of at most 64 of the cell's newest iterations, without its first iteration.

    Attributes
    ----------
    text
        The verdict in one line.
    cell
        Number of the cell.
    first_iteration, last_iteration
        The first and the last iteration of the figures.
    ranks
        Number of ranks.
    iteration_us, median_us
        Mean and median duration of an iteration, in microseconds.
    exposed_us, exposed_share
        Mean time that training waited for gradients, and its share of the iteration.
    waiting_us, queued_us, transfer_us
        The parts of `exposed_us`: how much later the last rank submitted its gradients, time in
        queues, and time in transfers.
    samples_per_s
        Samples per second of all ranks together.
    causes
        The causes that `workbench.explain` names, with the largest saving first.
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
        """The text without the change."""
        return self.text.partition(CHANGE)[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values; an unknown figure is ``{"unknown": reason}``."""
        return {"version": VERSION, **encode(self)}

    @classmethod
    def from_dict(cls, values: Any) -> Verdict:
        """Return the verdict that `to_dict` converted to plain values.

        Raises
        ------
        RunError
            The values are of another version, or damaged.
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
