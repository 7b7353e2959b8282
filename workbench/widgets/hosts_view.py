"""Several VMs in a notebook: a row per VM, their differences, and the findings on each."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from workbench.doctor import diagnose
from workbench.doctor.finding import paragraphs
from workbench.doctor.text import verdict
from workbench.errors import printable
from workbench.widgets.findings import SIGNS, cards, heading
from workbench.widgets.machine import table

if TYPE_CHECKING:
    from workbench.cluster.launchers.preflight import Survey

_NO_PROBLEM = "All VMs can reach each other and have the same versions."


class HostsView:
    """A survey of VMs as tables."""

    def __init__(self, survey: Survey) -> None:
        # The text is made printable, because it comes from other VMs.
        self._rows = [
            {name: printable(value) for name, value in row.items()} for row in survey.preflight.rows
        ]
        problems = [problem for problem in survey.preflight.problems if problem.severity != "info"]
        self._problems = [
            [
                f"{SIGNS[problem.severity]} {problem.severity}",
                *map(printable, (problem.subject, problem.evidence, problem.fix)),
            ]
            for problem in problems
        ]
        shown_problems = {(problem.subject, problem.rule) for problem in problems}
        self._findings = {
            vm: (
                snapshot,
                [
                    finding
                    for finding in diagnose(snapshot)
                    if finding.severity != "info" and (vm, finding.rule) not in shown_problems
                ],
            )
            for vm, snapshot in survey.snapshots.items()
        }

    def __repr__(self) -> str:
        parts = []
        if self._rows:
            lines = [list(self._rows[0]), *(list(row.values()) for row in self._rows)]
            widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
            parts += ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        parts += [
            f"{sign} {vm}: {evidence}\n  fix: {fix}" for sign, vm, evidence, fix in self._problems
        ]
        if not self._problems:
            parts.append(_NO_PROBLEM)
        for vm, (snapshot, findings) in self._findings.items():
            if findings:
                parts += ["", verdict(snapshot, findings, vm), *map(paragraphs, findings)]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        rows = [list(row.values()) for row in self._rows]
        text = table(list(self._rows[0]), rows) if rows else ""
        if self._problems:
            text += table(["", "VM", "what was found", "fix"], self._problems)
        else:
            text += f'<p style="font-size:12px;margin:4px 0">{escape(_NO_PROBLEM)}</p>'
        for vm, (snapshot, findings) in self._findings.items():
            if findings:
                text += heading(verdict(snapshot, findings, vm)) + cards(findings)
        return text
