"""Probe PCIe: the kernel's tree from sysfs, the topology file, distances and GPUDirect RDMA."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from workbench.errors import SnapshotError
from workbench.resources.files import children, is_pci_address, pci_folder, read_int, read_text
from workbench.resources.gpus.records import Gpu, GpuPair
from workbench.resources.nccl_settings import NcclSettings
from workbench.resources.numa import node_count, numa_node
from workbench.resources.pcie.distances import all_distances, gpudirect_pairs, peer_memory
from workbench.resources.pcie.nccl_topology import read_topology
from workbench.resources.pcie.records import (
    NVML,
    SYSFS,
    PairDistance,
    PciDevice,
    Pcie,
    PciRoot,
    PciTree,
    TopologyFileState,
)
from workbench.resources.unknown import Unknown

_ACS = 0x000D
_ATS = 0x000F
_EXTENDED = 0x100
_CONTROL = 6
# Request redirect and completion redirect: both send peer-to-peer traffic to the root complex.
_REDIRECT = 0x0004 | 0x0008
_ATS_ENABLED = 0x8000
_MAX_CAPABILITIES = (0x1000 - _EXTENDED) // 8
N = TypeVar("N", int, float)

_NVIDIA = "0x10de"
_SPEED = re.compile(r"([\d.]+) GT/s")


def read_config(folder: Path) -> bytes | Unknown:
    """Return the configuration space of up to 4096 bytes. Without root only 64 are readable."""
    try:
        with (folder / "config").open("rb") as file:
            data = file.read(0x1000)
    except OSError as error:
        return Unknown(f"{folder}/config cannot be read: {error.strerror}")
    if len(data) <= 64:
        return Unknown("needs root: other users can only read the first 64 bytes of config")
    return data


def acs(config: bytes | Unknown) -> str | Unknown:
    """Return ``"redirect"``, ``"off"`` or ``"none"`` (see `PciDevice`)."""
    control = config if isinstance(config, Unknown) else _control(config, _ACS)
    if not isinstance(control, int):
        return control
    return "redirect" if control & _REDIRECT else "off"


def ats(config: bytes | Unknown) -> str | Unknown:
    """Return ``"on"``, ``"off"`` or ``"none"``."""
    control = config if isinstance(config, Unknown) else _control(config, _ATS)
    if not isinstance(control, int):
        return control
    return "on" if control & _ATS_ENABLED else "off"


def _control(config: bytes, capability: int) -> int | str | Unknown:
    """Return the control register of an extended capability; ``"none"`` if it is not listed."""
    if len(config) <= _EXTENDED:
        return Unknown("this VM has no extended configuration space (no PCI Express)")
    offset = _EXTENDED
    for _ in range(_MAX_CAPABILITIES):  # the list may contain a loop
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == capability:
            return int.from_bytes(config[offset + _CONTROL : offset + _CONTROL + 2], "little")
        offset = header >> 20
        if offset < _EXTENDED or header == 0xFFFFFFFF:
            break
    return "none"


def read_tree(sysfs: Path) -> PciTree | Unknown:
    """Return the tree of GPUs, NICs and the bridges above them."""
    folder = sysfs / "bus/pci/devices"
    if not folder.is_dir():
        return Unknown(f"{folder} does not exist: this machine has no PCI")
    rdma = _rdma_devices(sysfs)
    roots: dict[str, PciRoot] = {}
    devices: dict[str, PciDevice] = {}
    for entry in children(folder):
        device_folder = entry.resolve()
        if _kind(device_folder, rdma) not in ("gpu", "nic"):
            continue
        path = _from_the_top(device_folder)
        for part in path:
            if part.name not in devices:
                devices[part.name] = _device(part, rdma)
        root = path[0].parent.name
        roots.setdefault(root, PciRoot(root, Unknown("sysfs only has it for devices"), {}))
    return PciTree(SYSFS, str(folder), tuple(roots.values()), tuple(devices.values()), (), {})


def device_reader(sysfs: Path) -> Callable[[str], PciDevice | None]:
    """Return a function that reads the device at a PCI address, or None if there is no device."""
    rdma = _rdma_devices(sysfs)

    @functools.cache
    def read(address: str) -> PciDevice | None:
        folder = sysfs / "bus/pci/devices" / address
        exists = is_pci_address(address) and folder.exists()
        return _device(folder.resolve(), rdma) if exists else None

    return read


def _rdma_devices(sysfs: Path) -> dict[str, tuple[str, ...]]:
    rdma_devices: dict[str, tuple[str, ...]] = {}
    for entry in children(sysfs / "class/infiniband"):
        folder = pci_folder(entry / "device")
        if folder is not None:
            rdma_devices[folder.name] = (*rdma_devices.get(folder.name, ()), entry.name)
    return rdma_devices


def _from_the_top(device_folder: Path) -> list[Path]:
    """Return the folders of the bridges from the host bridge down, then the device's folder.

    `device_folder` is a resolved path, so its parents are the device's bridges.
    """
    folders = [device_folder]
    while is_pci_address(folders[0].parent.name):
        folders.insert(0, folders[0].parent)
    return folders


def _device(folder: Path, rdma: dict[str, tuple[str, ...]]) -> PciDevice:
    config = read_config(folder)
    return PciDevice(
        address=folder.name,
        parent=folder.parent.name,
        kind=_kind(folder, rdma),
        pci_class=read_text(folder / "class"),
        vendor=read_text(folder / "vendor"),
        device=read_text(folder / "device"),
        subsystem_vendor=read_text(folder / "subsystem_vendor"),
        subsystem_device=read_text(folder / "subsystem_device"),
        link_gtps=_lower(_speeds(folder), "speed"),
        link_width=_lower(_widths(folder), "width"),
        numa_node=numa_node(folder),
        rdma_devices=rdma.get(folder.name, ()),
        acs=acs(config),
        ats=ats(config),
    )


def _kind(folder: Path, rdma: dict[str, tuple[str, ...]]) -> str:
    pci_class = read_text(folder / "class")
    if folder.name in rdma:
        return "nic"
    if isinstance(pci_class, Unknown):
        return "other"
    # A VM's display adapter has class 0x03 too; only NVIDIA's devices of that class are GPUs here.
    if pci_class.startswith("0x03") and read_text(folder / "vendor") == _NVIDIA:
        return "gpu"
    if pci_class.startswith("0x02"):
        return "nic"
    return "bridge" if pci_class.startswith("0x06") else "other"


def _speeds(folder: Path) -> Iterator[float]:
    for end in (folder, folder.parent):  # NCCL uses the slower of a device and its port
        text = read_text(end / "max_link_speed")
        match = _SPEED.match(text) if isinstance(text, str) else None
        if match:
            yield float(match[1])


def _widths(folder: Path) -> Iterator[int]:
    for end in (folder, folder.parent):
        width = read_int(end / "max_link_width")
        # 255 means that the kernel does not know the width.
        if isinstance(width, int) and 0 < width < 255:
            yield width


def _lower(readings: Iterator[N], quantity: str) -> N | Unknown:
    values = list(readings)
    return (
        min(values) if values else Unknown(f"the kernel knows no link {quantity}, as usual in a VM")
    )


def probe_pcie(sysfs: Path, settings: NcclSettings) -> Pcie:
    """Read the PCIe trees of this VM: from its topology file, and from sysfs."""
    from_file, state = _read_file(settings, sysfs)
    from_sysfs = read_tree(sysfs)
    trees = [tree for tree in (from_file, from_sysfs) if isinstance(tree, PciTree)]
    nodes = node_count(sysfs)
    return Pcie(
        trees=tuple(trees),
        distances=tuple(pair for tree in trees for pair in all_distances(tree, nodes)),
        gpudirect=tuple(gpudirect_pairs(trees, settings, nodes)),
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


def topology_file_state(tree: PciTree) -> TopologyFileState:
    """Return whether NCCL accepts a topology file that could be read here."""
    return TopologyFileState("refused" if tree.refused else "read", tree.refused)


def _read_file(settings: NcclSettings, sysfs: Path) -> tuple[PciTree | Unknown, TopologyFileState]:
    path, setting = settings.topology_file()
    if not _exists(path):
        if setting is None:
            status = "none"
            reason = f"NCCL_TOPO_FILE is not set, and {path} does not exist"
        else:
            status = "missing"
            reason = f"{setting} names {path}, which does not exist: NCCL uses sysfs"
        return Unknown(reason), TopologyFileState(status, reason)
    try:
        tree = read_topology(path, device_reader(sysfs))
    except SnapshotError as error:
        reason = f"{error} NCCL reads this file when it starts."
        return Unknown(reason), TopologyFileState("broken", reason)
    return tree, topology_file_state(tree)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # no access to a parent folder; reading the file will report it
        return True
