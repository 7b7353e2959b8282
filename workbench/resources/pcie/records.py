"""How GPUs and NICs are joined over PCIe: frozen records.

`sysfs` and `nccl_topology` read the trees, `distances` measures them,
`gpudirect` judges them, `probe` puts them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from workbench.resources.distance import Distance
from workbench.resources.pcie.topology_state import TopologyFileState
from workbench.resources.unknown import EARLIER, Unknown

SYSFS = "sysfs"
"""Source: what the guest's kernel sees."""
TOPOLOGY_FILE = "nccl topology file"
"""Source: what NCCL is told about a VM, and believes over sysfs."""
NVML = "nvml"
"""Source: what the NVIDIA driver says; distances only, there is no tree."""
SOURCES = (TOPOLOGY_FILE, SYSFS, NVML)
"""The sources of a distance, the one that NCCL goes by first."""


@dataclass(frozen=True)
class PciDevice:
    """A GPU, a NIC, or a bridge above one.

    Attributes
    ----------
    address
        As sysfs writes it: ``"0000:53:00.0"``; ``"cpu0/nic"`` for NICs that a topology
        file puts at the CPU itself.
    parent
        Address of the bridge above, or the name of a `PciRoot`.
    kind
        ``"gpu"``, ``"nic"``, ``"bridge"`` or ``"other"``; unknown where a topology file gives
        no class for it.
    pci_class, vendor, device, subsystem_vendor, subsystem_device
        Numbers as sysfs writes them: ``"0x030200"``, ``"0x10de"``.
    link_gtps
        Gigatransfers per second per lane that the device and the port above
        can both do.
    link_width
        Lanes that both can do.
    numa_node
        As the kernel was told; in a topology file its CPU's.
    rdma_devices
        Names of the RDMA devices that this function makes: ``("mlx5_0",)``.
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


@dataclass(frozen=True)
class PciRoot:
    """Where a tree is joined to the CPUs.

    Attributes
    ----------
    name
        ``"pci0000:00"`` for a host bridge of sysfs; ``"cpu0"`` in a topology file.
    numa_node
        Of a topology file's CPU; a host bridge has none of its own in sysfs.
    cpu
        What a topology file says of the CPU: ``affinity``, ``arch``, ``vendor``,
        ``familyid``, ``modelid``, ``host_hash``.
    """

    name: str
    numa_node: int | Unknown
    cpu: Mapping[str, str]


@dataclass(frozen=True)
class TopologyNvlink:
    """NVLinks of one GPU to one peer, as a topology file tells of them.

    Attributes
    ----------
    gpu, peer
        PCI addresses; the peer's may be an NVSwitch's.
    count
        Links that go there.
    peer_class
        PCI class of the peer: ``"0x068000"`` is an NVSwitch.
    """

    gpu: str
    peer: str
    count: int | Unknown
    peer_class: str | Unknown


@dataclass(frozen=True)
class PciTree:
    """The PCIe tree as one source describes it, down to GPUs and NICs.

    Attributes
    ----------
    source
        ``"sysfs"`` or ``"nccl topology file"``.
    origin
        The folder or file.
    roots, devices
        Every device comes after the bridges above it.
    nvlinks
        Of a topology file; empty where it has none, and for sysfs.
    told
        What a topology file says of the GPU or network device at an address, as
        it stands there: ``name``, ``sm``, ``gdr``, ``speed`` (Mbit/s), and ``c2c`` (the links
        to the CPU of a GPU that is joined to it by C2C).
    refused
        Of a topology file: why NCCL stops at it; empty where it does not.
    """

    source: str
    origin: str
    roots: tuple[PciRoot, ...]
    devices: tuple[PciDevice, ...]
    nvlinks: tuple[TopologyNvlink, ...]
    told: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    refused: str = ""

    def find(self, address: str) -> PciDevice | None:
        """Give the device at an address, or None."""
        return self._devices.get(address)

    def above(self, address: str) -> tuple[str, ...]:
        """Give what lies above a device: bridges from the nearest up, then the root."""
        found: list[str] = []
        while address in self._parents:
            address = self._parents[address]
            if address in found:  # an edited file may hold a ring
                break
            found.append(address)
        return tuple(found)

    @cached_property
    def _devices(self) -> dict[str, PciDevice]:
        found: dict[str, PciDevice] = {}
        for device in self.devices:
            found.setdefault(device.address, device)
        return found

    @cached_property
    def _parents(self) -> dict[str, str]:
        # every pair of devices is measured by it
        return {device.address: device.parent for device in self.devices}


@dataclass(frozen=True)
class PairDistance:
    """How far two devices are apart over PCIe, by one source.

    Attributes
    ----------
    a, b
        PCI addresses.
    distance
        From PIX to SYS, or INTERNAL by NVML.
    source
        One of `SOURCES`.
    """

    a: str
    b: str
    distance: Distance | Unknown
    source: str


@dataclass(frozen=True)
class GpuDirect:
    """Whether NCCL lets a NIC read and write a GPU's memory without the host.

    Attributes
    ----------
    gpu, nic
        PCI addresses.
    possible
        By NCCL's rule for distance, as far as the guest shows.
    why
        In plain words, whatever the answer.
    source
        Where the distance that NCCL goes by comes from.
    """

    gpu: str
    nic: str
    possible: bool | Unknown
    why: str
    source: str


@dataclass(frozen=True)
class Difference:
    """Two sources that do not agree on a distance."""

    a: str
    b: str
    distances: tuple[PairDistance, ...]


@dataclass(frozen=True)
class Pcie:
    """PCIe of one VM.

    Attributes
    ----------
    trees
        One per source that describes one.
    distances
        Between GPUs and NICs, one per pair and source. Where there are RDMA
        devices, NICs without RDMA are left out.
    gpudirect
        One per GPU and NIC.
    topology_file
        The topology file that NCCL reads in this VM, or why it reads none.
    peer_memory
        The kernel module that lets NICs reach GPU memory, with its version.
    topology_file_state
        How NCCL fares with that file.
    """

    trees: tuple[PciTree, ...]
    distances: tuple[PairDistance, ...]
    gpudirect: tuple[GpuDirect, ...]
    topology_file: str | Unknown
    peer_memory: str | Unknown
    topology_file_state: TopologyFileState | Unknown = EARLIER

    def tree(self, source: str) -> PciTree | None:
        """Give the tree of one source, or None."""
        return next((tree for tree in self.trees if tree.source == source), None)

    def there(self) -> tuple[PciDevice, ...]:
        """Give what is in this VM: sysfs's devices, or a topology file's where there is no sysfs.

        A topology file may name devices that are not there.
        """
        tree = self.tree(SYSFS) or next(iter(self.trees), None)
        return () if tree is None else tree.devices

    def between(self, a: str, b: str) -> tuple[PairDistance, ...]:
        """Give what each source says of two PCI addresses, the one NCCL goes by first."""
        return self._by_pair.get(frozenset((a, b)), ())

    def distance(self, a: str, b: str) -> PairDistance | None:
        """Give the distance of two PCI addresses, of the best source that knows it."""
        said = self.between(a, b)
        known = [one for one in said if isinstance(one.distance, str)]
        return next(iter(known or said), None)

    def differences(self) -> tuple[Difference, ...]:
        """Give the pairs on which two sources that know do not agree.

        NODE and PHB agree: NCCL knows no NODE.
        """
        pairs: dict[tuple[str, str], list[PairDistance]] = {}
        for one in self.distances:
            if isinstance(one.distance, str):
                first, second = sorted((one.a, one.b))
                pairs.setdefault((first, second), []).append(one)
        return tuple(
            Difference(a, b, tuple(said))
            for (a, b), said in pairs.items()
            if len({in_nccls_words(one.distance) for one in said}) > 1
        )

    @cached_property
    def _by_pair(self) -> dict[frozenset[str], tuple[PairDistance, ...]]:
        # a matrix asks for every pair of devices
        found: dict[frozenset[str], tuple[PairDistance, ...]] = {}
        for one in sorted(self.distances, key=lambda distance: _rank(distance.source)):
            pair = frozenset((one.a, one.b))
            found[pair] = (*found.get(pair, ()), one)
        return found


def _rank(source: str) -> int:
    return SOURCES.index(source) if source in SOURCES else len(SOURCES)


def in_nccls_words(distance: Distance | Unknown) -> str:
    """Give what NCCL takes a distance for.

    NCCL knows no NODE, and no boards of several GPUs. Where it is told the NUMA
    node of neither device, which leaves the distance unknown to us, it takes both
    for one CPU's: PHB.
    """
    if isinstance(distance, Unknown):
        return "PHB"
    return {Distance.NODE: "PHB", Distance.INTERNAL: "PIX"}.get(distance, distance.value)
