"""Values that several rules read from a snapshot, and the names of GPUs and ports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from workbench.resources import Gpu, PciDevice, Snapshot, Unknown
from workbench.resources.pcie.records import SYSFS


def is_unknown(snapshot: Snapshot, probe_name: str) -> bool:
    """Return whether a probe failed, or its source does not contain the probed values."""
    probe = snapshot.probes.get(probe_name)
    return probe is None or probe.status in ("failed", "unknown")


def gpus_in_sysfs(snapshot: Snapshot) -> Iterator[tuple[Gpu, PciDevice]]:
    """Yield each GPU that the driver lists, with its device in the guest's PCIe tree."""
    tree = snapshot.known_pcie.tree(SYSFS)
    for gpu in snapshot.gpus if tree else ():
        device = tree.find(gpu.pci_address) if tree and isinstance(gpu.pci_address, str) else None
        if device is not None:
            yield gpu, device


def pci_name(snapshot: Snapshot, address: str) -> str:
    """Return ``"GPU 0"`` or the RDMA device's name; the PCI address if there is neither."""
    for gpu in snapshot.gpus:
        if gpu.pci_address == address:
            return f"GPU {gpu.index}"
    for device in snapshot.known_pcie.devices:
        if device.address == address and isinstance(device.rdma_devices, tuple):
            return "/".join(device.rdma_devices) or address
    return address


def gpu_names(indices: Iterable[int]) -> str:
    """Return the name of a GPU, or of several.

    Examples
    --------
    >>> gpu_names([3])
    'GPU 3'
    >>> gpu_names([0, 1, 2, 5])
    'GPUs 0-2, 5'
    """
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    is_single = len(runs) == 1 and len(runs[0]) == 1
    numbers = (f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return f"GPU{'' if is_single else 's'} {', '.join(numbers)}"


def gpu_names_at(snapshot: Snapshot, addresses: Iterable[str]) -> str:
    """Return ``"GPUs 0-3"`` for PCI addresses, then the addresses that NVML does not list."""
    index_at = {gpu.pci_address: gpu.index for gpu in snapshot.gpus}
    addresses = list(addresses)
    indices = {index_at[address] for address in addresses if address in index_at}
    others = [address for address in addresses if address not in index_at]
    parts = [gpu_names(indices)] if indices else []
    return ", ".join([*parts, first_of(others)] if others else parts)


def pair_names(pairs: Iterable[str]) -> str:
    """Return the name of a pair of GPUs, or of several.

    Examples
    --------
    >>> pair_names(["0-1"])
    'GPUs 0-1'
    >>> pair_names(["0-1", "2-3"])
    'pairs of GPUs 0-1, 2-3'
    """
    pairs = list(pairs)
    return f"{'GPUs' if len(pairs) == 1 else 'pairs of GPUs'} {first_of(pairs, 8)}"


def first_of(texts: Iterable[str], max_shown: int = 4) -> str:
    """Return the first texts, and the number of the others.

    Examples
    --------
    >>> first_of(["vm1", "vm2", "vm3"], 2)
    'vm1, vm2 and 1 more'
    """
    texts = list(texts)
    rest = f" and {len(texts) - max_shown} more" if len(texts) > max_shown else ""
    return ", ".join(texts[:max_shown]) + rest


def text_if_known(value: object) -> str | None:
    """Return a value as text; None if it is unknown."""
    return None if isinstance(value, Unknown) else str(value)


def count(number: int | str, singular: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> count(1, "port"), count(2, "port"), count(0, "port")
    ('1 port', '2 ports', 'no ports')
    """
    ending = "" if str(number) == "1" else "s"
    return f"{number or 'no'} {singular}{ending}"
