"""What several rules read from a snapshot."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.resources import Gpu, PciDevice, Snapshot, Unknown
from workbench.resources.pcie.distances import of_unknown_kind
from workbench.resources.pcie.records import SYSFS


def is_topology_file(snapshot: Snapshot) -> bool:
    """Say whether all that is known of a VM is its topology file."""
    host = snapshot.probes.get("host")
    return host is not None and host.status == "absent"


def is_unknown(snapshot: Snapshot, part: str) -> bool:
    """Say whether a probe cannot tell what there is: it failed, or its source does not say."""
    probe = snapshot.probes.get(part)
    return probe is None or probe.status in ("failed", "unknown")


def unclear_devices(snapshot: Snapshot) -> list[PciDevice]:
    """Return what may be a GPU or a NIC: a topology file does not say what it is."""
    return [] if isinstance(snapshot.pcie, Unknown) else of_unknown_kind(snapshot.pcie.there())


def nccl_setting(snapshot: Snapshot, name: str) -> str | None:
    """Give one of NCCL's settings; None where it is not set, or not known."""
    settings = snapshot.host.nccl_settings
    return None if isinstance(settings, Unknown) else settings.get(name)


def unset(name: str, value: str) -> str:
    """Write how to take back one of NCCL's settings."""
    return (
        f"`unset {name}` before the kernel and the ranks start, and take `{name}={value}` out of "
        "/etc/nccl.conf, of the file that NCCL_CONF_FILE names, or of ~/.nccl.conf"
    )


def gpus_in_sysfs(snapshot: Snapshot) -> Iterator[tuple[Gpu, PciDevice]]:
    """Give each GPU that the driver knows with its place in the guest's own PCIe tree."""
    if isinstance(snapshot.pcie, Unknown):
        return
    for tree in snapshot.pcie.trees:
        for gpu in snapshot.gpus if tree.source == SYSFS else ():
            device = tree.find(gpu.pci_address) if isinstance(gpu.pci_address, str) else None
            if device is not None:
                yield gpu, device
