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

_GOOD = "All VMs can reach each other and have the same versions."


class HostsView:
    """A survey of VMs as tables."""

    def __init__(self, survey: Survey) -> None:
        # Printable, because this text comes from other machines.
        self._rows = [
            {name: printable(value) for name, value in row.items()} for row in survey.preflight.rows
        ]
        problems = [p for p in survey.preflight.problems if p.severity != "info"]
        self._problems = [
            [f"{SIGNS[p.severity]} {p.severity}", *map(printable, (p.subject, p.evidence, p.cure))]
            for p in problems
        ]
        shown = {(p.subject, p.rule) for p in problems}
        self._findings = {
            vm: (
                snapshot,
                [
                    one
                    for one in diagnose(snapshot)
                    if one.severity != "info" and (vm, one.rule) not in shown
                ],
            )
            for vm, snapshot in survey.snapshots.items()
        }

    def __repr__(self) -> str:
        parts = []
        if self._rows:
            lines = [list(self._rows[0]), *(list(row.values()) for row in self._rows)]
            widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
            parts += ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        parts += [f"{sign} {vm}: {what}\n  cure: {cure}" for sign, vm, what, cure in self._problems]
        if not self._problems:
            parts.append(_GOOD)
        for vm, (snapshot, found) in self._findings.items():
            if found:
                parts += ["", verdict(snapshot, found, vm), *map(paragraphs, found)]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        rows = [list(row.values()) for row in self._rows]
        text = table(list(self._rows[0]), rows) if rows else ""
        if self._problems:
            text += table(["", "VM", "what was found", "cure"], self._problems)
        else:
            text += f'<p style="font-size:12px;margin:4px 0">{escape(_GOOD)}</p>'
        for vm, (snapshot, found) in self._findings.items():
            if found:
                text += heading(verdict(snapshot, found, vm)) + cards(found)
        return text
