"""A part of this VM could not be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from workbench.doctor.finding import Finding, Severity
from workbench.resources import Snapshot, Unknown

_SILENT = ("did not answer within", "has not come back from an earlier call")
"""In the reason of each value for which a call was waited for in vain."""
_SUBJECTS = {"gpus": "the GPUs", "nics": "the NICs", "pcie": "PCIe", "host": "this VM"}
_CURES = {
    "gpus": "Run `nvidia-smi` in the VM: where it hangs or fails too, restart the VM, "
    "and search `dmesg` for NVRM lines.",
    "nics": "Run `ip -s link` and `ls -R /sys/class/infiniband`, and read `dmesg`.",
    "pcie": "Run `lspci -tv`, read `dmesg`, and check that the file that NCCL_TOPO_FILE names "
    "can be read.",
    "host": "Read `dmesg`.",
}


def probe_failed(snapshot: Snapshot) -> Iterator[Finding]:
    """Find probes that failed or ran past their time limit, and parts of GPUs that did."""
    for name, probe in snapshot.probes.items():
        if probe.status == "failed":
            took = f"after {probe.elapsed_ms:.0f} ms"
            yield _finding("error", name, f"could not be read: {probe.reason} ({took})")
    silent = _silent(snapshot) if snapshot.gpus else ()
    if silent:
        yield _finding("warning", "gpus", f"only partly known: {'; '.join(silent)}")


def _silent(snapshot: Snapshot) -> list[str]:
    """Give the reasons of values of GPUs that the driver did not answer for."""
    of_gpus = (getattr(gpu, field.name) for gpu in snapshot.gpus for field in fields(gpu))
    values = (*of_gpus, snapshot.gpu_pairs)
    reasons = {value.reason for value in values if isinstance(value, Unknown)}
    return sorted(reason for reason in reasons if any(words in reason for words in _SILENT))


def _finding(severity: Severity, name: str, evidence: str) -> Finding:
    return Finding(
        rule="probe_failed",
        severity=severity,
        subject=_SUBJECTS.get(name, name),
        evidence=evidence,
        why="A driver that does not answer here will not answer the training either.",
        cure=_CURES.get(name, "Read `dmesg`."),
        source="NVIDIA, GPU debug guidelines",
    )
