"""What a rule finds, and its layout on a terminal."""

from __future__ import annotations

import re
import shutil
import textwrap
from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""From what breaks training to what is good to know."""

_UNKNOWN_WIDTH = 100
_WIDEST = 120
"""Longer lines are hard to read, however wide the terminal is."""
_NARROWEST = 40
_LABEL = "  {:<10}"
_UNBROKEN_BLANK = "\x00"
"""Replaces a blank inside a command while lines are wrapped."""


@dataclass(frozen=True)
class Finding:
    """One thing that is set up wrong, or that limits what a VM can do.

    Attributes
    ----------
    rule
        Name of the rule.
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
        The document that says so.
    """

    rule: str
    severity: Severity
    subject: str
    evidence: str
    why: str
    cure: str
    source: str

    def __str__(self) -> str:
        """Return the finding as text, as wide as the terminal."""
        return paragraphs(self)


def paragraphs(finding: Finding, width: int | None = None) -> str:
    """Return one finding as text: severity and subject, then a labelled paragraph for each field.

    Parameters
    ----------
    finding
        Of `diagnose` or `diagnose_all`.
    width
        Columns; the terminal's by default. A command in backticks is not broken unless
        it is longer than a line.
    """
    parts = {
        "evidence": finding.evidence,
        "why": finding.why,
        "cure": finding.cure,
        "source": f"{finding.source} [{finding.rule}]",
    }
    lines = [f"{finding.severity.upper()}  {finding.subject}"]
    for label, text in parts.items():
        lines.append(wrapped(text, width, _LABEL.format(label), _LABEL.format("")))
    return "\n".join(lines)


def wrapped(text: str, width: int | None = None, first: str = "", indent: str = "") -> str:
    """Break a text into lines, the first after `first`, all others after `indent`."""
    width = _terminal_width() if width is None else width
    longest = width - len(indent)

    def unbroken(command: re.Match[str]) -> str:
        text = command[0]
        return text.replace(" ", _UNBROKEN_BLANK) if len(text) <= longest - 2 else text

    lines = textwrap.wrap(
        re.sub(r"`[^`]*`", unbroken, text),
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_UNBROKEN_BLANK, " ")


def _terminal_width() -> int:
    """Return the columns to write in: the terminal's, 100 if they are not known."""
    columns = shutil.get_terminal_size((_UNKNOWN_WIDTH, 24)).columns
    return max(_NARROWEST, min(columns, _WIDEST))
