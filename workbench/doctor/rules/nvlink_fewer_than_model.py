"""A GPU that shows fewer NVLinks than its model has."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.gpu_links import links_of
from workbench.doctor.several import alike
from workbench.resources import Gpu, Snapshot

# Models of which every one has all links of its generation (NVIDIA's data sheets: V100 6,
# A100 12, H100 18), by the beginning of the name that the driver gives.
_LINKS = {
    "Tesla V100-SXM": 6,
    "NVIDIA A100-SXM": 12,
    "A100-SXM": 12,
    "NVIDIA H100 80GB HBM3": 18,
}


def nvlink_fewer_than_model(snapshot: Snapshot) -> Iterator[Finding]:
    """Find SXM GPUs that list fewer links, up or down, than such a GPU has."""
    for subject, evidence in alike(snapshot, _fewer):
        yield Finding(
            rule="nvlink_fewer_than_model",
            severity="warning",
            subject=subject,
            evidence=evidence,
            why="Each link that is missing takes its share of the bandwidth to the other GPUs.",
            cure="`nvidia-smi nvlink --status`; look for Xid 74 in `dmesg`, and ask the "
            "administrator whether links were switched off for this VM (a part of a board) or "
            "have failed.",
            source="NVIDIA, data sheets of V100, A100 and H100; XID Errors, Xid catalog",
        )


def _fewer(gpu: Gpu) -> str | None:
    if not isinstance(gpu.name, str) or gpu.form not in ("whole", "passthrough"):
        return None
    most = next((count for name, count in _LINKS.items() if gpu.name.startswith(name)), 0)
    count = len(links_of(gpu))  # 0 where they are not known
    if count == 0 or count >= most:
        return None
    return f"{count} NVLinks, where {gpu.name} has {most}"
