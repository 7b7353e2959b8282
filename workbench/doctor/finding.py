"""What a rule finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""From what breaks training to what is good to know."""


@dataclass(frozen=True)
class Finding:
    """One thing that is set up wrong, or that limits what can be had.

    Attributes
    ----------
    rule
        Name of the rule: its file in ``doctor/rules``.
    severity
        ``"error"``, ``"warning"`` or ``"info"``.
    subject
        What it is about: ``"mlx5_0"``, ``"GPU 0"``, ``"this VM"``.
    evidence
        What was read, with its value.
    why
        What it costs.
    cure
        The exact setting or command.
    source
        The document behind it.
    """

    rule: str
    severity: Severity
    subject: str
    evidence: str
    why: str
    cure: str
    source: str

    def __str__(self) -> str:
        """Write the finding for a terminal, as wide as that is."""
        from workbench.doctor.text import paragraphs  # it takes findings

        return paragraphs(self)
