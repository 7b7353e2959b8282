"""The verdict of a training cell and its causes, for pages without a kernel."""

from __future__ import annotations

from workbench.timings.verdict import Verdict
from workbench.widgets.table import Table

_HEAD = ("saving per iteration", "cause", "evidence", "change")


def verdict_table(verdict: Verdict | None) -> str:
    """Return the verdict as HTML, with a table of its causes; empty if there is none."""
    if verdict is None:
        return ""
    rows = [(cause.saving, cause.name, cause.evidence, cause.change) for cause in verdict.causes]
    return Table(f"Verdict: {verdict.text}.", _HEAD, rows)._repr_html_()
