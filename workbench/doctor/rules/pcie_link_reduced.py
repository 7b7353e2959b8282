"""A GPU's PCIe link with fewer lanes, or at a lower generation, than it could."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.several import alike
from workbench.resources import Gpu, Snapshot
from workbench.resources.gpus.records import Clocks, PcieLink


def pcie_link_reduced(snapshot: Snapshot) -> Iterator[Finding]:
    """Find links below what GPU and slot both can; the generation only of a GPU at work."""
    for subject, evidence in alike(snapshot, _reduced):
        yield Finding(
            rule="pcie_link_reduced",
            severity="warning",
            subject=subject,
            evidence=evidence,
            why="Batches from the host, and gradients where there is no NVLink, cross this link "
            "at a part of its speed.",
            cure="`nvidia-smi -q | grep -A8 'GPU Link Info'` while it works; then ask the "
            "administrator to reseat card and riser and to check the slot's settings in the "
            "BIOS.",
            source="NVIDIA, nvidia-smi documentation, GPU Link information",
        )


def _reduced(gpu: Gpu) -> str | None:
    link = gpu.pcie_link
    if not isinstance(link, PcieLink):
        return None
    found = []
    if _below(link.width, link.width_max):
        found.append(f"x{link.width} of x{link.width_max}")
    if _below(link.generation, link.generation_max) and _works(gpu):
        found.append(f"generation {link.generation} of {link.generation_max}")
    return f"PCIe link at {', '.join(found)}" if found else None


def _below(now: object, most: object) -> bool:
    return isinstance(now, int) and isinstance(most, int) and now < most


def _works(gpu: Gpu) -> bool:
    """Say whether the GPU surely has work: it is not called idle, and its clock is up."""
    clocks = gpu.clocks
    if not isinstance(clocks, Clocks) or not isinstance(clocks.held_by, tuple):
        return False
    if not isinstance(clocks.sm_mhz, int) or not isinstance(clocks.sm_max_mhz, int):
        return False
    return "idle" not in clocks.held_by and 2 * clocks.sm_mhz > clocks.sm_max_mhz
