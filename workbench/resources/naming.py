"""Find a device of a snapshot by any of its names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from workbench.errors import UsageError
from workbench.resources.gpus.records import Gpu
from workbench.resources.nics.records import Nic
from workbench.resources.pcie.distances import of_unknown_kind
from workbench.resources.unknown import Unknown

if TYPE_CHECKING:
    from workbench.resources.snapshot import Snapshot

DeviceLike: TypeAlias = Gpu | Nic | int | str
"""A record, a GPU's index, or a name: UUID, interface, RDMA device, PCI address."""

_GPU = re.compile(r"(?:gpu ?)?(\d+)", re.IGNORECASE)
_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)


@dataclass(frozen=True)
class Device:
    """A device of a snapshot: its PCI address, and its `Gpu` record if it is a GPU."""

    address: str | Unknown
    gpu: Gpu | None = None


def find_device(snapshot: Snapshot, wanted: DeviceLike) -> Device:
    """Find a GPU or NIC of a snapshot.

    Raises
    ------
    UsageError
        If the snapshot has no such device.
    """
    for gpu in snapshot.gpus:
        if wanted == gpu or _is_gpu(gpu, wanted):
            return Device(gpu.pci_address, gpu)
    for nic in snapshot.nics:
        if wanted == nic or _is_nic(nic, wanted):
            return Device(nic.pci_address)
    address = as_pci_address(wanted) if isinstance(wanted, str) else None
    if address is not None and not isinstance(snapshot.pcie, Unknown):
        for device in snapshot.pcie.there():  # without a driver, or of unknown kind
            if device.address == address and device.kind not in ("bridge", "other"):
                return Device(address)
    other = f"a {type(wanted).__name__} of another VM"
    asked = other if isinstance(wanted, Gpu | Nic) else repr(wanted)
    raise UsageError(
        f"{asked}: no such GPU or NIC in this VM. Use one that it has: {_available(snapshot)}."
    )


def as_pci_address(text: str) -> str | None:
    """Return a PCI address in the form of sysfs, domain 0 by default; None if it is none."""
    match = _PCI.fullmatch(text.strip())
    return f"{int(match[1] or '0', 16):04x}:{match[2].lower()}" if match else None


def _is_gpu(gpu: Gpu, wanted: object) -> bool:
    if isinstance(wanted, int):
        return gpu.index == wanted
    if not isinstance(wanted, str):
        return False
    number = _GPU.fullmatch(wanted)
    if number:
        return gpu.index == int(number[1])
    return wanted == gpu.uuid or as_pci_address(wanted) == gpu.pci_address


def _is_nic(nic: Nic, wanted: object) -> bool:
    if not isinstance(wanted, str):
        return False
    return wanted in (nic.name, nic.rdma_device) or as_pci_address(wanted) == nic.pci_address


def _available(snapshot: Snapshot) -> str:
    indices = sorted({gpu.index for gpu in snapshot.gpus})
    names = [
        nic.name if isinstance(nic.rdma_device, Unknown) else f"{nic.rdma_device} ({nic.name})"
        for nic in snapshot.nics
    ]
    gpus = f"GPUs {', '.join(map(str, indices))}" if indices else "no GPU"
    text = f"{gpus}; {'NICs ' + ', '.join(names) if names else 'no NIC'}"
    others = () if isinstance(snapshot.pcie, Unknown) else of_unknown_kind(snapshot.pcie.there())
    if others:
        text += f"; devices of unknown kind {', '.join(one.address for one in others)}"
    return text
