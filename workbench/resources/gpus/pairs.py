"""Read the connection between each pair of GPUs of a VM by NVML."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, TypeVar

from workbench.resources.distance import Distance
from workbench.resources.gpus.nvml import Nvml
from workbench.resources.gpus.records import GpuPair
from workbench.resources.unknown import Unknown

S = TypeVar("S", bound=str)

# nvmlGpuTopologyLevel_t, with the names of `nvidia-smi topo -m`.
_LEVELS = {
    0: Distance.INTERNAL,
    10: Distance.PIX,
    20: Distance.PXB,
    30: Distance.PHB,
    40: Distance.NODE,
    50: Distance.SYS,
}

# nvmlGpuP2PCapsIndex_t; pynvml's READ is a tuple by mistake.
_READ, _WRITE, _NVLINK = 0, 1, 2

# nvmlGpuP2PStatus_t; 6 is NVML's own "unknown".
_STATUSES = {
    0: "ok",
    1: "not supported by the chipset",
    2: "not supported by the GPU",
    3: "not supported over this PCIe topology",
    4: "disabled by a setting of the driver",
    5: "not supported",
}


def gpu_pairs(nvml: Nvml, gpus: Iterable[tuple[int, Any]]) -> tuple[GpuPair, ...]:
    """Return all pairs of GPUs, each given by its index and handle.

    A GPU with MIG devices counts once, as they share its position.
    """
    return tuple(_pair(nvml, one, other) for one, other in itertools.combinations(gpus, 2))


def _pair(nvml: Nvml, one: tuple[int, Any], other: tuple[int, Any]) -> GpuPair:
    (first, handle), (second, peer) = one, other
    return GpuPair(
        first=first,
        second=second,
        topology=_named(nvml, _LEVELS, "nvmlDeviceGetTopologyCommonAncestor", handle, peer),
        p2p_read=_p2p(nvml, handle, peer, _READ),
        p2p_write=_p2p(nvml, handle, peer, _WRITE),
        p2p_nvlink=_p2p(nvml, handle, peer, _NVLINK),
    )


def _p2p(nvml: Nvml, handle: Any, peer: Any, what: int) -> str | Unknown:
    return _named(nvml, _STATUSES, "nvmlDeviceGetP2PStatus", handle, peer, what)


def _named(
    nvml: Nvml, names: dict[int, S], call: str, handle: Any, peer: Any, *arguments: int
) -> S | Unknown:
    for one in (handle, peer):
        if isinstance(one, Unknown):
            return one
    number = nvml.ask(call, handle, peer, *arguments)
    if isinstance(number, Unknown):
        return number
    found = names.get(number)
    return Unknown(f"the driver reports an undefined value, {number}") if found is None else found
