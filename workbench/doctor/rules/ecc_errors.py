"""GPU memory with errors that could not be corrected."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding, Severity
from workbench.doctor.several import alike
from workbench.resources import Gpu, Snapshot
from workbench.resources.gpus.records import Ecc

_FAILED = (
    "Take the GPU out of use and ask the administrator to run NVIDIA's field diagnostic and to "
    "have the GPU replaced (RMA)."
)
_RESET = (
    "Save the training, then reset the GPU: `sudo nvidia-smi --gpu-reset -i N` where the VM may, "
    "else restart the VM. If errors come back, ask the administrator for NVIDIA's field diagnostic."
)


def ecc_errors(snapshot: Snapshot) -> Iterator[Finding]:
    """Find uncorrected errors since the driver was loaded, and rows that need replacing."""
    for subject, evidence in alike(snapshot, _cannot_be_repaired):
        yield _finding("error", subject, evidence, _FAILED)
    for subject, evidence in alike(snapshot, _wants_a_reset):
        yield _finding("warning", subject, evidence, _RESET)


def _finding(severity: Severity, subject: str, evidence: str, cure: str) -> Finding:
    return Finding(
        rule="ecc_errors",
        severity=severity,
        subject=subject,
        evidence=evidence,
        why="A process that hits such an error in its memory is ended by the driver, and with it "
        "the training on all ranks.",
        cure=cure,
        source="NVIDIA, GPU Memory Error Management",
    )


def _cannot_be_repaired(gpu: Gpu) -> str | None:
    failed = isinstance(gpu.ecc, Ecc) and gpu.ecc.remapping_failed is True
    return "a row of memory with errors could not be remapped" if failed else None


def _wants_a_reset(gpu: Gpu) -> str | None:
    ecc = gpu.ecc
    if not isinstance(ecc, Ecc) or ecc.remapping_failed is True:
        return None
    found = []
    if isinstance(ecc.volatile_uncorrected, int) and ecc.volatile_uncorrected > 0:
        found.append(
            f"uncorrected memory errors since the driver was loaded: {ecc.volatile_uncorrected}"
        )
    if ecc.remapping_pending is True:
        found.append("the remapping of a row of memory waits for a reset")
    return "; ".join(found) or None
