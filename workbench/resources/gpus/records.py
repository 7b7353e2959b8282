"""Records of GPUs, and of the connection between two of them."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.resources.distance import Distance
from workbench.resources.gpus.vgpu import VgpuProfile
from workbench.resources.unknown import EARLIER, Unknown


@dataclass(frozen=True)
class Licence:
    """The licence of a vGPU. Without a licence, its performance is reduced after some time.

    Attributes
    ----------
    state
        ``"licensed"`` or ``"unlicensed"``.
    product
        ``"NVIDIA Virtual Compute Server"``.
    expires
        ``"2027-03-31 12:00:00"`` as the driver gives it, or ``"permanent"``.
    """

    state: str | Unknown
    product: str | Unknown
    expires: str | Unknown


@dataclass(frozen=True)
class Ecc:
    """Error correction of a GPU's memory, and its error counts.

    Attributes
    ----------
    enabled, enabled_after_reboot
        The current mode, and the mode after the next reboot.
    volatile_uncorrected, aggregate_uncorrected
        Errors since the driver was loaded, and in the lifetime of the GPU.
    remapped_rows_corrected, remapped_rows_uncorrected
        Rows remapped after correctable and after uncorrectable errors (Ampere and later).
    remapping_pending, remapping_failed
        Whether a remapping is pending until the next reset; whether a remapping has failed.
    retired_pages
        Pages retired for either reason (before Ampere).
    """

    enabled: bool | Unknown
    enabled_after_reboot: bool | Unknown
    volatile_uncorrected: int | Unknown
    aggregate_uncorrected: int | Unknown
    remapped_rows_corrected: int | Unknown
    remapped_rows_uncorrected: int | Unknown
    remapping_pending: bool | Unknown
    remapping_failed: bool | Unknown
    retired_pages: int | Unknown


@dataclass(frozen=True)
class GpuClocks:
    """Current and maximum clocks in MHz, and the reasons that currently reduce them.

    Attributes
    ----------
    held_by
        Reasons: ``"power cap"``, ``"thermal (hardware)"``, ``"idle"``, ...; empty if the clocks
        are not reduced.
    """

    sm_mhz: int | Unknown
    sm_max_mhz: int | Unknown
    memory_mhz: int | Unknown
    memory_max_mhz: int | Unknown
    held_by: tuple[str, ...] | Unknown


@dataclass(frozen=True)
class PcieLink:
    """The PCIe link of a GPU: current and maximum generation, and number of lanes.

    An idle GPU may lower its generation, so a lower generation alone is not a fault.
    """

    generation: int | Unknown
    generation_max: int | Unknown
    width: int | Unknown
    width_max: int | Unknown


@dataclass(frozen=True)
class NvLink:
    """One link of a GPU.

    Attributes
    ----------
    number
        NVML's number, from 0.
    state
        ``"up"`` or ``"down"``.
    version
        ``"3.0"``; its first digit is NVIDIA's generation.
    peer
        ``"gpu"``, ``"switch"`` or ``"npu"``.
    peer_pci_address
        In the form of sysfs; the GPU may be outside this VM.
    nominal_gb_per_s
        Gigabytes per second in each direction, by the version (`nvlinks.py` has the sources).
    """

    number: int
    state: str | Unknown
    version: str | Unknown
    peer: str | Unknown
    peer_pci_address: str | Unknown
    nominal_gb_per_s: float | Unknown


@dataclass(frozen=True)
class Fabric:
    """A GPU's registration with the fabric of NVSwitches (Hopper and later).

    Attributes
    ----------
    state
        ``"not started"``, ``"in progress"`` or ``"completed"``.
    status
        Result: ``"success"``, or NVML's error text. Until the registration is completed, CUDA
        cannot start on this GPU.
    """

    state: str | Unknown
    status: str | Unknown


@dataclass(frozen=True)
class NvLinks:
    """All NVLinks of a GPU.

    Attributes
    ----------
    links
        All links of the GPU, up or down.
    nominal_gb_per_s
        Total of all links that are up, in each direction.
    fabric
        Registration with the NVSwitch fabric.
    """

    links: tuple[NvLink, ...] | Unknown
    nominal_gb_per_s: float | Unknown
    fabric: Fabric | Unknown


@dataclass(frozen=True)
class Gpu:
    """One GPU, vGPU or MIG device, as the guest's driver reports it.

    Attributes
    ----------
    index
        NVML's index; MIG devices have the index of their GPU.
    uuid, name
        As reported by NVML.
    pci_address
        In the form of sysfs: ``"0000:53:00.0"``.
    memory_bytes
        Frame buffer of this device.
    form
        ``"whole"`` (bare metal), ``"passthrough"``, ``"vgpu"`` or ``"mig"``.
    vgpu_profile
        Name in the driver: ``"A100-40C"``.
    driver_version, cuda_version
        Versions of the guest driver and of the newest CUDA that it supports.
    compute_capability
        Such as ``"9.0"``.
    vgpu
        Content of the profile's name: board, frame buffer, permissions.
    licence
        Licence of a vGPU.
    ecc, clocks, pcie_link
        State of the GPU; a MIG device has the state of its physical GPU.
    persistence_mode
        Whether the driver stays loaded while no process uses the GPU.
    compute_mode
        ``"default"``, ``"exclusive process"`` (one process at a time) or ``"prohibited"``.
    nvlink
        Its links to other GPUs or switches.
    mig_mode
        Whether the GPU is in MIG mode. CUDA then uses only its MIG devices.
    """

    index: int
    uuid: str | Unknown
    name: str | Unknown
    pci_address: str | Unknown
    memory_bytes: int | Unknown
    form: str | Unknown
    vgpu_profile: str | Unknown
    driver_version: str | Unknown
    cuda_version: str | Unknown
    compute_capability: str | Unknown
    vgpu: VgpuProfile | Unknown
    licence: Licence | Unknown
    ecc: Ecc | Unknown
    clocks: GpuClocks | Unknown
    pcie_link: PcieLink | Unknown
    persistence_mode: bool | Unknown
    compute_mode: str | Unknown
    nvlink: NvLinks | Unknown
    mig_mode: bool | Unknown = EARLIER

    @property
    def known_links(self) -> tuple[NvLink, ...]:
        """Its NVLinks, up or down; none if they are unknown."""
        links = self.nvlink.links if isinstance(self.nvlink, NvLinks) else ()
        return links if isinstance(links, tuple) else ()

    @property
    def links_up(self) -> tuple[NvLink, ...]:
        """Its NVLinks that are up."""
        return tuple(link for link in self.known_links if link.state == "up")

    @property
    def links_to_switch(self) -> bool:
        """Whether a link to an NVSwitch is up."""
        return any(link.peer == "switch" for link in self.links_up)

    def links_to(self, other: Gpu) -> bool:
        """Return whether a link to another GPU is up."""
        peers = {link.peer_pci_address for link in self.links_up}
        return isinstance(other.pci_address, str) and other.pci_address in peers

    def is_linked(self, other: Gpu) -> bool:
        """Return whether active links connect two GPUs directly or through switches."""
        if self.links_to_switch and other.links_to_switch:
            return True
        return self.links_to(other) or other.links_to(self)


@dataclass(frozen=True)
class GpuPair:
    """Connection between two GPUs of one VM.

    Attributes
    ----------
    first, second
        NVML's indices; `first` is the lower one.
    topology
        Distance over PCIe, as in `nvidia-smi topo -m`: from PIX to SYS, or INTERNAL for two
        GPUs of one board.
    p2p_read, p2p_write, p2p_nvlink
        ``"ok"``, or why it is not possible: reading and writing the other GPU's memory over any
        connection, and over NVLink.
    """

    first: int
    second: int
    topology: Distance | Unknown
    p2p_read: str | Unknown
    p2p_write: str | Unknown
    p2p_nvlink: str | Unknown
