"""What several rules read from a snapshot, and how they name GPUs and ports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from workbench.resources import Gpu, Nic, PciDevice, Snapshot, Unknown
from workbench.resources.gpus.records import NvLink, NvLinks
from workbench.resources.pcie.distances import of_unknown_kind
from workbench.resources.pcie.records import SYSFS


def is_topology_file(snapshot: Snapshot) -> bool:
    """Say whether a topology file is all that is known of a VM."""
    host = snapshot.probes.get("host")
    return host is not None and host.status == "absent"


def is_unknown(snapshot: Snapshot, probe_name: str) -> bool:
    """Say whether a probe failed, or read a source that does not contain what it probes."""
    probe = snapshot.probes.get(probe_name)
    return probe is None or probe.status in ("failed", "unknown")


def devices_of_unknown_kind(snapshot: Snapshot) -> list[PciDevice]:
    """Return what may be a GPU or a NIC: a topology file does not say which."""
    return [] if isinstance(snapshot.pcie, Unknown) else of_unknown_kind(snapshot.pcie.there())


def nccl_setting(snapshot: Snapshot, name: str) -> str | None:
    """Return the value of an NCCL setting; None if it is not set, or not known."""
    settings = snapshot.host.nccl_settings
    return None if isinstance(settings, Unknown) else settings.get(name)


def gpus_in_sysfs(snapshot: Snapshot) -> Iterator[tuple[Gpu, PciDevice]]:
    """Yield each GPU that the driver lists, with its device in the guest's PCIe tree."""
    if isinstance(snapshot.pcie, Unknown):
        return
    for tree in snapshot.pcie.trees:
        for gpu in snapshot.gpus if tree.source == SYSFS else ():
            device = tree.find(gpu.pci_address) if isinstance(gpu.pci_address, str) else None
            if device is not None:
                yield gpu, device


def links_of(gpu: Gpu) -> tuple[NvLink, ...]:
    """Return a GPU's NVLinks, up or down; none if the driver does not list them."""
    links = gpu.nvlink.links if isinstance(gpu.nvlink, NvLinks) else None
    return links if isinstance(links, tuple) else ()


def links_up(gpu: Gpu) -> tuple[NvLink, ...]:
    """Return the NVLinks of a GPU that are up."""
    return tuple(link for link in links_of(gpu) if link.state == "up")


def is_roce(nic: Nic) -> bool:
    """Say whether a NIC is an RDMA port on Ethernet."""
    return nic.kind == "rdma" and nic.link_layer == "Ethernet"


def has_rdma(device: PciDevice) -> bool:
    """Say whether a PCI device is known to provide an RDMA device."""
    return isinstance(device.rdma_devices, tuple) and len(device.rdma_devices) > 0


def pci_name(snapshot: Snapshot, address: str) -> str:
    """Return ``"GPU 0"`` or the RDMA device's name; the PCI address if there is neither."""
    for gpu in snapshot.gpus:
        if gpu.pci_address == address:
            return f"GPU {gpu.index}"
    if not isinstance(snapshot.pcie, Unknown):
        for device in snapshot.pcie.there():
            if device.address == address and isinstance(device.rdma_devices, tuple):
                return "/".join(device.rdma_devices) or address
    return address


def gpu_names(indices: Iterable[int]) -> str:
    """Write ``"GPU 3"``, or ``"GPUs 0-2, 5"``."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    single = len(runs) == 1 and len(runs[0]) == 1
    numbers = (f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return f"GPU{'' if single else 's'} {', '.join(numbers)}"


def gpu_names_at(snapshot: Snapshot, addresses: Iterable[str]) -> str:
    """Write ``"GPUs 0-3"`` for PCI addresses; those that NVML does not list follow as they are."""
    index_at = {gpu.pci_address: gpu.index for gpu in snapshot.gpus}
    addresses = list(addresses)
    indices = {index_at[address] for address in addresses if address in index_at}
    others = [address for address in addresses if address not in index_at]
    parts = [gpu_names(indices)] if indices else []
    return ", ".join([*parts, first_of(others)] if others else parts)


def pair_names(pairs: Iterable[str]) -> str:
    """Write ``"GPUs 0-1"``, or ``"pairs of GPUs 0-1, 2-3"``."""
    pairs = list(pairs)
    return f"{'GPUs' if len(pairs) == 1 else 'pairs of GPUs'} {first_of(pairs, 8)}"


def first_of(texts: Iterable[str], most: int = 4) -> str:
    """Write the first few, and how many more there are."""
    texts = list(texts)
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def known(value: object) -> str | None:
    """Write a value; None if it is unknown."""
    return None if isinstance(value, Unknown) else str(value)


def count(number: int | str, singular: str) -> str:
    """Write ``"1 port"``, ``"2 ports"`` or ``"no ports"``."""
    ending = "" if str(number) == "1" else "s"
    return f"{number or 'no'} {singular}{ending}"
