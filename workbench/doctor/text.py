"""Findings as text, as wide as the terminal."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from workbench.doctor.across import ACROSS
from workbench.doctor.finding import SEVERITIES, Finding
from workbench.doctor.rules import RULES
from workbench.resources import Snapshot, Unknown

_UNKNOWN_WIDTH = 100
_WIDEST = 120
"""Longer lines are hard to read, however wide the terminal is."""
_NARROWEST = 40
_LABEL = "  {:<10}"
_KEPT = "\x00"  # a blank inside of a command


def terminal_width() -> int:
    """Give the columns to write in: the terminal's, 100 where that is not known."""
    columns = shutil.get_terminal_size((_UNKNOWN_WIDTH, 24)).columns
    return max(_NARROWEST, min(columns, _WIDEST))


def paragraphs(finding: Finding, width: int | None = None) -> str:
    """Write one finding: what it is about, then a labelled paragraph for each part.

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
    width = terminal_width() if width is None else width
    head = f"{finding.severity.upper()}  {finding.subject}"
    return "\n".join([head, *(_paragraph(label, text, width) for label, text in parts.items())])


def describe(snapshot: Snapshot, findings: Sequence[Finding], width: int | None = None) -> str:
    """Write a VM's findings: one line that says how it stands, then each of them."""
    return "\n\n".join([verdict(snapshot, findings), *(paragraphs(one, width) for one in findings)])


def describe_all(
    snapshots: Mapping[str, Snapshot],
    findings: Mapping[str, Sequence[Finding]],
    across: Sequence[Finding],
    width: int | None = None,
) -> str:
    """Write the findings about several VMs: between them first, then VM by VM."""
    parts = [across_verdict(snapshots, across), *(paragraphs(one, width) for one in across)]
    for vm, snapshot in snapshots.items():
        parts.append(verdict(snapshot, findings[vm], vm))
        parts += [paragraphs(one, width) for one in findings[vm]]
    return "\n\n".join(parts)


def verdict(snapshot: Snapshot, findings: Sequence[Finding], name: str | None = None) -> str:
    """Say in one line what was looked at (by its host's name, if no other), how it stands."""
    host = snapshot.host.hostname
    if name is None:
        name = "a VM that a topology file describes" if isinstance(host, Unknown) else host
    seen = f"{_count(snapshot.gpus, 'GPU')}, {_count(snapshot.nics, 'NIC')}"
    return f"{name} ({seen}): {_how_many(findings, len(RULES))}"


def across_verdict(snapshots: Mapping[str, Snapshot], across: Sequence[Finding]) -> str:
    """Say in one line how VMs stand to each other."""
    return f"{_count(list(snapshots), 'VM')} beside each other: {_how_many(across, len(ACROSS))}"


def _how_many(findings: Iterable[Finding], rules: int) -> str:
    found = [one.severity for one in findings]
    if not found:
        return f"none of {rules} rules found anything wrong."
    words = {"info": "to know"}
    counts = [
        f"{found.count(one)} {words.get(one, one)}"
        + ("s" if found.count(one) > 1 and one not in words else "")
        for one in SEVERITIES
        if one in found
    ]
    return f"{', '.join(counts)}."


def _count(things: Sequence[object], what: str) -> str:
    return f"{len(things) or 'no'} {what}{'' if len(things) == 1 else 's'}"


def _paragraph(label: str, text: str, width: int) -> str:
    indent = _LABEL.format("")
    room = width - len(indent)

    def keep(command: re.Match[str]) -> str:
        whole = command[0]
        return whole.replace(" ", _KEPT) if len(whole) <= room - 2 else whole

    lines = textwrap.wrap(
        re.sub(r"`[^`]*`", keep, text),
        width,
        initial_indent=_LABEL.format(label),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_KEPT, " ")
