"""The distances between GPUs and NICs, as a text matrix."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import TypeVar

from workbench.resources.gpus.records import Gpu
from workbench.resources.nics.records import Nic
from workbench.resources.pcie.distances import of_unknown_kind
from workbench.resources.pcie.records import TOPOLOGY_FILE, GpuDirect, PciDevice, Pcie
from workbench.resources.snapshot_record import SnapshotRecord
from workbench.resources.unknown import Unknown

K = TypeVar("K", bound=Hashable)

_MAX_LABELS = 32
"""Maximum number of rows and columns; a larger matrix would not be readable."""
_LEGEND = (
    "X itself, PIX one PCIe switch, PXB several, PHB the CPU's host bridge, "
    "NODE two host bridges of a NUMA node, SYS two NUMA nodes, ? not known, - not measured"
)


def matrix(snapshot: SnapshotRecord) -> Iterator[str]:
    """Yield the matrix and its legend, if there are GPUs or RDMA ports."""
    pcie = snapshot.pcie
    unclassified = snapshot.devices_of_unknown_kind
    has_rdma = any(nic.kind == "rdma" for nic in snapshot.nics)
    if not snapshot.gpus and not has_rdma and not unclassified:
        return
    if isinstance(pcie, Unknown):
        yield f"PCIe: unknown ({pcie.reason})"
        return
    labels = _labels(pcie, snapshot.gpus)
    if not labels:
        yield "PCIe: no distances, there is at most one GPU or NIC on a PCI bus that this VM sees"
        return
    sources = dict.fromkeys(pair.source for pair in pcie.distances)
    yield f"PCIe distances, by {' and '.join(sources)}:"
    shown = dict(list(labels.items())[:_MAX_LABELS])
    yield from _rows(pcie, shown)
    if len(labels) > len(shown):
        yield (
            f"  The first {len(shown)} of {len(labels)} GPUs and NICs; "
            "`snapshot.distance(a, b)` has every pair"
        )
    yield f"  {_LEGEND}"
    yield from _nics(labels, snapshot.nics)
    yield from _unclassified(labels, unclassified)
    yield from _unknown_distances(pcie, shown)
    yield from _topology_file(pcie, labels)
    yield from _differences(pcie, labels)
    yield from _gpudirect(pcie, labels)


def addresses_by_node(snapshot: SnapshotRecord) -> Iterator[str]:
    """Yield the PCI addresses of GPUs and NICs, one line per NUMA node."""
    named: tuple[tuple[str, str | Unknown], ...] = (
        *((f"GPU{gpu.index}", gpu.pci_address) for gpu in snapshot.gpus),
        *((f"NIC{index}", nic.pci_address) for index, nic in enumerate(snapshot.nics)),
    )
    tree = next(iter(snapshot.known_pcie.trees), None)
    unclassified = of_unknown_kind(tree.devices) if tree else []
    named += tuple((f"DEV{index}", device.address) for index, device in enumerate(unclassified))

    def node(address: str | Unknown) -> str:
        device = None if tree is None else tree.find(str(address))
        return str(device.numa_node if device else Unknown("not in the tree"))

    nodes = group((node(address), f"{label} {address}") for label, address in named)
    for name, entries in nodes.items():
        yield f"  NUMA node {name}: {_joined(entries, _MAX_LABELS, '')}"


def _labels(pcie: Pcie, gpus: tuple[Gpu, ...]) -> dict[str, str]:
    """Return the short name of each address in the distances, GPUs first."""
    indices: dict[str, int] = {}
    for gpu in gpus:  # several MIG devices are cut from one GPU
        if isinstance(gpu.pci_address, str):
            indices.setdefault(gpu.pci_address, gpu.index)
    measured = {address for pair in pcie.distances for address in (pair.a, pair.b)}
    devices = [device for device in pcie.devices if device.address in measured]
    named = {
        device.address: _gpu_name(device, indices) for device in devices if device.kind == "gpu"
    }
    nics = [device.address for device in devices if device.kind == "nic"]
    unclassified = [device.address for device in of_unknown_kind(devices)]
    return {
        **named,
        **{address: f"NIC{index}" for index, address in enumerate(nics)},
        **{address: f"DEV{index}" for index, address in enumerate(unclassified)},
    }


def _gpu_name(device: PciDevice, indices: dict[str, int]) -> str:
    index = indices.get(device.address)
    return device.address if index is None else f"GPU{index}"


def _rows(pcie: Pcie, labels: dict[str, str]) -> Iterator[str]:
    width = max(map(len, labels.values())) + 1
    yield f"  {'':<{width}}" + "".join(f"{label:<{width}}" for label in labels.values()).rstrip()
    for a, label in labels.items():
        cells = (_cell(pcie, a, b) for b in labels)
        yield f"  {label:<{width}}" + "".join(f"{cell:<{width}}" for cell in cells).rstrip()


def _cell(pcie: Pcie, a: str, b: str) -> str:
    if a == b:
        return "X"
    pair = pcie.distance(a, b)
    if pair is None:
        return "-"  # if there are many NICs, not every pair is measured
    return "?" if isinstance(pair.distance, Unknown) else pair.distance


def _nics(labels: dict[str, str], nics: tuple[Nic, ...]) -> Iterator[str]:
    names = group(
        (str(nic.pci_address), nic.rdma_device if isinstance(nic.rdma_device, str) else nic.name)
        for nic in nics
    )
    named_labels = [
        f"{label} {'/'.join(dict.fromkeys(names[address]))}"
        for address, label in labels.items()
        if label.startswith("NIC") and address in names
    ]
    if named_labels:
        yield f"  {_joined(named_labels, _MAX_LABELS, '')}"


def _unclassified(labels: dict[str, str], devices: Sequence[PciDevice]) -> Iterator[str]:
    reasons = (
        (device.kind.reason, f"{labels[device.address]} {device.address}")
        for device in devices
        if isinstance(device.kind, Unknown) and device.address in labels
    )
    for reason, names in group(reasons).items():
        yield f"  of unknown kind ({reason}): {_joined(names, _MAX_LABELS, '')}"


def _unknown_distances(pcie: Pcie, labels: dict[str, str]) -> Iterator[str]:
    reasons = (
        (pair.distance.reason, f"{labels[a]}-{labels[b]}")
        for a, b in combinations(labels, 2)
        if (pair := pcie.distance(a, b)) and isinstance(pair.distance, Unknown)
    )
    for reason, pairs in group(reasons).items():
        yield f"  ? {_joined(pairs)}: {reason}"


def _topology_file(pcie: Pcie, labels: dict[str, str]) -> Iterator[str]:
    file = pcie.topology_file
    tree = pcie.tree(TOPOLOGY_FILE)
    if isinstance(file, Unknown):
        yield f"  topology file: none ({file.reason})"
        return
    yield f"  topology file: {file}"
    left_out = [label for address, label in labels.items() if tree and not tree.find(address)]
    if left_out:
        names = _joined(left_out, _MAX_LABELS, "")
        yield f"  not in that file, so NCCL uses sysfs: {names}"


def _differences(pcie: Pcie, labels: dict[str, str]) -> Iterator[str]:
    """Yield the pairs on which sources differ, one line for each kind of difference."""
    answers_of_pairs = (
        (
            ", ".join(f"{distance.source} says {distance.distance}" for distance in pair.distances),
            f"{labels.get(pair.a, pair.a)}-{labels.get(pair.b, pair.b)}",
        )
        for pair in pcie.differences()
    )
    for answers, pairs in group(answers_of_pairs).items():
        yield f"  {answers}: {_joined(pairs)}"


def _gpudirect(pcie: Pcie, labels: dict[str, str]) -> Iterator[str]:
    results = (
        ((_answer(result), result.why), f"{labels[result.gpu]}-{labels[result.nic]}")
        for result in pcie.gpudirect
        if result.gpu in labels and result.nic in labels
    )
    for (answer, reason), pairs in group(results).items():
        yield f"  GPUDirect RDMA {answer}: {_joined(pairs)} ({reason})"
    if any(result.possible is True for result in pcie.gpudirect):
        yield f"  NICs access GPU memory through: {pcie.peer_memory}"


def _answer(result: GpuDirect) -> str:
    if isinstance(result.possible, Unknown):
        return "unknown"
    return "possible" if result.possible else "not used by NCCL"


def group(pairs: Iterable[tuple[K, str]]) -> dict[K, list[str]]:
    """Return the texts by their keys, in the order of the keys' first appearance.

    Examples
    --------
    >>> group([("PIX", "GPU0-NIC0"), ("SYS", "GPU0-NIC1"), ("PIX", "GPU1-NIC1")])
    {'PIX': ['GPU0-NIC0', 'GPU1-NIC1'], 'SYS': ['GPU0-NIC1']}
    """
    texts: dict[K, list[str]] = {}
    for key, text in pairs:
        texts.setdefault(key, []).append(text)
    return texts


def _joined(names: list[str], limit: int = 8, noun: str = " pairs") -> str:
    more = f" and {len(names) - limit} more{noun}" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
