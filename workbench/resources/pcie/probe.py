"""Probe PCIe: the trees, the distances, and whether NCCL uses GPUDirect RDMA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from workbench.errors import SnapshotError
from workbench.resources.gpus.records import Gpu, GpuPair
from workbench.resources.nccl_settings import NcclSettings
from workbench.resources.pcie.distances import all_distances
from workbench.resources.pcie.gpudirect import judge, peer_memory
from workbench.resources.pcie.nccl_topology import read_topology
from workbench.resources.pcie.records import NVML, PairDistance, Pcie, PciTree
from workbench.resources.pcie.sysfs import device_reader, numa_nodes, read_tree
from workbench.resources.pcie.topology_state import TopologyFileState
from workbench.resources.unknown import Unknown


def probe_pcie(sysfs: Path, settings: NcclSettings) -> Pcie:
    """Read the PCIe trees of this VM: from its topology file, and from sysfs."""
    (from_file, state), from_sysfs = _read_file(settings, sysfs), read_tree(sysfs)
    trees = [tree for tree in (from_file, from_sysfs) if isinstance(tree, PciTree)]
    nodes = numa_nodes(sysfs)
    return Pcie(
        trees=tuple(trees),
        distances=tuple(one for tree in trees for one in all_distances(tree, nodes)),
        gpudirect=tuple(judge(trees, settings, nodes)),
        topology_file=from_file.origin if isinstance(from_file, PciTree) else from_file,
        peer_memory=peer_memory(sysfs),
        topology_file_state=state,
    )


def by_nvml(gpus: Iterable[Gpu], pairs: Iterable[GpuPair]) -> Iterator[PairDistance]:
    """Yield the distances of GPUs that the driver reports."""
    addresses = {gpu.index: gpu.pci_address for gpu in gpus}
    for pair in pairs:
        a, b = (addresses.get(index) for index in (pair.first, pair.second))
        if isinstance(a, str) and isinstance(b, str) and isinstance(pair.topology, str):
            yield PairDistance(a, b, pair.topology, NVML)


def state_of(tree: PciTree) -> TopologyFileState:
    """Return whether NCCL reads a topology file that could be read here."""
    return TopologyFileState("refused" if tree.refused else "read", tree.refused)


def _read_file(settings: NcclSettings, sysfs: Path) -> tuple[PciTree | Unknown, TopologyFileState]:
    path, setting = settings.topology_file()
    if not _exists(path):
        if setting is None:
            status, why = "none", f"NCCL_TOPO_FILE is not set, and {path} does not exist"
        else:
            status = "missing"
            why = f"{setting} names {path}, which does not exist: NCCL uses sysfs"
        return Unknown(why), TopologyFileState(status, why)
    try:
        tree = read_topology(path, device_reader(sysfs))
    except SnapshotError as error:
        why = f"{error} NCCL reads this file when it starts."
        return Unknown(why), TopologyFileState("broken", why)
    return tree, state_of(tree)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # no access to a parent folder: reading the file reports it
        return True
