"""A part of this VM could not be looked at."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot

_SUBJECTS = {"gpus": "the GPUs", "nics": "the NICs", "pcie": "PCIe", "host": "this VM"}
_CURES = {
    "gpus": "Run `nvidia-smi` in the VM: where it hangs or fails too, restart the VM, "
    "and look for NVRM lines in `dmesg`.",
    "nics": "Run `ip -s link` and `ls -R /sys/class/infiniband`, and look at `dmesg`.",
    "pcie": "Run `lspci -tv`, look at `dmesg`, and check that the file that NCCL_TOPO_FILE names "
    "can be read.",
    "host": "Look at `dmesg`.",
}


def probe_failed(snapshot: Snapshot) -> Iterator[Finding]:
    """Find probes that failed or ran past their time limit."""
    for name, probe in snapshot.probes.items():
        if probe.status == "failed":
            yield Finding(
                rule="probe_failed",
                severity="error",
                subject=_SUBJECTS.get(name, name),
                evidence=f"could not be looked at: {probe.reason} (after {probe.elapsed_ms:.0f} "
                "ms)",
                why="A driver that does not answer here will not answer the training either.",
                cure=_CURES.get(name, "Look at `dmesg`."),
                source="NVIDIA, GPU debug guidelines",
            )
