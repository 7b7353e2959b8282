"""Records of what is used at one moment."""

from __future__ import annotations

from collections.abc import Mapping
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
    power_limit_w
        The limit that is enforced, in watts.
    sm_clock_mhz, memory_clock_mhz
        Of the whole GPU, as is `held_by`.
    held_by
        What holds the clocks down now: words as in `Clocks`; ``"idle"`` among them.
    nvlink_tx_bytes_per_s, nvlink_rx_bytes_per_s
        Data over all NVLinks of the GPU, sent and received, since the sample before.
    pcie_tx_bytes_per_s, pcie_rx_bytes_per_s
        Over PCIe: since the sample before, or in 20 ms of that time (`gpus/pcie_counters.py`).
    idle_s
        Seconds for which samples have seen it idle (utilization 0) while a process
        holds memory on it; 0 where it is busy, or no process does.
    """

    index: int
    uuid: str | Unknown
    utilization_percent: float | Unknown
    memory_used_bytes: int | Unknown
    memory_total_bytes: int | Unknown
    power_w: float | Unknown
    temperature_c: float | Unknown
    power_limit_w: float | Unknown
    sm_clock_mhz: float | Unknown
    memory_clock_mhz: float | Unknown
    held_by: tuple[str, ...] | Unknown
    nvlink_tx_bytes_per_s: float | Unknown
    nvlink_rx_bytes_per_s: float | Unknown
    pcie_tx_bytes_per_s: float | Unknown
    pcie_rx_bytes_per_s: float | Unknown
    idle_s: float | Unknown


@dataclass(frozen=True)
class NicUse:
    """What passed over one NIC since the sample before, per second.

    Attributes
    ----------
    name
        As in `Nic`.
    tx_bytes_per_s, rx_bytes_per_s
        All that can be measured: on an Ethernet link the kernel's traffic and
        RDMA's, which the kernel's own counters leave out; on InfiniBand the port's.
    rdma_tx_bytes_per_s, rdma_rx_bytes_per_s
        RDMA's alone (on InfiniBand with IP over it).
    tx_packets_per_s, rx_packets_per_s, rdma_tx_packets_per_s, rdma_rx_packets_per_s
        Packets of the same.
    cnp_sent_per_s, cnp_handled_per_s
        Congestion notifications of RoCE: sent to who sends too fast, and obeyed.
    ecn_marked_per_s
        RoCE packets that a switch marked as having met congestion.
    errors
        Errors per second, by the counter's own name in sysfs; those that the drivers
        have. Of an RDMA port over some seconds, since it was asked last.
    """

    name: str
    tx_bytes_per_s: float | Unknown
    rx_bytes_per_s: float | Unknown
    rdma_tx_bytes_per_s: float | Unknown
    rdma_rx_bytes_per_s: float | Unknown
    tx_packets_per_s: float | Unknown
    rx_packets_per_s: float | Unknown
    rdma_tx_packets_per_s: float | Unknown
    rdma_rx_packets_per_s: float | Unknown
    cnp_sent_per_s: float | Unknown
    cnp_handled_per_s: float | Unknown
    ecn_marked_per_s: float | Unknown
    errors: Mapping[str, float | Unknown] | Unknown


@dataclass(frozen=True)
class GpuShare:
    """What a process holds of one GPU.

    Attributes
    ----------
    index
        As in `Gpu`; the MIG devices of a GPU share it, and are added up.
    """

    index: int
    memory_used_bytes: int | Unknown


@dataclass(frozen=True)
class ProcessUse:
    """One process of this VM: a kernel, a rank, or another that uses a GPU.

    Attributes
    ----------
    pid
        As this VM, or container, numbers it; the driver's number where it is `NOT_VISIBLE`.
    name
        Of its program, as the kernel of the VM has it (at most 15 letters).
    kind
        ``"kernel"`` (Jupyter's), ``"rank"`` (of a cluster) or ``"other"``.
    kernel_id
        The kernel that it is, or for ``"other"`` that it comes from.
    notebook
        Path of the kernel's notebook; a Jupyter server fills it in.
    cluster, rank
        What it is rank of, or for ``"other"`` comes from; None for ranks of other users.
    cpu_percent
        Since the sample before; 100 is one core.
    memory_bytes
        Resident.
    gpus
        The GPUs that it is known to use.
    """

    pid: int
    name: str
    kind: str
    kernel_id: str | None
    notebook: str | None
    cluster: str | None
    rank: int | None
    cpu_percent: float | Unknown
    memory_bytes: int | Unknown
    gpus: tuple[GpuShare, ...]


NOT_VISIBLE = "not visible here (of another container, or just ended)"
"""Name of a process that the driver lists and ``/proc`` does not."""


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
    processes: tuple[ProcessUse, ...] | Unknown

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
