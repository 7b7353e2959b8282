"""GPUs as text: their properties, state and connections."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.resources.gpus.records import (
    Clocks,
    Ecc,
    Gpu,
    GpuPair,
    Licence,
    NvLink,
    NvLinks,
    PcieLink,
)
from workbench.resources.gpus.vgpu import VgpuProfile
from workbench.resources.unknown import Unknown

_PAIRS_NAMED = 4  # further pairs of one kind are counted, so that 64 GPUs stay readable


def detail_lines(gpu: Gpu) -> Iterator[str]:
    """Yield the details of a GPU, one line per subject."""
    if isinstance(gpu.vgpu, VgpuProfile):
        yield f"profile {gpu.vgpu_profile}: {profile_words(gpu)}, {_licence(gpu.licence)}"
    yield _state(gpu)
    yield f"NVLink: {nvlink_words(gpu)}"


def profile_words(gpu: Gpu) -> str | Unknown:
    """Return the meaning of a vGPU's profile and what it permits."""
    return gpu.vgpu if isinstance(gpu.vgpu, Unknown) else _profile(gpu.vgpu)


def nvlink_words(gpu: Gpu) -> str | Unknown:
    """Return the number of links, how many are up, their rate and their peers."""
    if isinstance(gpu.nvlink, Unknown):
        return gpu.nvlink
    return gpu.nvlink.links if isinstance(gpu.nvlink.links, Unknown) else _links(gpu.nvlink)


def pair_lines(pairs: tuple[GpuPair, ...] | Unknown) -> Iterator[str]:
    """Yield the connections between GPUs, one line for all pairs with the same connection."""
    if isinstance(pairs, Unknown):
        yield f"between GPUs: {pairs}"
        return
    grouped: dict[str, list[str]] = {}
    for pair in pairs:
        grouped.setdefault(_between(pair), []).append(f"{pair.first}-{pair.second}")
    for what, names in grouped.items():
        some = ", ".join(names) if len(names) <= _PAIRS_NAMED else f"({len(names)} pairs)"
        yield f"between GPUs {some}: {what}"


def _state(gpu: Gpu) -> str:
    clock = gpu.clocks.sm_mhz if isinstance(gpu.clocks, Clocks) else gpu.clocks
    link = gpu.pcie_link.generation if isinstance(gpu.pcie_link, PcieLink) else gpu.pcie_link
    ecc = gpu.ecc.enabled if isinstance(gpu.ecc, Ecc) else gpu.ecc
    if isinstance(clock, Unknown) and clock == link == ecc:
        return f"clocks, PCIe and ECC {clock}"  # show a common reason, such as a lost GPU, once
    return f"{_clocks(gpu.clocks)}, {_pcie(gpu.pcie_link)}, {_ecc(gpu.ecc)}"


def _profile(profile: VgpuProfile) -> str:
    if profile.mig_backed:
        share = f"MIG-backed ({profile.slices} slices)"
    elif isinstance(profile.whole_frame_buffer, Unknown):
        share = "of a board that is not known here"
    else:
        share = "whole frame buffer" if profile.whole_frame_buffer else "a fraction"
    most = profile.board_memory_gb
    of = "" if isinstance(most, Unknown) else f" of {most} GB"
    return f"{profile.memory_gb} GB{of}, {share}, {_permitted(profile)}"


def _permitted(profile: VgpuProfile) -> str:
    each = {"P2P": profile.p2p, "GPUDirect": profile.gpudirect}
    parts = []
    for answer, words in ((True, "{} possible"), (False, "no {}")):
        names = [name for name, may in each.items() if may is answer]
        if names:
            parts.append(words.format((" and " if answer else " or ").join(names)))
    reasons = dict.fromkeys(may for may in each.values() if isinstance(may, Unknown))
    parts += [
        f"{' and '.join(n for n, may in each.items() if may == why)} {why}" for why in reasons
    ]
    return ", ".join(parts)


def _licence(licence: Licence | Unknown) -> str:
    if isinstance(licence, Unknown):
        return f"licence {licence}"
    dated = isinstance(licence.expires, str) and licence.expires != "permanent"
    return f"{licence.state} until {licence.expires}" if dated else str(licence.state)


def _clocks(clocks: Clocks | Unknown) -> str:
    if isinstance(clocks, Unknown):
        return f"clocks {clocks}"
    if isinstance(clocks.sm_mhz, Unknown):
        return f"SM clock {clocks.sm_mhz}"
    most = f" of {clocks.sm_max_mhz}" if isinstance(clocks.sm_max_mhz, int) else ""
    held = clocks.held_by if isinstance(clocks.held_by, tuple) else ()
    return f"SM at {clocks.sm_mhz}{most} MHz" + (f" ({', '.join(held)})" if held else "")


def _pcie(link: PcieLink | Unknown) -> str:
    if isinstance(link, Unknown):
        return f"PCIe {link}"
    if isinstance(link.generation, Unknown):
        return f"PCIe {link.generation}"
    now = f"generation {link.generation} x{link.width}"
    most = f"generation {link.generation_max} x{link.width_max}"
    return f"PCIe {now}" if now == most else f"PCIe {now}, at most {most}"


def _ecc(ecc: Ecc | Unknown) -> str:
    if isinstance(ecc, Unknown):
        return f"ECC {ecc}"
    if isinstance(ecc.enabled, Unknown):
        return f"ECC {ecc.enabled}"
    if not ecc.enabled:
        return "ECC off"
    now, ever = ecc.volatile_uncorrected, ecc.aggregate_uncorrected
    errors = f"uncorrected errors: {now} now, {ever} ever"
    text = f"ECC on, {'no uncorrected errors' if now == 0 and ever == 0 else errors}"
    if ecc.remapping_pending is True:
        text += ", a row is remapped at the next reset"
    return text + (", A ROW COULD NOT BE REMAPPED" if ecc.remapping_failed is True else "")


def _links(nvlink: NvLinks) -> str:
    links = nvlink.links if isinstance(nvlink.links, tuple) else ()
    up = [link for link in links if link.state == "up"]
    state = "all up" if len(up) == len(links) else f"{len(up)} up" if up else "none up"
    words = f"{len(links)} links{_generation(links)}, {state}"
    if up:
        words += f", {_rate(nvlink.nominal_gb_per_s)}, to {_peers(up)}"
    return words + _fabric(nvlink)


def _generation(links: tuple[NvLink, ...]) -> str:
    found = {link.version.split(".")[0] for link in links if isinstance(link.version, str)}
    return f" of generation {' and '.join(sorted(found))}" if found else ""


def _rate(rate: float | Unknown) -> str:
    return f"rate {rate}" if isinstance(rate, Unknown) else f"{rate:g} GB/s each way"


def _peers(up: list[NvLink]) -> str:
    if all(link.peer == "switch" for link in up):
        return "the switch"
    found = (link.peer_pci_address if link.peer == "gpu" else link.peer for link in up)
    return " and ".join(dict.fromkeys(str(one) for one in found))


def _fabric(nvlink: NvLinks) -> str:
    fabric = nvlink.fabric
    if isinstance(fabric, Unknown):
        return ""  # most GPUs have no fabric; the snapshot's JSON contains the reason
    if isinstance(fabric.status, Unknown):
        return f", fabric {fabric.state}"
    return f", fabric {fabric.state}: {fabric.status}"


def _between(pair: GpuPair) -> str:
    read, write = pair.p2p_read, pair.p2p_write
    if isinstance(read, Unknown) and pair.topology == read == write == pair.p2p_nvlink:
        return str(read)
    peer = f"{read}" if read == write else f"read {read}, write {write}"
    return f"{pair.topology} over PCIe; peer-to-peer {peer}; by NVLink {pair.p2p_nvlink}"
