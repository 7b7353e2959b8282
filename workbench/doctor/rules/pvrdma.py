"""A paravirtual RDMA adapter."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot

_DRIVER = "vmw_pvrdma"


def pvrdma(snapshot: Snapshot) -> Iterator[Finding]:
    """Find VMware's paravirtual RDMA adapters."""
    for nic in snapshot.nics:
        named = isinstance(nic.hca_type, str) and nic.hca_type.startswith("VMW_PVRDMA")
        if nic.kind == "rdma" and (named or nic.driver == _DRIVER):
            yield Finding(
                rule="pvrdma",
                severity="info",
                subject=f"{nic.rdma_device}",
                evidence=f"a VMware PVRDMA adapter (driver {nic.driver}, type {nic.hca_type})",
                why="Its driver has no counters, so its RDMA traffic cannot be shown; and it "
                "takes no GPU memory as dma-buf, so gradients on GPUs pass through host memory.",
                cure="Nothing is wrong with it. For counters and GPUDirect RDMA ask for a "
                "passthrough adapter or an SR-IOV virtual function (which gives up vMotion).",
                source="Linux kernel, drivers/infiniband/hw/vmw_pvrdma/pvrdma_main.c, "
                "pvrdma_dev_ops",
            )
