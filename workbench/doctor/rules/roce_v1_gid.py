"""NCCL is told to speak RoCE v1."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.reading import nccl_setting
from workbench.resources import Gid, Nic, Snapshot

_INDEX, _VERSION = "NCCL_IB_GID_INDEX", "NCCL_IB_ROCE_VERSION_NUM"


def roce_v1_gid(snapshot: Snapshot) -> Iterator[Finding]:
    """Find RoCE ports where NCCL's settings name a GID of version 1, though there is one of 2."""
    for nic in snapshot.nics:
        if nic.kind == "rdma" and nic.link_layer == "Ethernet":
            chosen, better = _chosen(snapshot, nic), _first(nic, "v2")
            if chosen is not None and better is not None:
                yield _finding(nic, *chosen, better)


def _chosen(snapshot: Snapshot, nic: Nic) -> tuple[str, Gid] | None:
    """Give the setting that names a GID of version 1, and that GID."""
    index = nccl_setting(snapshot, _INDEX)
    if index is not None and index.isdecimal():
        named = next((gid for gid in nic.gids if gid.index == int(index)), None)
        return (f"{_INDEX}={index}", named) if named and _is(named, "v1") else None
    if nccl_setting(snapshot, _VERSION) == "1":  # NCCL looks for an entry by itself
        first = _first(nic, "v1")
        return (f"{_VERSION}=1", first) if first else None
    return None


def _first(nic: Nic, version: str) -> Gid | None:
    return next((gid for gid in nic.gids if _is(gid, version)), None)


def _is(gid: Gid, version: str) -> bool:
    return isinstance(gid.type, str) and gid.type.endswith(version)


def _finding(nic: Nic, setting: str, gid: Gid, better: Gid) -> Finding:
    return Finding(
        rule="roce_v1_gid",
        severity="warning",
        subject=f"{nic.rdma_device}",
        evidence=f"{setting} is set, and entry {gid.index} of its GID table is {gid.type}; "
        f"entry {better.index} is {better.type}",
        why="RoCE v1 has no IP header: it reaches only VMs of the same Ethernet broadcast domain, "
        "and the two ends of a connection must speak the same version.",
        cure=f"`unset {setting.partition('=')[0]}`: NCCL finds a RoCE v2 entry by itself since "
        f"2.21. For an older NCCL: `export {_INDEX}=N` with the entry that is RoCE v2 and has "
        "the port's IPv4 address (`show_gids`) on every VM.",
        source="NVIDIA, NCCL User Guide, NCCL_IB_GID_INDEX; "
        "NVIDIA, MLNX_OFED documentation, RDMA over Converged Ethernet",
    )
