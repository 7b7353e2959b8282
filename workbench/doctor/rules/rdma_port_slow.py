"""An RDMA port that runs slower than its twins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Nic, Snapshot


def rdma_port_slow(snapshot: Snapshot) -> Iterator[Finding]:
    """Find active ports below the rate of another port of the same model and link layer.

    What a model could do at most is in no file of the guest; its twins show it.
    """
    twins: defaultdict[tuple[str, str], list[tuple[float, Nic]]] = defaultdict(list)
    for nic in snapshot.nics:
        if nic.state != "active" or not isinstance(nic.rate_gbps, float):
            continue
        if isinstance(nic.hca_type, str) and isinstance(nic.link_layer, str):
            twins[nic.hca_type, nic.link_layer].append((nic.rate_gbps, nic))
    for group in twins.values():
        best = max(rate for rate, _ in group)
        yield from (_finding(nic, rate, best) for rate, nic in group if rate < best)


def _finding(nic: Nic, rate_gbps: float, best_gbps: float) -> Finding:
    return Finding(
        rule="rdma_port_slow",
        severity="warning",
        subject=f"{nic.rdma_device}",
        evidence=f"runs at {rate_gbps:g} Gb/s; another {nic.hca_type} of this VM at "
        f"{best_gbps:g} Gb/s",
        why="A ring allreduce is as fast as its slowest link: this port holds back all of them.",
        cure="Ask the administrator to compare cable, switch port and firmware of the two ports "
        f"(`mlxlink -d {nic.pci_address}` shows the rates that both ends allow).",
        source="NVIDIA, MFT documentation, mlxlink utility",
    )
