"""NVLinks of a GPU that are down while others are up."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.gpu_links import links_of, links_up
from workbench.doctor.several import alike
from workbench.resources import Gpu, Snapshot


def nvlink_down(snapshot: Snapshot) -> Iterator[Finding]:
    """Find GPUs with links that are down, in a VM where NVLink is in use.

    Where no link of any GPU is up, the links may be there for a bridge that nobody bought.
    """
    if not any(links_up(gpu) for gpu in snapshot.gpus):
        return
    for subject, evidence in alike(snapshot, _down):
        yield Finding(
            rule="nvlink_down",
            severity="warning",
            subject=subject,
            evidence=evidence,
            why="An allreduce inside this VM is as fast as the GPU with the fewest links; "
            "where the VM holds a part of a board, the links to its other GPUs may be off on "
            "purpose.",
            cure="`nvidia-smi nvlink --status` and `nvidia-smi nvlink -e` (errors per link); look "
            "for Xid 74 in `dmesg`. For bridges: all of them seated? Ask the administrator to "
            "reset the GPU or restart the host.",
            source="NVIDIA, XID Errors, Xid catalog",
        )


def _down(gpu: Gpu) -> str | None:
    links = links_of(gpu)
    down = [link.number for link in links if link.state == "down"]
    if not down:
        return None
    return f"NVLinks that are down: {', '.join(map(str, down))} ({len(down)} of {len(links)})"
