"""A vGPU without its licence."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.several import alike
from workbench.resources import Gpu, Snapshot
from workbench.resources.gpus.records import Licence


def vgpu_unlicensed(snapshot: Snapshot) -> Iterator[Finding]:
    """Find vGPUs whose driver says that they run without a licence."""
    for subject, evidence in alike(snapshot, _unlicensed):
        yield Finding(
            rule="vgpu_unlicensed",
            severity="warning",
            subject=subject,
            evidence=evidence,
            why="A vGPU without a licence works at first; after a while the driver slows it down.",
            cure="Put the licence server's client configuration token into "
            "/etc/nvidia/ClientConfigToken, then `sudo systemctl restart "
            "nvidia-gridd`; `nvidia-smi -q | grep -i licen` shows how it went, "
            "`journalctl -u nvidia-gridd` why not.",
            source="NVIDIA, Virtual GPU Client Licensing User Guide",
        )


def _unlicensed(gpu: Gpu) -> str | None:
    licence = gpu.licence
    if gpu.form != "vgpu" or not isinstance(licence, Licence) or licence.state != "unlicensed":
        return None
    product = f" ({licence.product})" if isinstance(licence.product, str) else ""
    return f"profile {gpu.vgpu_profile} runs without a licence{product}"
