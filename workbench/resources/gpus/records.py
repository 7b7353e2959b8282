"""Records of GPUs: what each says of itself, and what is between two of them."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.resources.distance import Distance
from workbench.resources.gpus.vgpu import VgpuProfile
from workbench.resources.unknown import EARLIER, Unknown


@dataclass(frozen=True)
class Licence:
    """The licence that a vGPU runs under; without one it is slowed down after a while.

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
    """Error correction of a GPU's memories, and what it could not correct.

    Attributes
    ----------
    enabled, enabled_after_reboot
        The mode now, and the one that was asked for.
    volatile_uncorrected, aggregate_uncorrected
        Errors since the driver was loaded, and in the life of the GPU.
    remapped_rows_corrected, remapped_rows_uncorrected
        Rows put out of use after errors of the one and the other kind (Ampere and later).
    remapping_pending, remapping_failed
        Whether a row waits for the next reset; whether one could not be replaced.
    retired_pages
        Pages put out of use, for both reasons together (before Ampere).
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
class Clocks:
    """Clocks in MHz, now and at most, and what holds them down now.

    Attributes
    ----------
    held_by
        ``"power cap"``, ``"thermal (hardware)"``, ``"idle"``, ...; empty: nothing does.
    """

    sm_mhz: int | Unknown
    sm_max_mhz: int | Unknown
    memory_mhz: int | Unknown
    memory_max_mhz: int | Unknown
    held_by: tuple[str, ...] | Unknown


@dataclass(frozen=True)
class PcieLink:
    """A GPU's own PCIe link: generation and lanes, now and at most.

    An idle GPU may lower its generation, so that less than the most is no fault by itself.
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
        NVML's, from 0.
    state
        ``"up"`` or ``"down"``.
    version
        ``"3.0"``; its first digit is NVIDIA's generation.
    peer
        ``"gpu"``, ``"switch"`` or ``"npu"``.
    peer_pci_address
        As sysfs writes it; of a GPU outside this VM too.
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
        How it ended: ``"success"``, or NVML's error in words. Until it is
        completed, CUDA does not start on this GPU.
    """

    state: str | Unknown
    status: str | Unknown


@dataclass(frozen=True)
class NvLinks:
    """All NVLinks of a GPU.

    Attributes
    ----------
    links
        Those that the GPU has, up or down.
    nominal_gb_per_s
        Of all that are up together, in each direction.
    fabric
        Where they lead to NVSwitches.
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
        NVML's index; MIG devices carry the index of the GPU they are cut from.
    uuid, name
        As NVML gives them.
    pci_address
        As sysfs writes it: ``"0000:53:00.0"``.
    memory_bytes
        Frame buffer that this device owns.
    form
        ``"whole"`` (bare metal), ``"passthrough"``, ``"vgpu"`` or ``"mig"``.
    vgpu_profile
        As the driver names it: ``"A100-40C"``.
    driver_version, cuda_version
        The guest driver's, and the newest CUDA that it serves.
    compute_capability
        Such as ``"9.0"``.
    vgpu
        What the profile's name says: board, frame buffer, what it permits.
    licence
        Of a vGPU.
    ecc, clocks, pcie_link
        Of the GPU itself; a MIG device has those of the GPU that it is cut from.
    persistence_mode
        Whether the driver stays loaded while nothing runs.
    compute_mode
        ``"default"``, ``"exclusive process"`` (one process at a time) or ``"prohibited"``.
    nvlink
        Its links to other GPUs or switches, one by one and together.
    mig_mode
        Whether it is, or is cut from, a GPU that CUDA uses by its MIG devices only.
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
    clocks: Clocks | Unknown
    pcie_link: PcieLink | Unknown
    persistence_mode: bool | Unknown
    compute_mode: str | Unknown
    nvlink: NvLinks | Unknown
    mig_mode: bool | Unknown = EARLIER


@dataclass(frozen=True)
class GpuPair:
    """Two GPUs of one VM, and what is between them.

    Attributes
    ----------
    first, second
        NVML's indices; `first` is the lower one.
    topology
        The way over PCIe, as `nvidia-smi topo -m` has it: from PIX to SYS, or INTERNAL for
        two GPUs of one board.
    p2p_read, p2p_write, p2p_nvlink
        ``"ok"``, or in words why not: reading and writing the other's memory
        by any way, and by NVLink.
    """

    first: int
    second: int
    topology: Distance | Unknown
    p2p_read: str | Unknown
    p2p_write: str | Unknown
    p2p_nvlink: str | Unknown
