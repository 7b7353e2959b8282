"""Read the NVLinks of a GPU, and its registration with the NVSwitch fabric, by NVML."""

from __future__ import annotations

from typing import Any

from workbench.resources.gpus.nvml import Nvml, not_there
from workbench.resources.gpus.nvml_devices import ask, pci_address
from workbench.resources.gpus.records import Fabric, NvLink, NvLinks
from workbench.resources.unknown import Unknown

# NVML_NVLINK_MAX_LINKS of nvml.h (CUDA 13); a driver refuses numbers beyond its own.
MOST_LINKS = 36

# NVML_NVLINK_VERSION_ of nvml.h.
_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}

# GB/s of one link in each direction. NVIDIA's white papers and data sheets, for all links
# of a GPU in both directions: P100 4 links 160, V100 6 links 300, A100 12 links 600,
# GA102 (3.1) 4 links 112.5, H100 18 links 900, B200 18 links 1800.
_GB_PER_S = {
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


def nvlinks(nvml: Nvml, form: str | Unknown, handle: Any) -> NvLinks:
    """Return the NVLinks of a GPU; a MIG device cannot use those of its GPU."""
    if form == "mig":
        why = Unknown("a MIG device has no NVLink")
        return NvLinks(why, why, why)
    links = _links(nvml, handle)
    return NvLinks(links=links, nominal_gb_per_s=_together(links), fabric=_fabric(nvml, handle))


def _links(nvml: Nvml, handle: Any) -> tuple[NvLink, ...] | Unknown:
    states: list[int | Unknown] = [
        ask(nvml, handle, "nvmlDeviceGetNvLinkState", number) for number in range(MOST_LINKS)
    ]
    first = states[0]
    if isinstance(first, Unknown) and all(isinstance(state, Unknown) for state in states):
        return first
    # NVML has no call for the number of links: it rejects numbers beyond it.
    while not_there(states[-1]):
        states.pop()
    return tuple(_link(nvml, handle, number, state) for number, state in enumerate(states))


def _link(nvml: Nvml, handle: Any, number: int, state: int | Unknown) -> NvLink:
    version = _version(ask(nvml, handle, "nvmlDeviceGetNvLinkVersion", number))
    if isinstance(state, Unknown):
        return NvLink(number, state, version, state, state, _nominal(version))
    if not state:
        nobody = Unknown("the link is down")
        return NvLink(number, "down", version, nobody, nobody, _nominal(version))
    return NvLink(
        number=number,
        state="up",
        version=version,
        peer=_peer(ask(nvml, handle, "nvmlDeviceGetNvLinkRemoteDeviceType", number)),
        peer_pci_address=pci_address(ask(nvml, handle, "nvmlDeviceGetNvLinkRemotePciInfo", number)),
        nominal_gb_per_s=_nominal(version),
    )


def _version(number: int | Unknown) -> str | Unknown:
    if isinstance(number, Unknown):
        return number
    return _VERSIONS.get(number, Unknown(f"the driver reports NVLink version {number}"))


def _peer(number: int | Unknown) -> str | Unknown:
    if isinstance(number, Unknown):
        return number
    return _PEERS.get(number, Unknown("the driver does not know what is at the other end"))


def _nominal(version: str | Unknown) -> float | Unknown:
    if isinstance(version, Unknown):
        return version
    return _GB_PER_S.get(version, Unknown(f"no published rate for NVLink {version} is known here"))


def _together(links: tuple[NvLink, ...] | Unknown) -> float | Unknown:
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
    found = nvml.fill("nvmlDeviceGetGpuFabricInfoV", handle, "c_nvmlGpuFabricInfoV_t")
    if isinstance(found, Unknown) and not not_there(found):
        # Drivers before 535 know the call without a version only.
        found = nvml.fill("nvmlDeviceGetGpuFabricInfo", handle, "c_nvmlGpuFabricInfo_t")
    if isinstance(found, Unknown):
        return found
    number = found.state & 0xFF  # a byte in nvml.h; pynvml reads the padding behind it too
    if number == 0:
        return _FABRIC_UNSUPPORTED
    state = _FABRIC_STATES.get(number, Unknown(f"the driver reports state {number}"))
    if state != "completed":
        return Fabric(state, Unknown("the registration has not ended"))
    return Fabric(state, "success" if found.status == 0 else nvml.reason(found.status))
