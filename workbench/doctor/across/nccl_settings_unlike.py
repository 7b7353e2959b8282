"""Settings of NCCL that differ between VMs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.doctor.across.odd import Look, odd
from workbench.doctor.finding import Finding
from workbench.resources import Snapshot, Unknown

# What names something of one VM, or only says how much NCCL tells.
_OF_ONE_VM = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_HOSTID", "NCCL_CONF_FILE", "NCCL_TOPO_")
_TELLING = ("NCCL_DEBUG", "NCCL_GRAPH_DUMP_", "NCCL_RAS_", "NCCL_PROFILER")


def nccl_settings_unlike(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Find settings that say how NCCL communicates, and say it otherwise on some VMs."""
    names = {name for one in snapshots.values() for name in _settings(one) or ()}
    for name in sorted(names):
        if name.startswith((*_OF_ONE_VM, *_TELLING)):
            continue
        for found in odd(snapshots, _value(name)):
            yield Finding(
                rule="nccl_settings_unlike",
                severity="warning",
                subject=found.vms,
                evidence=found.evidence,
                why="The ranks agree on one way for all: a VM with a setting of its own slows the "
                "others down, or they wait for each other for ever.",
                cure=f"{name} the same on every VM, or nowhere: in the environment that the ranks "
                "start with and in /etc/nccl.conf.",
                source="NVIDIA, NCCL User Guide, Environment Variables",
            )


def _settings(snapshot: Snapshot) -> Mapping[str, str] | None:
    settings = snapshot.host.nccl_settings
    return None if isinstance(settings, Unknown) else settings


def _value(name: str) -> Look:
    def look(snapshot: Snapshot) -> str | None:
        settings = _settings(snapshot)
        if settings is None:
            return None
        return f"{name}={settings[name]}" if name in settings else f"no {name}"

    return look
