"""Reports of findings as text, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from workbench.doctor.facts import count, is_unknown
from workbench.doctor.finding import SEVERITIES, Finding, paragraphs, wrapped
from workbench.doctor.rules import ACROSS, RULES, rule_count
from workbench.resources import Snapshot, Unknown

_TOPOLOGY_FILE_NOTE = (
    "A file shows only where devices are, no drivers, ports or limits: for those run "
    "`workbench doctor` in the VM itself."
)


def describe(snapshot: Snapshot, findings: Sequence[Finding], width: int | None = None) -> str:
    """Return the findings on a VM as text: a summary line, then each finding."""
    first = wrapped(verdict(snapshot, findings), width)
    return "\n\n".join([first, *(paragraphs(finding, width) for finding in findings)])


def describe_all(
    snapshots: Mapping[str, Snapshot],
    findings: Mapping[str, Sequence[Finding]],
    across: Sequence[Finding],
    width: int | None = None,
) -> str:
    """Return the findings on several VMs as text: the differences first, then VM by VM."""
    parts = [wrapped(across_verdict(snapshots, across), width)]
    parts += [paragraphs(finding, width) for finding in across]
    for vm, snapshot in snapshots.items():
        parts.append(wrapped(verdict(snapshot, findings[vm], vm), width))
        parts += [paragraphs(finding, width) for finding in findings[vm]]
    return "\n\n".join(parts)


def verdict(snapshot: Snapshot, findings: Sequence[Finding], name: str | None = None) -> str:
    """Return one line with the VM's name, its devices and the number of findings.

    By default, the name is the host name.
    """
    host = snapshot.host.hostname
    if name is None:
        name = "a VM that a topology file describes" if isinstance(host, Unknown) else host
    devices = [_gpus(snapshot), _nics(snapshot)]
    unknown_devices = snapshot.devices_of_unknown_kind
    if unknown_devices:
        devices.append(f"{count(len(unknown_devices), 'device')} of unknown kind")
    subject = f"{name} ({', '.join(devices)})"
    if snapshot.is_topology_file:
        counts = _severity_counts(findings) or "nothing wrong"
        return f"{subject}: {counts} in what the file says. {_TOPOLOGY_FILE_NOTE}"
    return f"{subject}: {_result(findings, rule_count(RULES))}"


def across_verdict(snapshots: Mapping[str, Snapshot], across: Sequence[Finding]) -> str:
    """Return one line with the number of VMs compared and of findings."""
    compared = f"{count(len(snapshots), 'VM')} compared"
    files = sum(snapshot.is_topology_file for snapshot in snapshots.values())
    if files == 0:
        return f"{compared}: {_result(across, rule_count(ACROSS))}"
    counts = _severity_counts(across) or "no difference"
    described = "all" if files == len(snapshots) else files
    remark = f"only a topology file is known of {described} of them"
    return f"{compared}: {counts} in what is known ({remark})."


def _gpus(snapshot: Snapshot) -> str:
    if not snapshot.gpus and is_unknown(snapshot, "gpus"):
        return "GPUs unknown"
    undivided = {gpu.index for gpu in snapshot.gpus if gpu.form != "mig"}
    divided = [gpu.index for gpu in snapshot.gpus if gpu.form == "mig"]
    if not divided:
        return count(len(undivided), "GPU")
    mig = f"{count(len(divided), 'MIG device')} of {count(len(set(divided)), 'GPU')}"
    return f"{count(len(undivided), 'GPU')} and {mig}" if undivided else mig


def _nics(snapshot: Snapshot) -> str:
    unknown = not snapshot.nics and is_unknown(snapshot, "nics")
    return "NICs unknown" if unknown else count(len(snapshot.nics), "NIC")


def _result(findings: Iterable[Finding], rules: int) -> str:
    counts = _severity_counts(findings)
    return f"{counts}." if counts else f"none of {rules} rules found anything wrong."


def _severity_counts(findings: Iterable[Finding]) -> str:
    """Return ``"1 error, 2 warnings, 1 note"``; empty if there are no findings."""
    severities = [finding.severity for finding in findings]
    counts = {
        severity: severities.count(severity) for severity in SEVERITIES if severity in severities
    }
    return ", ".join(
        count(number, "note" if severity == "info" else severity)
        for severity, number in counts.items()
    )
