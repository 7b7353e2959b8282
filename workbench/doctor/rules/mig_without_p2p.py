"""MIG devices side by side, which cannot reach one another."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.several import named
from workbench.resources import Snapshot


def mig_without_p2p(snapshot: Snapshot) -> Iterator[Finding]:
    """Find several MIG devices in one VM; one alone works."""
    indices = [gpu.index for gpu in snapshot.gpus if gpu.form == "mig"]
    if len(indices) < 2:
        return
    yield Finding(
        rule="mig_without_p2p",
        severity="warning",
        subject=named(set(indices)),
        evidence=f"MIG cuts it into {len(indices)} devices"
        if len(set(indices)) == 1
        else f"MIG cuts them into {len(indices)} devices",
        why="MIG devices have no peer-to-peer, and NCCL knows one rank per GPU: with two ranks on "
        "one GPU it stops (Duplicate GPU detected).",
        cure="Give each MIG device a training of its own, or let the ranks talk by Gloo, which "
        "goes through host memory. To train as one, ask for whole GPUs: "
        "`sudo nvidia-smi -i N -mig 0` where the VM may, with nothing running on it.",
        source="NVIDIA, Multi-Instance GPU User Guide, Application Considerations; "
        "NVIDIA/nccl#1716",
    )
