"""How many devices a VM may have, by the release of vSphere.

Sources: Broadcom, knowledge article 309986, "Configuring VMDirectPath I/O passthrough devices"
(passthrough, and the reserved memory); VMware, vSphere Virtual Machine Administration 7.0 and
8.0, "Hardware Features Available with Virtual Machine Compatibility Settings" (NICs up to
hardware version 19, PVRDMA from 7.0 Update 2 on); VMware, "vSphere 8 Expands Machine Learning
Support: Device Groups for NVIDIA GPUs and NICs" (vGPUs of 8.0).

What these do not say is unknown here: all of 9.0, vGPUs before and after 8.0, PVRDMA before 7.0
Update 2, NICs from 8.0 on, and the space for memory-mapped I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from workbench.resources.nics.records import is_pvrdma
from workbench.resources.snapshot_record import SnapshotRecord
from workbench.resources.unknown import Unknown

MAX_VGPUS = 8
"""Maximum number of vGPUs of one VM in vSphere 8.0."""
_UNKNOWN = Unknown("no public document that states it is known here")
_PRODUCT = re.compile(r"VMware(\d+),\d+")
_FIRST_SHOWN = 20
"""Earlier hardware versions have product names with another number, such as ``VMware7,1``."""
_DEVICES = {
    "passthrough": "PCI passthrough devices",
    "nics": "virtual network adapters",
    "pvrdma": "PVRDMA adapters",
}
_VIRTUAL_NICS = ("vmxnet3", "e1000", "e1000e")
_PASSTHROUGH_NICS = ("mlx4_core", "mlx5_core", "bnxt_en", "irdma", "ice", "ixgbevf", "iavf")


@dataclass(frozen=True)
class DeviceLimits:
    """Maximum numbers of devices of one VM.

    Attributes
    ----------
    release
        The first release of vSphere with these limits.
    hardware_version
        The virtual hardware version that they need.
    passthrough, nics, pvrdma
        PCI passthrough devices, virtual network adapters, and PVRDMA adapters.
    """

    release: str
    hardware_version: int
    passthrough: int
    nics: int | Unknown
    pvrdma: int | Unknown


LIMITS = (
    DeviceLimits("7.0", 17, 16, 10, _UNKNOWN),
    DeviceLimits("7.0 Update 2", 19, 16, 10, 10),
    DeviceLimits("8.0", 20, 32, _UNKNOWN, 10),
    DeviceLimits("8.0 Update 1", 20, 64, _UNKNOWN, 10),
    DeviceLimits("8.0 Update 2", 21, 128, _UNKNOWN, 10),
)


def hardware_version(snapshot: SnapshotRecord) -> int | Unknown:
    """Return a lower limit of the VM's virtual hardware version.

    The guest sees only the product name of DMI. It changes with some versions only.
    """
    product = snapshot.host.product
    if isinstance(product, Unknown):
        return product
    match = _PRODUCT.fullmatch(product)
    if match is None or int(match[1]) < _FIRST_SHOWN:
        return Unknown(f"the product name {product} does not show it")
    return int(match[1])


def passthrough_words() -> str:
    """Return the limits of passthrough devices in words.

    Examples
    --------
    >>> passthrough_words()
    '16 in vSphere 7, 32 from 8.0 on, 64 from 8.0 Update 1 on, 128 from 8.0 Update 2 on'
    """
    words = [f"{LIMITS[0].passthrough} in vSphere 7"]
    words += [
        f"{limits.passthrough} from {limits.release} on"
        for limits in LIMITS
        if limits.release >= "8.0"
    ]
    return ", ".join(words)


def reached_limits(snapshot: SnapshotRecord) -> Iterator[tuple[str, str]]:
    """Yield the kinds of devices that have reached a release's limit, and those releases."""
    if snapshot.host.hypervisor != "VMware":
        return
    version = hardware_version(snapshot)
    lowest = 0 if isinstance(version, Unknown) else version
    counts = {
        "passthrough": _passthrough(snapshot),
        "nics": _virtual_nics(snapshot),
        "pvrdma": sum(map(is_pvrdma, snapshot.nics)),
    }
    possible = [
        limits
        for limits in LIMITS
        if limits.hardware_version >= lowest and _permits(limits, counts)
    ]
    for name, count in counts.items():
        reached = [
            f"{limits.release} ({count})" for limits in possible if getattr(limits, name) == count
        ]
        if reached:
            yield f"{count} {_DEVICES[name]}", ", ".join(reached)


def _permits(limits: DeviceLimits, counts: Mapping[str, int]) -> bool:
    """Return whether a VM of this release may have so many devices; unknown limits permit all."""
    pairs = ((getattr(limits, name), count) for name, count in counts.items())
    return all(isinstance(maximum, Unknown) or count <= maximum for maximum, count in pairs)


def _passthrough(snapshot: SnapshotRecord) -> int:
    gpus = {gpu.pci_address for gpu in snapshot.gpus if gpu.form in ("passthrough", "mig")}
    ports = {nic.pci_address for nic in snapshot.nics if nic.driver in _PASSTHROUGH_NICS}
    return len([address for address in gpus | ports if isinstance(address, str)])


def _virtual_nics(snapshot: SnapshotRecord) -> int:
    """Count adapters. The interface of a PVRDMA adapter belongs to its port."""
    return sum(nic.driver in _VIRTUAL_NICS or is_pvrdma(nic) for nic in snapshot.nics)
