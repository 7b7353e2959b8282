"""Rules over snapshots: what is set up wrong, why it costs, and its cure."""

from __future__ import annotations

from workbench.doctor.diagnosis import describe, diagnose, diagnose_all
from workbench.doctor.finding import Finding, Severity

__all__ = ["Finding", "Severity", "describe", "diagnose", "diagnose_all"]
