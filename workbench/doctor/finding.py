"""The result of a rule, and its layout on a terminal."""

from __future__ import annotations

import re
import shutil
import textwrap
from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Severities, from faults that stop training to remarks; reports are sorted in this order."""

_DEFAULT_WIDTH = 100
"""Columns if the width of the terminal is unknown."""
_MAX_WIDTH = 120
"""Longer lines are hard to read, even on a wider terminal."""
_MIN_WIDTH = 40
_LABEL = "  {:<10}"
_UNBROKEN_BLANK = "\x00"
"""Replaces a blank inside a command while lines are wrapped."""


@dataclass(frozen=True)
class Finding:
    """A wrong setting, or a limit of a VM.

    Attributes
    ----------
    rule
        Name of the rule.
    severity
        ``"error"``, ``"warning"`` or ``"info"``.
    subject
        The device or VM that is affected: ``"mlx5_0"``, ``"GPU 0"``, ``"this VM"``.
    evidence
        The value that was read.
    why
        The cost of the setting.
    fix
        The setting or command that fixes it.
    source
        The document on which the rule is based.
    """

    rule: str
    severity: Severity
    subject: str
    evidence: str
    why: str
    fix: str
    source: str

    def __str__(self) -> str:
        """Return the finding as text, as wide as the terminal."""
        return paragraphs(self)


def paragraphs(finding: Finding, width: int | None = None) -> str:
    """Return a finding as text: severity and subject, then a labelled paragraph for each field.

    Parameters
    ----------
    finding
        A result of `diagnose` or `diagnose_all`.
    width
        Number of columns; by default the width of the terminal. A command in backticks is not
        broken unless it is longer than a line.

    Examples
    --------
    >>> finding = Finding(
    ...     "roce_mtu", "warning", "eth1", "MTU 1500", "more packets", "MTU 9000", "NVIDIA"
    ... )
    >>> print(paragraphs(finding, 60))
    WARNING  eth1
      evidence  MTU 1500
      why       more packets
      fix       MTU 9000
      source    NVIDIA [roce_mtu]
    """
    parts = {
        "evidence": finding.evidence,
        "why": finding.why,
        "fix": finding.fix,
        "source": f"{finding.source} [{finding.rule}]",
    }
    lines = [f"{finding.severity.upper()}  {finding.subject}"]
    for label, text in parts.items():
        lines.append(wrapped(text, width, _LABEL.format(label), _LABEL.format("")))
    return "\n".join(lines)


def wrapped(text: str, width: int | None = None, first: str = "", indent: str = "") -> str:
    """Break a text into lines. The first line begins with `first`, all others with `indent`."""
    width = _terminal_width() if width is None else width
    available = width - len(indent)

    def unbroken(command: re.Match[str]) -> str:
        text = command[0]
        return text.replace(" ", _UNBROKEN_BLANK) if len(text) <= available - 2 else text

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
    """Return the width of the terminal in columns, within limits; 100 if it is unknown."""
    columns = shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns
    return max(_MIN_WIDTH, min(columns, _MAX_WIDTH))
