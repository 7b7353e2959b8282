"""A sample: what a VM uses at one moment, and the rates of its counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.resources.codec import decode, encode
from workbench.resources.unknown import Unknown

FIRST = Unknown("needs two samples")
"""Rate of a counter that has been read once."""


class Rate:
    """Computes the rate per second of one counter from its readings.

    If the counter decreases (it wrapped, or its driver was reloaded), the rate of that
    interval is `Unknown`.

    Examples
    --------
    >>> rate = Rate()
    >>> rate.update(1_000, time_s=10.0)
    Unknown(reason='needs two samples')
    >>> rate.update(1_500, time_s=12.0)
    250.0
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def update(self, count: float | Unknown, time_s: float) -> float | Unknown:
        """Add a reading at a monotonic time. Return the counts per second since the last one."""
        if isinstance(count, Unknown):
            self._last = None
            return count
        last = self._last
        self._last = (count, time_s)
        if last is None:
            return FIRST
        if count < last[0]:
            return Unknown("the counter went back (it wrapped or was reset) in this interval")
        if time_s <= last[1]:
            return Unknown("no time passed between two readings of the counter")
        return (count - last[0]) / (time_s - last[1])


def sum_or_unknown(rates: Iterable[float | Unknown]) -> float | Unknown:
    """Return the sum of rates. It is unknown if a rate is unknown, as a partial sum misleads.

    Examples
    --------
    >>> sum_or_unknown([1.5, 2.5])
    4.0
    >>> sum_or_unknown([1.5, FIRST])
    Unknown(reason='needs two samples')
    """
    total = 0.0
    for rate in rates:
        if isinstance(rate, Unknown):
            return rate
        total += rate
    return total


@dataclass(frozen=True)
class CpuUse:
    """CPU use since the previous sample.

    Attributes
    ----------
    percent
        0 to 100, of all CPUs that this process may use.
    """

    percent: float | Unknown


@dataclass(frozen=True)
class MemoryUse:
    """Memory of the VM, or of the container if it has a limit."""

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
        Percentage of NVML's last sampling period during which a kernel ran.
    memory_used_bytes, memory_total_bytes
        Frame buffer.
    power_w, temperature_c
        Watts, and degrees Celsius of the GPU's die.
    power_limit_w
        The enforced limit, in watts.
    sm_clock_mhz, memory_clock_mhz, held_by
        Values of the physical GPU, also for a MIG device. `held_by` lists what currently reduces
        the clocks, as in `GpuClocks`, including ``"idle"``.
    nvlink_tx_bytes_per_s, nvlink_rx_bytes_per_s
        Data over all NVLinks of the GPU, sent and received, since the previous sample.
    pcie_tx_bytes_per_s, pcie_rx_bytes_per_s
        Over PCIe: since the previous sample, or in 20 ms of that time (`gpus/link_counters.py`).
    idle_s
        Seconds since which utilization has been 0 in every sample while a process used
        memory on the GPU; 0 if it is busy, or no process uses its memory.
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
    """Traffic of one NIC per second since the previous sample.

    Attributes
    ----------
    name
        As in `Nic`.
    tx_bytes_per_s, rx_bytes_per_s
        All measurable traffic: on Ethernet the kernel's traffic and RDMA, which the
        kernel's counters do not include; on InfiniBand the traffic of the port.
    rdma_tx_bytes_per_s, rdma_rx_bytes_per_s
        RDMA only (on InfiniBand including IPoIB).
    tx_packets_per_s, rx_packets_per_s, rdma_tx_packets_per_s, rdma_rx_packets_per_s
        Packets of the same traffic.
    cnp_sent_per_s, cnp_handled_per_s
        Congestion notifications of RoCE: sent to a sender that is too fast, and received and
        acted on.
    ecn_marked_per_s
        RoCE packets that a switch marked because of congestion.
    errors
        Errors per second, by the name of each counter that the driver has in sysfs. The errors
        of an RDMA port are averages over the seconds since they were last read.
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
    """Memory that a process uses on one GPU.

    Attributes
    ----------
    index
        As in `Gpu`; the MIG devices of a GPU share an index, and their memory is added.
    """

    index: int
    memory_used_bytes: int | Unknown


@dataclass(frozen=True)
class ProcessUse:
    """A process of this VM: a kernel, a rank, or another process that uses a GPU.

    Attributes
    ----------
    pid
        Process id in this VM or container; the driver's id if the name is `NOT_VISIBLE`.
    name
        Name of its program in ``/proc`` (at most 15 characters).
    kind
        ``"kernel"`` (of Jupyter), ``"rank"`` (of a cluster) or ``"other"``.
    kernel_id
        Id of the kernel; for ``"other"``, the id of the kernel that started it.
    notebook
        Path of the kernel's notebook; set by the Jupyter server.
    cluster, rank
        Cluster and rank; for ``"other"``, the rank that started it and its cluster. None for ranks
        of other users.
    cpu_percent
        Since the previous sample; 100 is one core.
    memory_bytes
        Resident memory.
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
"""Name of a process that the driver lists, but that is not in ``/proc``."""


@dataclass(frozen=True)
class Sample:
    """Use of a VM at one point in time.

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
        """Return the sample as JSON values."""
        plain: dict[str, Any] = encode(self)
        return plain

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Sample:
        """Create a sample from the result of `to_plain`.

        Raises
        ------
        SnapshotError
            If it is not a sample, or of another version.
        """
        return decode(cls, data, "")
