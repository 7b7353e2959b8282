"""Findings of the doctor in a notebook: a card for each, in the theme's colours."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape

from workbench.doctor import Finding, describe, describe_all, diagnose, diagnose_all
from workbench.doctor.text import across_verdict, verdict
from workbench.resources import Snapshot

SIGNS = {"error": "\u2716", "warning": "\u26a0", "info": "\u2139"}

# JupyterLab defines the variables. Other front ends use the colours after the commas, which are
# legible on white and on black. Only signs and edges are coloured: text keeps the page's colour.
_COLOURS = {
    "error": "var(--jp-error-color1, #d32f2f)",
    "warning": "var(--jp-warn-color1, #e07000)",
    "info": "var(--jp-info-color1, #0288d1)",
}
_EDGE = "var(--jp-border-color2, rgba(127, 127, 127, 0.4))"
_CARD = (
    "color:inherit;font-size:13px;line-height:1.45;margin:0 0 8px 0;padding:6px 12px;"
    "max-width:60em;border:1px solid {edge};border-left:4px solid {colour};border-radius:3px"
)
_GRID = "display:grid;grid-template-columns:max-content 1fr;gap:2px 12px;margin:4px 0 0 0"
# These styles override the floats and widths that notebooks give to lists.
_LABEL = "font-weight:normal;opacity:.75;margin:0;float:none;width:auto"
_TEXT = "margin:0;min-width:0;overflow-wrap:anywhere;float:none;width:auto"
_CODE = (
    "font-family:var(--jp-code-font-family, monospace);font-size:12px;color:inherit;"
    "background:rgba(127, 127, 127, 0.15);padding:0 3px;border-radius:2px"
)
_VERDICT = "color:inherit;font-size:13px;font-weight:600;margin:8px 0 6px 0"


class FindingsView:
    """The findings on a VM as cards; the text form is the output of `workbench doctor`."""

    def __init__(self, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        self.snapshot = snapshot
        self.findings = findings

    def __repr__(self) -> str:
        return describe(self.snapshot, self.findings)

    def _repr_html_(self) -> str:
        return heading(verdict(self.snapshot, self.findings)) + cards(self.findings)


class VmsView:
    """The findings on several VMs: first from their comparison, then of each VM."""

    def __init__(self, snapshots: Mapping[str, Snapshot]) -> None:
        self.snapshots = snapshots
        self.across = diagnose_all(snapshots)
        self.findings = {vm: diagnose(snapshot) for vm, snapshot in snapshots.items()}

    def __repr__(self) -> str:
        return describe_all(self.snapshots, self.findings, self.across)

    def _repr_html_(self) -> str:
        html = heading(across_verdict(self.snapshots, self.across)) + cards(self.across)
        for vm, snapshot in self.snapshots.items():
            vm_findings = self.findings[vm]
            html += heading(verdict(snapshot, vm_findings, vm)) + cards(vm_findings)
        return html


def heading(line: str) -> str:
    """Return the line above cards as HTML."""
    return f'<p style="{_VERDICT}">{_with_code(line)}</p>'


def cards(findings: Sequence[Finding]) -> str:
    """Return a card for each finding as HTML, in the given order."""
    return "".join(map(_card, findings))


def _card(finding: Finding) -> str:
    colour = _COLOURS[finding.severity]
    parts = {
        "why": finding.why,
        "fix": finding.fix,
        "source": f"{finding.source} [{finding.rule}]",
    }
    rows = "".join(
        f'<dt style="{_LABEL}">{label}</dt><dd style="{_TEXT}">{_with_code(text)}</dd>'
        for label, text in parts.items()
    )
    return (
        f'<section style="{_CARD.format(edge=_EDGE, colour=colour)}" '
        f'aria-label="{finding.severity}: {escape(finding.subject, quote=True)}">'
        f'<div><span style="color:{colour}" aria-hidden="true">{SIGNS[finding.severity]}</span> '
        f"{finding.severity} \u00b7 <strong>{escape(finding.subject)}</strong>: "
        f'{_with_code(finding.evidence)}</div><dl style="{_GRID}">{rows}</dl></section>'
    )


def _with_code(text: str) -> str:
    """Return text as HTML, with text in backticks as code."""
    return re.sub(r"`([^`]*)`", rf'<code style="{_CODE}">\1</code>', escape(text))
