"""The fields of a snapshot, as a frozen record, and the distances of its devices."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, SupportsIndex, TypeAlias

from workbench.errors import UsageError
from workbench.resources.distance import Distance
from workbench.resources.gpus.records import Gpu, GpuPair
from workbench.resources.host.probe import HostInfo
from workbench.resources.nics.records import Nic
from workbench.resources.pcie.distances import measure, of_unknown_kind
from workbench.resources.pcie.records import PciDevice, Pcie
from workbench.resources.unknown import Unknown

DeviceLike: TypeAlias = Gpu | Nic | int | str
"""A record, a GPU's index, or a name: UUID, interface, RDMA device, PCI address."""

_GPU_NAME = re.compile(r"(?:gpu ?)?(\d+)", re.IGNORECASE)
_PCI_NAME = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
MAX_GPUS = 256
"""Limit for GPUs; the largest systems have 16 GPUs with 7 MIG devices each, 112 in total."""
MAX_NICS = 2_048
"""Limit for NICs; a container host has hundreds of virtual interfaces, and more with SR-IOV."""
_SWITCH = "0x068000"  # the PCI class of an NVSwitch


@dataclass(frozen=True)
class Probe:
    """Result of one probe of the snapshot.

    Attributes
    ----------
    status
        ``"ok"``; ``"absent"``: no such hardware or driver; ``"failed"``: something is wrong;
        ``"unknown"``: the source does not say whether there is any.
    reason
        Why the status is not ok; empty if it is.
    elapsed_ms
        Duration in milliseconds.
    """

    status: str
    reason: str
    elapsed_ms: float


@dataclass(frozen=True)
class SnapshotRecord:
    """Hardware and limits of one VM at one point in time.

    Attributes
    ----------
    taken_at
        Seconds since the epoch.
    host, gpus, nics, pcie
        The result of each probe.
    gpu_pairs
        The connection between each pair of GPUs.
    probes
        Status of each probe: ``snapshot.probes["gpus"].reason``.
    """

    MAX_ENTRIES: ClassVar[Mapping[str, int]] = {"gpus": MAX_GPUS, "nics": MAX_NICS}

    taken_at: float
    host: HostInfo
    gpus: tuple[Gpu, ...]
    gpu_pairs: tuple[GpuPair, ...] | Unknown
    nics: tuple[Nic, ...]
    pcie: Pcie | Unknown
    probes: Mapping[str, Probe]

    @property
    def is_topology_file(self) -> bool:
        """Whether the snapshot only has the content of a topology file."""
        host = self.probes.get("host")
        return host is not None and host.status == "absent"

    @property
    def devices_of_unknown_kind(self) -> list[PciDevice]:
        """Devices that may be a GPU or a NIC: a topology file does not show their kind."""
        return of_unknown_kind(self.known_pcie.devices)

    @property
    def roce_ports(self) -> list[Nic]:
        """RDMA ports on Ethernet."""
        return [nic for nic in self.nics if nic.kind == "rdma" and nic.link_layer == "Ethernet"]

    @property
    def known_pcie(self) -> Pcie:
        """PCIe of the VM; a record without devices if it is unknown."""
        pcie = self.pcie
        return Pcie((), (), (), pcie, pcie) if isinstance(pcie, Unknown) else pcie

    def distance(self, a: DeviceLike, b: DeviceLike) -> Distance | Unknown:
        """Return the distance of two GPUs or NICs: the interconnect between them.

        Parameters
        ----------
        a, b
            Records of this snapshot, GPUs' indices, or names: a UUID, an interface, an
            RDMA device, a PCI address.

        Returns
        -------
        Distance or Unknown
            From the source that NCCL uses. If no source reports NVLinks, as in most
            topology files and vGPU guests, the distance over PCIe.

        Raises
        ------
        UsageError
            If there is no such device in this VM.
        """
        first = _find_device(self, a)
        second = _find_device(self, b)
        if first == second:
            return Distance.LOC
        for device in (first, second):
            if isinstance(device.address, Unknown):
                return device.address
        if first.address == second.address:
            return Distance.LOC
        if _over_nvlink(self, first, second):
            return Distance.NVLINK
        return _over_pcie(self, first, second)


@dataclass(frozen=True)
class _Endpoint:
    """A GPU or NIC of a snapshot: its PCI address, and its `Gpu` record if it is a GPU."""

    address: str | Unknown
    gpu: Gpu | None = None


def _find_device(snapshot: SnapshotRecord, wanted: DeviceLike) -> _Endpoint:
    """Find a GPU or NIC of a snapshot, or raise a `UsageError`."""
    for gpu in snapshot.gpus:
        if wanted == gpu or _is_gpu(gpu, wanted):
            return _Endpoint(gpu.pci_address, gpu)
    for nic in snapshot.nics:
        if wanted == nic or _is_nic(nic, wanted):
            return _Endpoint(nic.pci_address)
    address = _as_pci_address(wanted) if isinstance(wanted, str) else None
    for device in snapshot.known_pcie.devices:  # without a driver, or of unknown kind
        if device.address == address and device.kind not in ("bridge", "other"):
            return _Endpoint(device.address)
    other = f"a {type(wanted).__name__} of another VM"
    asked = other if isinstance(wanted, Gpu | Nic) else repr(wanted)
    raise UsageError(
        f"{asked}: no such GPU or NIC in this VM. Use one that it has: {_available(snapshot)}."
    )


def _as_pci_address(text: str) -> str | None:
    """Return a PCI address in the form of sysfs, with domain 0 by default; None for other texts.

    Examples
    --------
    >>> _as_pci_address("53:00.0")
    '0000:53:00.0'
    """
    match = _PCI_NAME.fullmatch(text.strip())
    return f"{int(match[1] or '0', 16):04x}:{match[2].lower()}" if match else None


def _is_gpu(gpu: Gpu, wanted: object) -> bool:
    if isinstance(wanted, SupportsIndex):
        return gpu.index == operator.index(wanted)
    if not isinstance(wanted, str):
        return False
    number = _GPU_NAME.fullmatch(wanted)
    if number:
        return gpu.index == int(number[1])
    return wanted == gpu.uuid or _as_pci_address(wanted) == gpu.pci_address


def _is_nic(nic: Nic, wanted: object) -> bool:
    if not isinstance(wanted, str):
        return False
    return wanted in (nic.name, nic.rdma_device) or _as_pci_address(wanted) == nic.pci_address


def _available(snapshot: SnapshotRecord) -> str:
    indices = sorted({gpu.index for gpu in snapshot.gpus})
    names = [
        nic.name if isinstance(nic.rdma_device, Unknown) else f"{nic.rdma_device} ({nic.name})"
        for nic in snapshot.nics
    ]
    gpus = f"GPUs {', '.join(map(str, indices))}" if indices else "no GPU"
    text = f"{gpus}; {'NICs ' + ', '.join(names) if names else 'no NIC'}"
    unclear = [device.address for device in snapshot.devices_of_unknown_kind]
    if unclear:
        text += f"; devices of unknown kind {', '.join(unclear)}"
    return text


def _over_nvlink(snapshot: SnapshotRecord, first: _Endpoint, second: _Endpoint) -> bool:
    if first.gpu is None or second.gpu is None or "mig" in (first.gpu.form, second.gpu.form):
        return False
    pair = _pair(snapshot, first.gpu, second.gpu)
    if pair is not None and isinstance(pair.p2p_nvlink, str):
        return pair.p2p_nvlink == "ok"  # links may be up, and still not be usable
    return first.gpu.is_linked(second.gpu) or _linked_in_file(snapshot, first, second)


def _pair(snapshot: SnapshotRecord, first: Gpu, second: Gpu) -> GpuPair | None:
    pairs = () if isinstance(snapshot.gpu_pairs, Unknown) else snapshot.gpu_pairs
    wanted = {first.index, second.index}
    return next((pair for pair in pairs if {pair.first, pair.second} == wanted), None)


def _linked_in_file(snapshot: SnapshotRecord, first: _Endpoint, second: _Endpoint) -> bool:
    """Return whether a topology file lists NVLinks between two GPUs, or from both to switches."""
    links = [link for tree in snapshot.known_pcie.trees for link in tree.nvlinks if link.count != 0]
    if any({link.gpu, link.peer} == {first.address, second.address} for link in links):
        return True
    to_switch = {link.gpu for link in links if link.peer_class == _SWITCH}
    return {first.address, second.address} <= to_switch


def _over_pcie(snapshot: SnapshotRecord, first: _Endpoint, second: _Endpoint) -> Distance | Unknown:
    pcie = snapshot.pcie
    if isinstance(pcie, Unknown):
        pair = _pair(snapshot, first.gpu, second.gpu) if first.gpu and second.gpu else None
        return pcie if pair is None or isinstance(pair.topology, Unknown) else pair.topology
    recorded = pcie.distance(str(first.address), str(second.address))
    return _measured(snapshot, pcie, first, second) if recorded is None else recorded.distance


def _measured(
    snapshot: SnapshotRecord, pcie: Pcie, first: _Endpoint, second: _Endpoint
) -> Distance | Unknown:
    """Measure a distance that the snapshot leaves out, such as to a NIC without RDMA."""
    nodes = snapshot.host.numa_nodes
    for tree in pcie.trees:
        a = tree.find(str(first.address))
        b = tree.find(str(second.address))
        if a is not None and b is not None:
            return measure(tree, a, b, nodes if isinstance(nodes, int) else 0)
    return Unknown(f"no source has both {first.address} and {second.address} in its PCIe tree")
