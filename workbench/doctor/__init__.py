"""Rules over snapshots: what is set up wrong, why it costs, and its cure."""

from __future__ import annotations

from workbench.doctor.diagnosis import diagnose, diagnose_all, diagnose_limits
from workbench.doctor.finding import Finding, Severity
from workbench.doctor.text import describe, describe_all

__all__ = [
    "Finding",
    "Severity",
    "describe",
    "describe_all",
    "diagnose",
    "diagnose_all",
    "diagnose_limits",
]
