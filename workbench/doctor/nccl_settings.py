"""Rules about NCCL settings that switch a fast path off, or that differ between VMs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from workbench.doctor.rule import Case, mismatch_cases, rule
from workbench.resources import Snapshot, Unknown
from workbench.resources.nccl_ports import active_ports, settings_of, tcp_only
from workbench.resources.nccl_settings import is_on

_P2P_OFF_LEVELS = ("LOC", "0")
# These settings name a device or file of one VM, or only control what NCCL reports.
_MAY_DIFFER = (
    *("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_HOSTID", "NCCL_CONF_FILE", "NCCL_TOPO_"),
    *("NCCL_DEBUG", "NCCL_GRAPH_DUMP_", "NCCL_RAS_", "NCCL_PROFILER"),
)


def _unset(name: str, value: str) -> str:
    """Return how to remove an NCCL setting."""
    return (
        f"`unset {name}` before the kernel and the ranks start, and remove `{name}={value}` from "
        "/etc/nccl.conf, from the file that NCCL_CONF_FILE names, and from ~/.nccl.conf"
    )


@rule(
    "warning",
    why="NCCL sends everything between VMs over TCP: through the kernel, with CPU time and host "
    "memory for each byte.",
)
def rdma_unused(snapshot: Snapshot) -> Iterator[Case]:
    """Find active RDMA ports on a VM where an NCCL setting leaves only TCP."""
    active = active_ports(snapshot)
    setting = tcp_only(settings_of(snapshot))
    if active and setting:
        ports = "port is" if len(active) == 1 else "ports are"
        yield Case(
            f"{'='.join(setting)} is set, and {len(active)} RDMA {ports} active",
            ", ".join(str(nic.rdma_device) for nic in active),
            fix=f"{_unset(*setting)}.",
            source=f"NVIDIA, NCCL User Guide, {setting[0]}",
        )


@rule(
    "warning",
    why="NCCL uses neither NVLink nor PCIe directly between these GPUs: gradients go through host "
    "memory.",
)
def nccl_p2p_disabled(snapshot: Snapshot) -> Iterator[Case]:
    """Find settings that switch peer-to-peer off on a VM with several GPUs."""
    setting = _p2p_setting(snapshot)
    if len(snapshot.gpus) > 1 and setting:
        yield Case(
            f"{'='.join(setting)} is set, with {len(snapshot.gpus)} GPUs",
            fix=f"{_unset(*setting)}. NVIDIA intends it for debugging, not for production.",
            source=f"NVIDIA, NCCL User Guide, {setting[0]}",
        )


def _p2p_setting(snapshot: Snapshot) -> tuple[str, str] | None:
    disabled = settings_of(snapshot).get("NCCL_P2P_DISABLE")
    if disabled is not None and is_on(disabled):
        return "NCCL_P2P_DISABLE", disabled
    level = settings_of(snapshot).get("NCCL_P2P_LEVEL")
    return ("NCCL_P2P_LEVEL", level) if level in _P2P_OFF_LEVELS else None


@rule(
    "warning",
    why="GPUs without peer-to-peer exchange data through shared memory; without it NCCL uses the "
    "network, even inside one VM.",
    source="NVIDIA, NCCL User Guide, NCCL_SHM_DISABLE",
)
def nccl_shm_disabled(snapshot: Snapshot) -> Iterator[Case]:
    """Find NCCL_SHM_DISABLE on a VM with several GPUs."""
    name = "NCCL_SHM_DISABLE"
    value = settings_of(snapshot).get(name)
    if len(snapshot.gpus) > 1 and value is not None and is_on(value):
        yield Case(
            f"{name}={value} is set, with {len(snapshot.gpus)} GPUs",
            fix=f"{_unset(name, value)}. If it was set because /dev/shm was too small, increase "
            "that: `--shm-size=8g`.",
        )


@rule(
    "warning",
    name="nccl_settings_unlike",
    why="All ranks must choose the same algorithm and transport: a VM with a setting of its own "
    "slows the others down, or they wait for each other for ever.",
    source="NVIDIA, NCCL User Guide, Environment Variables",
)
def nccl_setting_mismatch(snapshots: Mapping[str, Snapshot]) -> Iterator[Case]:
    """Compare settings that control how NCCL communicates."""
    settings = {
        vm: snapshot.host.nccl_settings
        for vm, snapshot in snapshots.items()
        if not isinstance(snapshot.host.nccl_settings, Unknown)
    }
    readable = {vm: snapshots[vm] for vm in settings}
    for name in sorted({name for of_vm in settings.values() for name in of_vm}):
        if name.startswith(_MAY_DIFFER):
            continue

        def value(snapshot: Snapshot, name: str = name) -> str:
            setting = settings_of(snapshot).get(name)
            return f"no {name}" if setting is None else f"{name}={setting}"

        for case in mismatch_cases(readable, value):
            fix = (
                f"{name} the same on every VM, or nowhere: in the environment that the ranks "
                "start with and in /etc/nccl.conf."
            )
            yield replace(case, fix=fix)
