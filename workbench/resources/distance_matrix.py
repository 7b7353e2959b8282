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
"""Most rows and columns; a larger matrix would not be readable."""
_LEGEND = (
    "X itself, PIX one PCIe switch, PXB several, PHB the CPU's host bridge, "
    "NODE two host bridges of a NUMA node, SYS two NUMA nodes, ? not known, - not measured"
)


def matrix(snapshot: SnapshotRecord) -> Iterator[str]:
    """Yield the matrix and its legend, if there are GPUs or RDMA ports."""
    pcie = snapshot.pcie
    unclear = snapshot.devices_of_unknown_kind
    rdma = any(nic.kind == "rdma" for nic in snapshot.nics)
    if not snapshot.gpus and not rdma and not unclear:
        return
    if isinstance(pcie, Unknown):
        yield f"PCIe: unknown ({pcie.reason})"
        return
    labels = _labels(pcie, snapshot.gpus)
    if not labels:
        yield "PCIe: no distances, there is at most one GPU or NIC on a PCI bus that this VM sees"
        return
    sources = dict.fromkeys(one.source for one in pcie.distances)
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
    yield from _unclear(labels, unclear)
    yield from _not_known(pcie, shown)
    yield from _topology_file(pcie, labels)
    yield from _differences(pcie, labels)
    yield from _gpudirect(pcie, labels)


def places(snapshot: SnapshotRecord) -> Iterator[str]:
    """Yield the PCI addresses of GPUs and NICs, one NUMA node per line."""
    named: tuple[tuple[str, str | Unknown], ...] = (
        *((f"GPU{gpu.index}", gpu.pci_address) for gpu in snapshot.gpus),
        *((f"NIC{index}", nic.pci_address) for index, nic in enumerate(snapshot.nics)),
    )
    tree = next(iter(snapshot.known_pcie.trees), None)
    unclear = of_unknown_kind(tree.devices) if tree else []
    named += tuple((f"DEV{index}", one.address) for index, one in enumerate(unclear))

    def node(address: str | Unknown) -> str:
        device = None if tree is None else tree.find(str(address))
        return str(device.numa_node if device else Unknown("not in the tree"))

    nodes = group((node(address), f"{label} {address}") for label, address in named)
    for name, entries in nodes.items():
        yield f"  NUMA node {name}: {_some(entries, _MAX_LABELS, '')}"


def _labels(pcie: Pcie, gpus: tuple[Gpu, ...]) -> dict[str, str]:
    """Return the short name of each address in the distances, GPUs first."""
    indices: dict[str, int] = {}
    for gpu in gpus:  # several MIG devices are cut from one GPU
        if isinstance(gpu.pci_address, str):
            indices.setdefault(gpu.pci_address, gpu.index)
    measured = {one for pair in pcie.distances for one in (pair.a, pair.b)}
    devices = [one for one in pcie.devices if one.address in measured]
    named = {one.address: _gpu_name(one, indices) for one in devices if one.kind == "gpu"}
    nics = [one.address for one in devices if one.kind == "nic"]
    unclear = [one.address for one in of_unknown_kind(devices)]
    return {
        **named,
        **{address: f"NIC{index}" for index, address in enumerate(nics)},
        **{address: f"DEV{index}" for index, address in enumerate(unclear)},
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
    found = pcie.distance(a, b)
    if found is None:
        return "-"  # if there are many NICs, not every pair is measured
    return "?" if isinstance(found.distance, Unknown) else found.distance


def _nics(labels: dict[str, str], nics: tuple[Nic, ...]) -> Iterator[str]:
    names = group(
        (str(nic.pci_address), nic.rdma_device if isinstance(nic.rdma_device, str) else nic.name)
        for nic in nics
    )
    known = [
        f"{label} {'/'.join(dict.fromkeys(names[address]))}"
        for address, label in labels.items()
        if label.startswith("NIC") and address in names
    ]
    if known:
        yield f"  {_some(known, _MAX_LABELS, '')}"


def _unclear(labels: dict[str, str], devices: Sequence[PciDevice]) -> Iterator[str]:
    found = (
        (one.kind.reason, f"{labels[one.address]} {one.address}")
        for one in devices
        if isinstance(one.kind, Unknown) and one.address in labels
    )
    for reason, names in group(found).items():
        yield f"  of unknown kind ({reason}): {_some(names, _MAX_LABELS, '')}"


def _not_known(pcie: Pcie, labels: dict[str, str]) -> Iterator[str]:
    unknown = (
        (found.distance.reason, f"{labels[a]}-{labels[b]}")
        for a, b in combinations(labels, 2)
        if (found := pcie.distance(a, b)) and isinstance(found.distance, Unknown)
    )
    for reason, pairs in group(unknown).items():
        yield f"  ? {_some(pairs)}: {reason}"


def _topology_file(pcie: Pcie, labels: dict[str, str]) -> Iterator[str]:
    file, tree = pcie.topology_file, pcie.tree(TOPOLOGY_FILE)
    if isinstance(file, Unknown):
        yield f"  topology file: none ({file.reason})"
        return
    yield f"  topology file: {file}"
    left_out = [label for address, label in labels.items() if tree and not tree.find(address)]
    if left_out:
        some = _some(left_out, _MAX_LABELS, "")
        yield f"  not in that file, so NCCL uses sysfs: {some}"


def _differences(pcie: Pcie, labels: dict[str, str]) -> Iterator[str]:
    """Yield the pairs on which sources differ, one line for each kind of difference."""
    found = (
        (
            ", ".join(f"{d.source} says {d.distance}" for d in one.distances),
            f"{labels.get(one.a, one.a)}-{labels.get(one.b, one.b)}",
        )
        for one in pcie.differences()
    )
    for answers, pairs in group(found).items():
        yield f"  {answers}: {_some(pairs)}"


def _gpudirect(pcie: Pcie, labels: dict[str, str]) -> Iterator[str]:
    found = (
        ((_answer(one), one.why), f"{labels[one.gpu]}-{labels[one.nic]}")
        for one in pcie.gpudirect
        if one.gpu in labels and one.nic in labels
    )
    for (answer, why), pairs in group(found).items():
        yield f"  GPUDirect RDMA {answer}: {_some(pairs)} ({why})"
    if any(one.possible is True for one in pcie.gpudirect):
        yield f"  NICs access GPU memory through: {pcie.peer_memory}"


def _answer(one: GpuDirect) -> str:
    if isinstance(one.possible, Unknown):
        return "unknown"
    return "possible" if one.possible else "not used by NCCL"


def group(pairs: Iterable[tuple[K, str]]) -> dict[K, list[str]]:
    """Return the texts by their keys, in the order of the first of each."""
    found: dict[K, list[str]] = {}
    for key, text in pairs:
        found.setdefault(key, []).append(text)
    return found


def _some(names: list[str], most: int = 8, what: str = " pairs") -> str:
    more = f" and {len(names) - most} more{what}" if len(names) > most else ""
    return ", ".join(names[:most]) + more
