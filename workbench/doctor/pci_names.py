"""PCI devices as a reader knows them: GPU 0, mlx5_0."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.doctor.several import first_of, named
from workbench.resources import Snapshot, Unknown
from workbench.resources.pcie.records import PciDevice


def pci_name(snapshot: Snapshot, address: str) -> str:
    """Give the GPU's number or the RDMA device's name; the address where there is neither."""
    for gpu in snapshot.gpus:
        if gpu.pci_address == address:
            return f"GPU {gpu.index}"
    if not isinstance(snapshot.pcie, Unknown):
        for device in snapshot.pcie.there():
            if device.address == address and isinstance(device.rdma_devices, tuple):
                return "/".join(device.rdma_devices) or address
    return address


def named_gpus(snapshot: Snapshot, addresses: Iterable[str]) -> str:
    """Write ``"GPUs 0-3"``; addresses of GPUs that NVML does not list follow."""
    known = {gpu.pci_address: gpu.index for gpu in snapshot.gpus}
    every = list(addresses)
    indices = {known[address] for address in every if address in known}
    others = [address for address in every if address not in known]
    parts = [named(indices)] if indices else []
    return ", ".join([*parts, first_of(others)] if others else parts)


def has_rdma(device: PciDevice) -> bool:
    """Say whether a device is known to make an RDMA device."""
    return isinstance(device.rdma_devices, tuple) and len(device.rdma_devices) > 0
