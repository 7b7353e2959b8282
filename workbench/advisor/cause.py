"""One reason why iterations take as long as they do."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.timings import Summary


@dataclass(frozen=True)
class Cause:
    """One reason why iterations take as long as they do.

    Attributes
    ----------
    name
        Name of the cause, such as ``"exposed communication"``.
    evidence
        What was measured.
    cure
        What would help.
    saving_us
        Predicted saving per iteration, an upper bound if `bound` is true; NaN if unknown.
    saving_share
        The same as a share of the iteration.
    bound
        Whether `saving_us` is only an upper bound.
    """

    name: str
    evidence: str
    cure: str
    saving_us: float
    saving_share: float
    bound: bool


def cause(
    summary: Summary, name: str, evidence: str, cure: str, saving: float, *, bound: bool
) -> Cause:
    """Return a cause with its saving as a share of the iteration."""
    return Cause(name, evidence, cure, saving, saving / summary.iteration_us, bound)
