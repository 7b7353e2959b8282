"""Nominal rates of links and memory, from published specifications.

Rates are for one direction. GB/s are 10^9 bytes per second, and Gbit/s are 10^9 bits per second.
`landscape` lists the rates of a VM. The rates of NVLink are in `workbench.resources.gpus.nvlinks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from workbench.errors import UsageError
from workbench.resources import Gpu, Nic, PcieLink, Snapshot, Unknown
from workbench.resources.gpus.nvlinks import LINK_GB_PER_S
from workbench.resources.gpus.records import NvLinks

PCIE_GTPS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""Gigatransfers per second of a lane, by generation (PCI-SIG, PCI Express Base Specification)."""

# The payload's share of the bits that a lane transfers: 8b/10b, 128b/130b, and since PCIe 6.0, 236
# of the 256 bytes of a flit. The headers of packets are not subtracted.
_PCIE_ENCODING = {2.5: 0.8, 5.0: 0.8, 64.0: 236 / 256}
_PCIE_ENCODING_3_TO_5 = 128 / 130

NVLINK_OF_GPU = {2: ("2.0", 6), 3: ("3.0", 12), 4: ("4.0", 18), 5: ("5.0", 18)}
"""NVML's version and number of links of V100, A100, H100 and B200, by NVIDIA's generation."""

INFINIBAND_LANE_GBPS = {
    "SDR": 2.5 * 0.8,
    "DDR": 5.0 * 0.8,
    "QDR": 10.0 * 0.8,
    "FDR10": 10.3125 * 64 / 66,
    "FDR": 14.0625 * 64 / 66,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
"""Data rate of a lane in Gbit/s, without its encoding (IBTA, volume 2, and InfiniBand roadmap)."""

UPI_GB_PER_S = {9.6: 19.2, 10.4: 20.8, 11.2: 22.4, 16.0: 32.0, 20.0: 40.0, 24.0: 48.0}
"""Rate of one link between two Intel CPUs, by its gigatransfers per second of 2 bytes (Intel
ARK)."""

# Memory bandwidth, from NVIDIA's data sheets of these products. The keys are patterns for the name
# that the driver reports, without the brand at its beginning.
_BRAND = r"(?:NVIDIA |Tesla |Quadro )*"
_MEMORY_GB_PER_S = {
    r"P100-\w+-16GB": 732.0,
    r"V100S-PCIE-32GB": 1134.0,
    r"V100-(SXM2|PCIE|DGXS)-(16|32)GB": 900.0,
    r"GV100": 870.0,
    r"T4": 320.0,
    r"A100-PCIE-80GB|A100 80GB PCIe": 1935.0,
    r"A100-SXM\d?-80GB": 2039.0,
    r"A100-(SXM\d?|PCIE)-40GB": 1555.0,
    r"A30": 933.0,
    r"A40": 696.0,
    r"A10": 600.0,
    r"L40S?": 864.0,
    r"L4": 300.0,
    r"H100 NVL": 3900.0,
    r"H100 PCIe": 2000.0,
    r"H100 80GB HBM3": 3350.0,
    r"H200( NVL)?": 4800.0,
    r"GH200 480GB": 4000.0,
    r"G?B200": 8000.0,
}
# Names of GPUs by the names of their boards in vGPU profiles. Other boards, such as H100XL, are
# unknown.
_GPU_BY_BOARD = {
    "A10": "A10",
    "A30": "A30",
    "A40": "A40",
    "A100": "A100-PCIE-40GB",
    "A100X": "A100-SXM4-40GB",
    "A100D": "A100 80GB PCIe",
    "A100DX": "A100-SXM4-80GB",
    "B200X": "B200",
    "H100": "H100 PCIe",
    "H100L": "H100 NVL",
    "H100XM": "H100 80GB HBM3",
    "H200": "H200 NVL",
    "H200X": "H200",
    "L4": "L4",
    "L40": "L40",
    "L40S": "L40S",
    "T4": "T4",
}
_NOT_MEASURED = Unknown("not measured: %fabric calibrate measures it")
_PVRDMA = Unknown("PVRDMA: the rate of the host's NIC, which the guest does not see")
_LINK_DOWN = Unknown("the link is down")
_NO_SPEED = Unknown("the driver reports no speed")
_CPU_LINKS = Unknown(
    "the guest does not see the links between CPUs; between two of Intel, one UPI link has "
    f"{min(UPI_GB_PER_S.values()):.0f} to {max(UPI_GB_PER_S.values()):.0f} GB/s"
)


@dataclass(frozen=True)
class Bandwidth:
    """The nominal and the measured rate of a link, or of several links with equal rates.

    Attributes
    ----------
    name
        The link and its devices: ``"PCIe 5.0 x16: GPU 0-7"``.
    kind
        ``"GPU memory"``, ``"NVLink"``, ``"PCIe"``, ``"host memory"``, ``"CPU to CPU"`` or
        ``"network"``.
    nominal_gb_per_s, measured_gb_per_s
        Rates in one direction, in GB/s.
    """

    name: str
    kind: str
    nominal_gb_per_s: float | Unknown
    measured_gb_per_s: float | Unknown = _NOT_MEASURED


def pcie_gb_per_s(generation: float, width: int) -> float:
    """Return the rate of a PCIe link in one direction, in GB/s.

    Raises
    ------
    UsageError
        There is no such generation or width.

    Examples
    --------
    >>> round(pcie_gb_per_s(5, 16), 1)
    63.0
    """
    if generation not in PCIE_GTPS or width not in (1, 2, 4, 8, 12, 16, 32):
        raise UsageError(
            f"PCIe {generation} x{width}: no such link. Give a generation from 1 to 6 and a width "
            "of 1, 2, 4, 8, 12, 16 or 32 lanes."
        )
    return lanes_gb_per_s(PCIE_GTPS[int(generation)], width)


def lanes_gb_per_s(gtps: float, width: int) -> float:
    """Return the rate of `width` PCIe lanes of `gtps` gigatransfers per second, in GB/s."""
    return gtps * _PCIE_ENCODING.get(gtps, _PCIE_ENCODING_3_TO_5) * width / 8


def nvlink_gb_per_s(generation: int) -> float:
    """Return the rate of all NVLinks of a GPU in one direction, in GB/s.

    NVIDIA publishes the sum of both directions, which is twice this rate.

    Raises
    ------
    UsageError
        The generation is not from 2 to 5.

    Examples
    --------
    >>> [nvlink_gb_per_s(generation) for generation in (2, 3, 4, 5)]
    [150.0, 300.0, 450.0, 900.0]
    """
    if generation not in NVLINK_OF_GPU:
        raise UsageError(f"NVLink {generation}: not known here. Give a generation from 2 to 5.")
    version, count = NVLINK_OF_GPU[generation]
    return LINK_GB_PER_S[version] * count


def infiniband_gbps(generation: str, lanes: int = 4) -> float:
    """Return the data rate of an InfiniBand port, in Gbit/s.

    Raises
    ------
    UsageError
        There is no such generation or number of lanes.

    Examples
    --------
    >>> infiniband_gbps("NDR")
    400.0
    """
    if generation not in INFINIBAND_LANE_GBPS or lanes not in (1, 2, 4, 8, 12):
        raise UsageError(
            f"InfiniBand {lanes}X {generation}: no such rate. Use 1, 2, 4, 8 or 12 lanes of "
            f"{', '.join(INFINIBAND_LANE_GBPS)}."
        )
    return INFINIBAND_LANE_GBPS[generation] * lanes


def memory_gb_per_s(gpu: Gpu) -> float | Unknown:
    """Return the nominal bandwidth of a GPU's memory, in GB/s."""
    if gpu.form not in ("whole", "passthrough"):
        return Unknown(f"a device of form {gpu.form} shares the memory's bandwidth with others")
    return _published_memory_gb_per_s(str(gpu.name))


def board_memory_gb_per_s(board: str) -> float | Unknown:
    """Return the nominal bandwidth of a board's memory in GB/s, by its name in vGPU profiles."""
    return _published_memory_gb_per_s(_GPU_BY_BOARD.get(board, board))


def _published_memory_gb_per_s(name: str) -> float | Unknown:
    for pattern, rate in _MEMORY_GB_PER_S.items():
        if re.fullmatch(f"{_BRAND}(?:{pattern})", name):
            return rate
    return Unknown(f"no published rate for the memory of {name} is known here")


def pcie_link_gb_per_s(snapshot: Snapshot, device: Gpu | Nic) -> tuple[str, float | Unknown]:
    """Return the name of the PCIe link of a GPU or NIC, and its rate in GB/s."""
    link = device.pcie_link if isinstance(device, Gpu) else None
    if isinstance(link, PcieLink):
        generation = link.generation_max
        width = link.width
        if generation in PCIE_GTPS and isinstance(width, int) and width:
            rate = lanes_gb_per_s(PCIE_GTPS[generation], width)
            return f"PCIe {generation}.0 x{width}", rate
    nodes = [node for node in snapshot.known_pcie.devices if node.address == device.pci_address]
    if not nodes:
        return "PCIe", Unknown("the device is in no PCIe tree of this VM")
    gtps = nodes[0].link_gtps
    lanes = nodes[0].link_width
    if isinstance(gtps, Unknown) or isinstance(lanes, Unknown):
        return "PCIe", gtps if isinstance(gtps, Unknown) else Unknown(str(lanes))
    if not gtps * lanes > 0:
        return "PCIe", _LINK_DOWN
    generations = [f"{number}.0" for number, rate in PCIE_GTPS.items() if rate == gtps]
    speed = generations[0] if generations else f"{gtps:g} GT/s"
    return f"PCIe {speed} x{lanes}", lanes_gb_per_s(gtps, lanes)


def nic_gbps(nic: Nic) -> float | Unknown:
    """Return the rate of a NIC or RDMA port, in Gbit/s; unknown if the driver reports 0."""
    if str(nic.hca_type).startswith("VMW_PVRDMA"):
        return _PVRDMA
    rate = nic.rate_gbps
    return rate if isinstance(rate, Unknown) or rate > 0 else _NO_SPEED


def find_nic(snapshot: Snapshot, name: str) -> Nic | None:
    """Return the NIC of a rank from `RankInfo.nic`; None if the snapshot does not have it.

    The name may have several parts, separated by commas: interfaces and RDMA ports. The last part
    takes precedence, so that an RDMA port is preferred to its interface.
    """
    for part in reversed([text.strip() for text in name.split(",")]):
        for nic in snapshot.nics:
            if part in (nic.rdma_device, nic.name):
                return nic
    return None


def landscape(
    snapshot: Snapshot, measured: Mapping[str, float] | None = None
) -> tuple[Bandwidth, ...]:
    """Return all links and memories of a VM with their rates, one record for all equal links.

    Parameters
    ----------
    snapshot
        The hardware of the VM.
    measured
        Measured rates in GB/s. The keys are kinds (see `Bandwidth`), as in `FittedFabric.devices`
        for each VM, or names of NICs and RDMA devices.
    """
    groups: dict[tuple[str, str, float | Unknown], list[str]] = {}
    for kind, link, device, rate in _rates(snapshot):
        groups.setdefault((kind, link, rate), []).append(device)
    measured = measured or {}
    return tuple(
        Bandwidth(_group_name(link, devices), kind, rate, _measured(measured, [kind, *devices]))
        for (kind, link, rate), devices in groups.items()
    )


def _measured(measured: Mapping[str, float], names: list[str]) -> float | Unknown:
    """Return the rate of the first of these names that was measured."""
    return next((measured[name] for name in names if name in measured), _NOT_MEASURED)


def _rates(snapshot: Snapshot) -> Iterator[tuple[str, str, str, float | Unknown]]:
    """Yield the kind, the link, the device and the rate of each link and memory."""
    for gpu in snapshot.gpus:
        name = f"GPU {gpu.index}"
        yield "GPU memory", "memory", name, memory_gb_per_s(gpu)
        if isinstance(gpu.nvlink, NvLinks) and gpu.links_up:
            peers = "NVSwitch" if gpu.links_to_switch else "GPUs"
            link = f"NVLink, {len(gpu.links_up)} links to {peers}"
            yield "NVLink", link, name, gpu.nvlink.nominal_gb_per_s
        link, rate = pcie_link_gb_per_s(snapshot, gpu)
        yield "PCIe", link, name, rate
    yield (
        "host memory",
        "host memory",
        "copy, read and written",
        Unknown("the guest does not see its modules"),
    )
    if isinstance(snapshot.host.numa_nodes, int) and snapshot.host.numa_nodes > 1:
        yield "CPU to CPU", "CPU to CPU", f"{snapshot.host.numa_nodes} NUMA nodes", _CPU_LINKS
    physical = [nic for nic in snapshot.nics if nic.kind != "virtual"]
    for nic in physical or snapshot.nics:
        rate = nic_gbps(nic)
        if isinstance(rate, Unknown):
            yield "network", str(_layer(nic)), _nic_name(nic), rate
        else:
            yield "network", f"{_layer(nic)} {rate:g} Gbit/s", _nic_name(nic), rate / 8


def _layer(nic: Nic) -> str:
    """Return the link layer of a NIC, such as ``"Ethernet"``; ``"network"`` if it is unknown."""
    return "network" if isinstance(nic.link_layer, Unknown) else nic.link_layer


def _nic_name(nic: Nic) -> str:
    return nic.name if isinstance(nic.rdma_device, Unknown) else nic.rdma_device


def _group_name(link: str, devices: list[str]) -> str:
    """Return a name such as ``"PCIe 5.0 x16: GPU 0-7"``.

    For devices other than GPUs, the name has the first two and the number of the others.

    Examples
    --------
    >>> _group_name("PCIe 5.0 x16", ["GPU 0", "GPU 1", "GPU 2"])
    'PCIe 5.0 x16: GPU 0-2'
    >>> _group_name("Ethernet 25 Gbit/s", ["eth0", "eth1", "eth2"])
    'Ethernet 25 Gbit/s: eth0, eth1 and 1 more'
    """
    numbers = [device.removeprefix("GPU ") for device in devices]
    if len(devices) > 1 and all(number.isdecimal() for number in numbers):
        return f"{link}: GPU {numbers[0]}-{numbers[-1]}"
    more = f" and {len(devices) - 2} more" if len(devices) > 2 else ""
    return f"{link}: {', '.join(devices[:2])}{more}"
