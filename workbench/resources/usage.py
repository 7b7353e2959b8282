"""Records of what is used at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.resources.codec import decode, encode
from workbench.resources.unknown import Unknown


@dataclass(frozen=True)
class CpuUse:
    """CPU use since the sample before.

    Attributes
    ----------
    percent
        0 to 100 of all CPUs that this process may use.
    """

    percent: float | Unknown


@dataclass(frozen=True)
class MemoryUse:
    """Memory of the VM, or of the container where that has a limit."""

    used_bytes: int | Unknown
    total_bytes: int | Unknown


@dataclass(frozen=True)
class GpuUse:
    """One GPU, vGPU or MIG device.

    Attributes
    ----------
    index, uuid
        As in `Gpu`.
    utilization_percent
        Share of NVML's last sampling period in which a kernel ran.
    memory_used_bytes, memory_total_bytes
        Frame buffer.
    power_w, temperature_c
        Watts, and degrees Celsius of the GPU's die.
    """

    index: int
    uuid: str | Unknown
    utilization_percent: float | Unknown
    memory_used_bytes: int | Unknown
    memory_total_bytes: int | Unknown
    power_w: float | Unknown
    temperature_c: float | Unknown


@dataclass(frozen=True)
class NicUse:
    """Bytes per second over one NIC since the sample before.

    Attributes
    ----------
    name
        As in `Nic`.
    tx_bytes_per_s, rx_bytes_per_s
        All that can be measured: on an Ethernet link the kernel's traffic and
        RDMA's, which the kernel's own counters leave out; on InfiniBand the port's.
    rdma_tx_bytes_per_s, rdma_rx_bytes_per_s
        RDMA's alone (on InfiniBand with IP over it).
    """

    name: str
    tx_bytes_per_s: float | Unknown
    rx_bytes_per_s: float | Unknown
    rdma_tx_bytes_per_s: float | Unknown
    rdma_rx_bytes_per_s: float | Unknown


@dataclass(frozen=True)
class Sample:
    """What is used at one moment.

    Attributes
    ----------
    time
        Seconds since the epoch.
    """

    time: float
    cpu: CpuUse
    memory: MemoryUse
    gpus: tuple[GpuUse, ...]
    nics: tuple[NicUse, ...]

    def to_plain(self) -> dict[str, Any]:
        """Give the sample as plain JSON values."""
        plain: dict[str, Any] = encode(self)
        return plain

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Sample:
        """Read what `to_plain` gave.

        Raises
        ------
        SnapshotError
            It is no sample, or one of another version.
        """
        return decode(cls, data, "")
