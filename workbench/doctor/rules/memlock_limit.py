"""RDMA under a limit on locked memory."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot
from workbench.resources.summary import show_bytes

# NCCL registers buffers of several MiB per channel and peer; distributions'
# defaults (64 KiB to 8 MiB) fail with the first ones.
_ENOUGH = 1 << 30


def memlock_limit(snapshot: Snapshot) -> Iterator[Finding]:
    """Find a low RLIMIT_MEMLOCK where there are RDMA ports."""
    limit = snapshot.host.memlock_bytes
    rdma = [nic.name for nic in snapshot.nics if nic.kind == "rdma"]
    if not rdma or not isinstance(limit, int) or limit >= _ENOUGH:
        return
    yield Finding(
        rule="memlock_limit",
        severity="error",
        subject="this VM",
        evidence=f"locked memory is limited to {show_bytes(limit)}, with RDMA on {', '.join(rdma)}",
        why="RDMA must lock the memory it reads and writes: registering buffers fails "
        "(`ibv_reg_mr ... Cannot allocate memory`), and NCCL stops.",
        cure="`* - memlock unlimited` in /etc/security/limits.conf and a new login; "
        "`--ulimit memlock=-1` for a container; `LimitMEMLOCK=infinity` for a systemd service.",
        source="NVIDIA, NCCL User Guide, Troubleshooting",
    )
