"""Running all rules over a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from workbench.doctor.across import ACROSS
from workbench.doctor.finding import SEVERITIES, Finding
from workbench.doctor.live import LIVE
from workbench.doctor.rules import LIMITS, RULES
from workbench.resources import Snapshot
from workbench.resources.usage import Sample


def diagnose(snapshot: Snapshot, sample: Sample | None = None) -> list[Finding]:
    """Give all findings, the worst first.

    Parameters
    ----------
    snapshot
        Of this VM or of another one (`Snapshot.load`).
    sample
        What that VM uses at this moment, by a sampler that has run for a while: then also
        GPUs that are taken and idle, and for how long, and RDMA ports that lose packets.

    Returns
    -------
    list of Finding
        Empty where nothing is wrong that a rule knows of. A value that is
        unknown is never taken for a wrong one.
    """
    found = [finding for rule in RULES for finding in rule(snapshot)]
    if sample is not None:
        found += [finding for live in LIVE for finding in live(snapshot, sample)]
    return _worst_first(found)


def diagnose_limits(snapshot: Snapshot) -> list[Finding]:
    """Return the findings about limits that ranks run into: a part of `diagnose`, worst first."""
    return _worst_first(finding for rule in LIMITS for finding in rule(snapshot))


def diagnose_all(snapshots: Mapping[str, Snapshot]) -> list[Finding]:
    """Hold VMs that train together against each other; the worst first.

    Parameters
    ----------
    snapshots
        By the VMs' names, as findings are to tell of them.

    Returns
    -------
    list of Finding
        How they are unlike: each names the VMs that differ from most. What is wrong
        within one of them, `diagnose` finds. A value that is unknown on a VM is
        left out, so of VMs of which nothing is known nothing is found.
    """
    return _worst_first(finding for rule in ACROSS for finding in rule(snapshots))


def _worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
