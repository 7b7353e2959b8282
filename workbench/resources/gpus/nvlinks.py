"""Read the NVLinks of a GPU, its NVSwitch fabric, and the connections of pairs of GPUs, by NVML."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, TypeVar

from workbench.resources.distance import Distance
from workbench.resources.gpus.nvml import (
    Nvml,
    is_unsupported,
    name_or_unknown,
    pci_address,
    query,
)
from workbench.resources.gpus.records import Fabric, GpuPair, NvLink, NvLinks
from workbench.resources.unknown import Unknown, if_known

# NVML_NVLINK_MAX_LINKS of nvml.h (CUDA 13); a driver rejects numbers beyond its own limit.
MAX_LINKS = 36

# NVML_NVLINK_VERSION_ of nvml.h.
_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}

# GB/s of one link in each direction. NVIDIA's white papers and data sheets, for all links
# of a GPU in both directions: P100 4 links 160, V100 6 links 300, A100 12 links 600,
# GA102 (3.1) 4 links 112.5, H100 18 links 900, B200 18 links 1800.
LINK_GB_PER_S = {
    "1.0": 20.0,
    "2.0": 25.0,
    "2.2": 25.0,
    "3.0": 25.0,
    "3.1": 14.0625,
    "4.0": 25.0,
    "5.0": 50.0,
}

# nvmlIntNvLinkDeviceType_t; 255 is NVML's own "unknown".
_PEERS = {0: "gpu", 1: "npu", 2: "switch"}

# nvmlGpuFabricState_t; 0 is "not supported".
_FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}
_FABRIC_UNSUPPORTED = Unknown("this GPU registers with no fabric (NVSwitch from Hopper on)")
S = TypeVar("S", bound=str)

# nvmlGpuTopologyLevel_t, with the names of `nvidia-smi topo -m`.
_DISTANCES = {
    0: Distance.INTERNAL,
    10: Distance.PIX,
    20: Distance.PXB,
    30: Distance.PHB,
    40: Distance.NODE,
    50: Distance.SYS,
}

# nvmlGpuP2PCapsIndex_t; pynvml's READ is a tuple by mistake.
_P2P_READ = 0
_P2P_WRITE = 1
_P2P_NVLINK = 2

# nvmlGpuP2PStatus_t; 6 is NVML's own "unknown".
_P2P_STATUSES = {
    0: "ok",
    1: "not supported by the chipset",
    2: "not supported by the GPU",
    3: "not supported over this PCIe topology",
    4: "disabled by a setting of the driver",
    5: "not supported",
}


def nvlinks(nvml: Nvml, form: str | Unknown, handle: Any) -> NvLinks:
    """Return the NVLinks of a GPU; a MIG device cannot use its GPU's NVLinks."""
    if form == "mig":
        no_nvlink = Unknown("a MIG device has no NVLink")
        return NvLinks(no_nvlink, no_nvlink, no_nvlink)
    links = _links(nvml, handle)
    return NvLinks(
        links=links, nominal_gb_per_s=_total_gb_per_s(links), fabric=_fabric(nvml, handle)
    )


def _links(nvml: Nvml, handle: Any) -> tuple[NvLink, ...] | Unknown:
    states: list[int | Unknown] = [
        query(nvml, handle, "nvmlDeviceGetNvLinkState", number) for number in range(MAX_LINKS)
    ]
    first = states[0]
    if isinstance(first, Unknown) and all(isinstance(state, Unknown) for state in states):
        return first
    # NVML has no call for the number of links, but rejects numbers beyond it.
    while is_unsupported(states[-1]):
        states.pop()
    return tuple(_link(nvml, handle, number, state) for number, state in enumerate(states))


def _link(nvml: Nvml, handle: Any, number: int, state: int | Unknown) -> NvLink:
    version = name_or_unknown(
        query(nvml, handle, "nvmlDeviceGetNvLinkVersion", number),
        _VERSIONS,
        "the driver reports NVLink version {}",
    )
    nominal = if_known(version, _nominal)
    if isinstance(state, Unknown):
        return NvLink(number, state, version, state, state, nominal)
    if not state:
        no_peer = Unknown("the link is down")
        return NvLink(number, "down", version, no_peer, no_peer, nominal)
    return NvLink(
        number=number,
        state="up",
        version=version,
        peer=name_or_unknown(
            query(nvml, handle, "nvmlDeviceGetNvLinkRemoteDeviceType", number),
            _PEERS,
            "the driver does not know what is at the other end",
        ),
        peer_pci_address=pci_address(
            query(nvml, handle, "nvmlDeviceGetNvLinkRemotePciInfo", number)
        ),
        nominal_gb_per_s=nominal,
    )


def _nominal(version: str) -> float | Unknown:
    return LINK_GB_PER_S.get(
        version, Unknown(f"no published rate for NVLink {version} is known here")
    )


def _total_gb_per_s(links: tuple[NvLink, ...] | Unknown) -> float | Unknown:
    if isinstance(links, Unknown):
        return links
    total = 0.0
    for link in links:
        if isinstance(link.state, Unknown):
            return link.state
        if link.state == "up":
            if isinstance(link.nominal_gb_per_s, Unknown):
                return link.nominal_gb_per_s
            total += link.nominal_gb_per_s
    return total


def _fabric(nvml: Nvml, handle: Any) -> Fabric | Unknown:
    if isinstance(handle, Unknown):
        return handle
    info = nvml.fill("nvmlDeviceGetGpuFabricInfoV", handle, "c_nvmlGpuFabricInfoV_t")
    if isinstance(info, Unknown) and not is_unsupported(info):
        # Drivers before 535 have only the call without a version.
        info = nvml.fill("nvmlDeviceGetGpuFabricInfo", handle, "c_nvmlGpuFabricInfo_t")
    if isinstance(info, Unknown):
        return info
    number = info.state & 0xFF  # a byte in nvml.h; pynvml also reads the padding behind it
    if number == 0:
        return _FABRIC_UNSUPPORTED
    state = _FABRIC_STATES.get(number, Unknown(f"the driver reports state {number}"))
    if state != "completed":
        return Fabric(state, Unknown("the registration has not ended"))
    return Fabric(state, "success" if info.status == 0 else nvml.reason(info.status))


def gpu_pairs(nvml: Nvml, gpus: Iterable[tuple[int, Any]]) -> tuple[GpuPair, ...]:
    """Return all pairs of GPUs. Each GPU is given by its index and handle.

    A GPU with MIG devices counts once, as they share its position.
    """
    return tuple(_pair(nvml, gpu, peer) for gpu, peer in itertools.combinations(gpus, 2))


def _pair(nvml: Nvml, gpu: tuple[int, Any], peer: tuple[int, Any]) -> GpuPair:
    first, handle = gpu
    second, peer_handle = peer

    def read(names: dict[int, S], call: str, *arguments: int) -> S | Unknown:
        number = (
            peer_handle
            if isinstance(peer_handle, Unknown)
            else query(nvml, handle, call, peer_handle, *arguments)
        )
        return name_or_unknown(number, names, "the driver reports an undefined value, {}")

    return GpuPair(
        first=first,
        second=second,
        topology=read(_DISTANCES, "nvmlDeviceGetTopologyCommonAncestor"),
        p2p_read=read(_P2P_STATUSES, "nvmlDeviceGetP2PStatus", _P2P_READ),
        p2p_write=read(_P2P_STATUSES, "nvmlDeviceGetP2PStatus", _P2P_WRITE),
        p2p_nvlink=read(_P2P_STATUSES, "nvmlDeviceGetP2PStatus", _P2P_NVLINK),
    )
