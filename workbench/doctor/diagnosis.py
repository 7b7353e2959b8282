"""Running all rules over a snapshot."""

from __future__ import annotations

from workbench.doctor.finding import SEVERITIES, Finding
from workbench.doctor.rules import RULES
from workbench.resources import Snapshot


def diagnose(snapshot: Snapshot) -> list[Finding]:
    """Give all findings, the worst first.

    Parameters
    ----------
    snapshot
        Of this VM or of another one (`Snapshot.load`).

    Returns
    -------
    list of Finding
        Empty where nothing is wrong that a rule knows of. A value that is
        unknown is never taken for a wrong one.
    """
    findings = [finding for rule in RULES for finding in rule(snapshot)]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def describe(snapshot: Snapshot, findings: list[Finding]) -> str:
    """Write findings for a terminal, with what was looked at."""
    where = f"{snapshot.host.hostname} (GPUs: {len(snapshot.gpus)}, NICs: {len(snapshot.nics)})"
    if not findings:
        return f"{where}. None of the {len(RULES)} rules found anything wrong."
    return "\n\n".join([f"{where}.", *map(str, findings)])
