"""Describe a VM's devices in the terms of a vSphere administrator: device groups and permissions.

Sources: VMware, vSphere Virtual Machine Administration 8.0, "Add a PCI Device to a Virtual
Machine" (DirectPath I/O) and "PVRDMA Support"; vSphere Networking 8.0, "SR-IOV Support";
VMware, "vSphere 8 Expands Machine Learning Support: Device Groups for NVIDIA GPUs and NICs"
(2022); NVIDIA AI Enterprise, "vGPU for Compute Features".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workbench.resources.distance import Distance
from workbench.resources.gpus.profiles import board_memory_gb
from workbench.resources.gpus.records import Gpu
from workbench.resources.gpus.vgpu import decode_profile
from workbench.resources.nics.records import Nic, is_pvrdma
from workbench.resources.snapshot_record import SnapshotRecord
from workbench.resources.unknown import Unknown
from workbench.resources.vsphere_limits import (
    MAX_VGPUS,
    hardware_version,
    passthrough_words,
    reached_limits,
)

GROUP_SIZES = (2, 4, 8)
"""Numbers of GPUs in the device groups that vSphere offers."""

_ON_HGX = ("X", "XL", "XM", "XS")
"""Endings of the names of boards with GPUs that NVSwitch connects."""

_NO_MOVING = (
    "no vMotion, suspend or snapshots; all memory of the VM is reserved; DRS can choose the host "
    "only at power-on"
)
_PERMITTED = {
    "passthrough": f"DirectPath I/O, so {_NO_MOVING}, and only with Dynamic DirectPath I/O",
    "vgpu": (
        "vGPU, so vMotion and suspend where ESXi and NVIDIA's host driver support them for the "
        "profile; the VM pauses while its frame buffer is copied"
    ),
    "mig": f"MIG device of a passthrough GPU (DirectPath I/O), so {_NO_MOVING}",
    "vmw_pvrdma": "PVRDMA, so vMotion is possible; all VMs must be on one distributed switch",
    "vmxnet3": "VMXNET3, so vMotion, suspend, snapshots and DRS; no RDMA",
    "mlx5_core": f"DirectPath I/O or SR-IOV, so {_NO_MOVING}",
}


@dataclass(frozen=True)
class DeviceGroup:
    """A set of GPUs with NVLink between every pair.

    Attributes
    ----------
    gpus
        Indices of the GPUs in the snapshot.
    connection
        ``"NVSwitch"``, ``"NVLink bridge"`` (a pair), or ``"NVLink"`` if the driver does not
        report the peers of the links.
    """

    gpus: tuple[int, ...]
    connection: str

    def __str__(self) -> str:
        count = len(self.gpus)
        offered = "a device group of" if count in GROUP_SIZES else "no device group of"
        return (
            f"GPUs {', '.join(map(str, self.gpus))}: connected by {self.connection}; vSphere 8 "
            f"offers {offered} {count} GPUs"
        )


def device_groups(snapshot: SnapshotRecord) -> list[DeviceGroup]:
    """Return the largest sets of two or more GPUs with NVLink between every pair.

    GPUs of different groups exchange data over PCIe.
    """
    groups: list[list[Gpu]] = []
    for gpu in snapshot.gpus:
        for group in groups:
            if all(snapshot.distance(gpu, other) == Distance.NVLINK for other in group):
                group.append(gpu)
                break
        else:
            groups.append([gpu])
    return [
        DeviceGroup(tuple(gpu.index for gpu in group), _connection(group))
        for group in groups
        if len(group) > 1
    ]


def gpu_request(board: str, count: int) -> str:
    """Return the GPUs to request so that the GPUs of one VM exchange data as fast as they can.

    Parameters
    ----------
    board
        NVIDIA's name of the board in vGPU profiles.
    count
        GPUs of the VM, at least two.

    Raises
    ------
    UsageError
        The board is not known.

    Examples
    --------
    >>> gpu_request("L4", 2)
    '2 GPUs of L4, which has no NVLink: they exchange data over PCIe'
    >>> gpu_request("H100XM", 4)
    'a device group of 4 GPUs, with a complete frame buffer each (H100XM-80C), which NVLink needs'
    """
    memory_gb = board_memory_gb(board)
    whole = decode_profile(f"{board}-{memory_gb}C")
    assert whole is not None
    if whole.p2p is False:
        return f"{count} GPUs of {board}, which has no NVLink: they exchange data over PCIe"
    if count > MAX_VGPUS:
        return (
            f"{count} GPUs by DirectPath I/O: a VM has at most {MAX_VGPUS} vGPUs in vSphere 8.0. "
            f"PCI passthrough devices, with NICs: {passthrough_words()}. All memory of the VM is "
            "reserved"
        )
    complete = f"with a complete frame buffer each ({board}-{memory_gb}C), which NVLink needs"
    sizes = GROUP_SIZES if board.endswith(_ON_HGX) else GROUP_SIZES[:1]
    size = next((offered for offered in sizes if offered >= count), 0)
    if not size:
        return (
            f"{count} GPUs, {complete}: bridges join pairs of {board}, and the pairs exchange data "
            "over PCIe. HGX boards connect up to 8"
        )
    other = "" if size == count else f" ({count} is none of its sizes)"
    return f"a device group of {size} GPUs{other}, {complete}"


def _connection(group: list[Gpu]) -> str:
    links = [gpu.nvlink.links for gpu in group if not isinstance(gpu.nvlink, Unknown)]
    peers = {link.peer for of_gpu in links if not isinstance(of_gpu, Unknown) for link in of_gpu}
    if "switch" in peers:
        return "NVSwitch"
    return "NVLink bridge" if len(group) == 2 and "gpu" in peers else "NVLink"


def vsphere_lines(snapshot: SnapshotRecord) -> Iterator[str]:
    """Yield what a vSphere administrator should know about the devices of a VM."""
    if snapshot.host.hypervisor != "VMware":
        return
    yield "vSphere:"
    version = hardware_version(snapshot)
    at_least = version if isinstance(version, Unknown) else f"at least {version}"
    yield f"  virtual hardware version: {at_least}"
    for devices, releases in reached_limits(snapshot):
        yield f"  {devices}: no more are possible in vSphere {releases}"
    for group in device_groups(snapshot):
        yield f"  {group}"
    seen = [(f"GPU {gpu.index}", gpu.form) for gpu in snapshot.gpus]
    seen += [(nic.name, _driver(nic)) for nic in snapshot.nics]
    for permitted_form, words in _PERMITTED.items():
        names = [name for name, form in seen if form == permitted_form]
        if names:
            yield f"  {', '.join(names)}: {words}"


def _driver(nic: Nic) -> str | Unknown:
    return "vmw_pvrdma" if is_pvrdma(nic) else nic.driver
