"""Records of PCIe: devices, trees, distances and GPUDirect RDMA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from workbench.resources.distance import Distance
from workbench.resources.unknown import EARLIER, Unknown

SYSFS = "sysfs"
"""Source: the guest's kernel."""
TOPOLOGY_FILE = "nccl topology file"
"""Source: the topology file of a VM, which NCCL prefers to sysfs."""
NVML = "nvml"
"""Source: the NVIDIA driver; it has distances only, no tree."""
SOURCES = (TOPOLOGY_FILE, SYSFS, NVML)
"""The sources of a distance, in NCCL's order of preference."""


@dataclass(frozen=True)
class TopologyFileState:
    """Whether NCCL can read a VM's topology file.

    Attributes
    ----------
    status
        ``"read"``; ``"none"``: no setting names one, and NCCL's default file does not exist;
        ``"missing"``: the named file does not exist; ``"broken"``: it is not a topology file;
        ``"refused"``: NCCL rejects it.
    why
        The reason; empty if it is read.
    """

    status: str
    why: str


@dataclass(frozen=True)
class PciDevice:
    """A GPU, a NIC, or a bridge above such a device.

    Attributes
    ----------
    address
        In the form of sysfs: ``"0000:53:00.0"``; ``"cpu0/nic"`` for NICs that a topology file
        attaches directly to the CPU.
    parent
        Address of the bridge above, or the name of a `PciRoot`.
    kind
        ``"gpu"``, ``"nic"``, ``"bridge"`` or ``"other"``; unknown if a topology file gives
        no class for the device.
    pci_class, vendor, device, subsystem_vendor, subsystem_device
        Numbers in the form of sysfs: ``"0x030200"``, ``"0x10de"``.
    link_gtps
        Highest rate that both the device and the port above it support, in gigatransfers per
        second per lane.
    link_width
        Highest number of lanes that both support.
    numa_node
        NUMA node in the kernel; in a topology file, the NUMA node of the CPU above.
    rdma_devices
        Names of the RDMA devices of this PCI function: ``("mlx5_0",)``.
    acs
        Access Control Services: ``"redirect"`` (peer-to-peer traffic is sent up to
        the root complex), ``"off"`` (it is not), ``"none"`` (no such capability).
    ats
        Address Translation Services: ``"on"``, ``"off"`` or ``"none"``.
    """

    address: str
    parent: str
    kind: str | Unknown
    pci_class: str | Unknown
    vendor: str | Unknown
    device: str | Unknown
    subsystem_vendor: str | Unknown
    subsystem_device: str | Unknown
    link_gtps: float | Unknown
    link_width: int | Unknown
    numa_node: int | Unknown
    rdma_devices: tuple[str, ...] | Unknown
    acs: str | Unknown
    ats: str | Unknown

    @property
    def has_rdma(self) -> bool:
        """Whether the device is known to provide an RDMA device."""
        return isinstance(self.rdma_devices, tuple) and len(self.rdma_devices) > 0


@dataclass(frozen=True)
class PciRoot:
    """Root of a tree: a host bridge or CPU.

    Attributes
    ----------
    name
        ``"pci0000:00"`` for a host bridge of sysfs; ``"cpu0"`` in a topology file.
    numa_node
        NUMA node of a topology file's CPU; unknown for a host bridge of sysfs.
    cpu
        Attributes of the CPU in a topology file: ``affinity``, ``arch``, ``vendor``,
        ``familyid``, ``modelid``, ``host_hash``.
    """

    name: str
    numa_node: int | Unknown
    cpu: Mapping[str, str]


@dataclass(frozen=True)
class TopologyNvlink:
    """NVLinks of one GPU to one peer, from a topology file.

    Attributes
    ----------
    gpu, peer
        PCI addresses; the peer may be an NVSwitch.
    count
        Number of links.
    peer_class
        PCI class of the peer: ``"0x068000"`` is an NVSwitch.
    """

    gpu: str
    peer: str
    count: int | Unknown
    peer_class: str | Unknown


@dataclass(frozen=True)
class PciTree:
    """The PCIe tree of one source, down to GPUs and NICs.

    Attributes
    ----------
    source
        ``"sysfs"`` or ``"nccl topology file"``.
    origin
        The folder or file.
    roots, devices
        Roots and devices; each device comes after the bridges above it.
    nvlinks
        NVLinks in a topology file; empty for sysfs.
    told
        Attributes in the file of GPUs and network devices, by PCI address: ``name``,
        ``sm``, ``gdr``, ``speed`` (Mbit/s), and ``c2c`` (number of a GPU's C2C links to the
        CPU).
    refused
        Why NCCL rejects the topology file; empty if it does not.
    """

    source: str
    origin: str
    roots: tuple[PciRoot, ...]
    devices: tuple[PciDevice, ...]
    nvlinks: tuple[TopologyNvlink, ...]
    told: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    refused: str = ""

    def find(self, address: str) -> PciDevice | None:
        """Return the device at an address, or None if the tree does not have it."""
        return self._devices.get(address)

    def file_attributes(self, address: str) -> Mapping[str, str]:
        """Return the attributes of a device in the topology file (see `told`)."""
        return self.told.get(address, {})

    def above(self, address: str) -> tuple[str, ...]:
        """Return the parents of a device: the nearest bridge first, the root last."""
        ancestors: list[str] = []
        while address in self._parents:
            address = self._parents[address]
            if address in ancestors:  # an edited file may contain a cycle
                break
            ancestors.append(address)
        return tuple(ancestors)

    @cached_property
    def _devices(self) -> dict[str, PciDevice]:
        devices: dict[str, PciDevice] = {}
        for device in self.devices:
            devices.setdefault(device.address, device)
        return devices

    @cached_property
    def _parents(self) -> dict[str, str]:
        # Cached, because every pair of devices needs it.
        return {device.address: device.parent for device in self.devices}


@dataclass(frozen=True)
class PairDistance:
    """Distance of two devices over PCIe, from one source.

    Attributes
    ----------
    a, b
        PCI addresses.
    distance
        From PIX to SYS; NVML may also report INTERNAL.
    source
        One of `SOURCES`.
    """

    a: str
    b: str
    distance: Distance | Unknown
    source: str


@dataclass(frozen=True)
class GpuDirect:
    """Whether NCCL uses GPUDirect RDMA: a NIC accesses a GPU's memory directly.

    Attributes
    ----------
    gpu, nic
        PCI addresses.
    possible
        Result of NCCL's rule, as far as the guest can see the hardware.
    why
        The reason for the result.
    source
        Source of the distance that NCCL uses.
    """

    gpu: str
    nic: str
    possible: bool | Unknown
    why: str
    source: str


@dataclass(frozen=True)
class DistanceDifference:
    """A pair of devices for which two sources report different distances."""

    a: str
    b: str
    distances: tuple[PairDistance, ...]


@dataclass(frozen=True)
class Pcie:
    """PCIe of one VM.

    Attributes
    ----------
    trees
        One tree per source.
    distances
        Between GPUs and NICs, one per pair and source. If there are RDMA devices, NICs
        without RDMA are left out.
    gpudirect
        One result per GPU and NIC.
    topology_file
        The topology file that NCCL reads in this VM, or why it reads none.
    peer_memory
        The kernel module that gives NICs access to GPU memory, with its version.
    topology_file_state
        Whether NCCL can read that file.
    """

    trees: tuple[PciTree, ...]
    distances: tuple[PairDistance, ...]
    gpudirect: tuple[GpuDirect, ...]
    topology_file: str | Unknown
    peer_memory: str | Unknown
    topology_file_state: TopologyFileState | Unknown = EARLIER

    @property
    def rdma_addresses(self) -> set[str]:
        """PCI addresses of the devices with RDMA."""
        return {device.address for device in self.devices if device.has_rdma}

    def tree(self, source: str) -> PciTree | None:
        """Return the tree of one source, or None if there is no tree of that source."""
        return next((tree for tree in self.trees if tree.source == source), None)

    @property
    def devices(self) -> tuple[PciDevice, ...]:
        """Devices of this VM: from sysfs, or else from the topology file.

        A topology file may list devices that do not exist.
        """
        tree = self.tree(SYSFS) or next(iter(self.trees), None)
        return () if tree is None else tree.devices

    def between(self, a: str, b: str) -> tuple[PairDistance, ...]:
        """Return the distances of two PCI addresses, one per source, NCCL's preferred one first."""
        return self._by_pair.get(frozenset((a, b)), ())

    def distance(self, a: str, b: str) -> PairDistance | None:
        """Return the distance of two PCI addresses from the best source that has it."""
        pairs = self.between(a, b)
        measured = [pair for pair in pairs if isinstance(pair.distance, str)]
        return next(iter(measured or pairs), None)

    def differences(self) -> tuple[DistanceDifference, ...]:
        """Return the pairs for which two sources report different distances.

        NODE and PHB count as equal, since NCCL has no NODE.
        """
        by_addresses: dict[tuple[str, str], list[PairDistance]] = {}
        for pair in self.distances:
            if isinstance(pair.distance, str):
                first, second = sorted((pair.a, pair.b))
                by_addresses.setdefault((first, second), []).append(pair)
        return tuple(
            DistanceDifference(a, b, tuple(pairs))
            for (a, b), pairs in by_addresses.items()
            if len({nccl_level(pair.distance) for pair in pairs}) > 1
        )

    @cached_property
    def _by_pair(self) -> dict[frozenset[str], tuple[PairDistance, ...]]:
        # Cached, because a matrix needs every pair of devices.
        by_pair: dict[frozenset[str], tuple[PairDistance, ...]] = {}
        for distance in sorted(self.distances, key=lambda distance: _preference(distance.source)):
            pair = frozenset((distance.a, distance.b))
            by_pair[pair] = (*by_pair.get(pair, ()), distance)
        return by_pair


def _preference(source: str) -> int:
    return SOURCES.index(source) if source in SOURCES else len(SOURCES)


def nccl_level(distance: Distance | Unknown) -> str:
    """Return NCCL's name for a distance.

    NCCL has no NODE, and no boards with several GPUs. If the NUMA node of both devices is
    unknown, the distance is unknown here, but NCCL assumes one CPU: PHB.

    Examples
    --------
    >>> nccl_level(Distance.NODE)
    'PHB'
    >>> nccl_level(Distance.PXB)
    'PXB'
    """
    if isinstance(distance, Unknown):
        return "PHB"
    return {Distance.NODE: "PHB", Distance.INTERNAL: "PIX"}.get(distance, distance.value)
