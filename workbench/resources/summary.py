"""Summary of a snapshot as text, for terminals."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from workbench.resources.distance_matrix import addresses_by_node, group, matrix
from workbench.resources.gpus.records import (
    Ecc,
    Gpu,
    GpuClocks,
    GpuPair,
    Licence,
    NvLink,
    NvLinks,
    PcieLink,
)
from workbench.resources.gpus.vgpu import VgpuProfile
from workbench.resources.host.probe import HostInfo
from workbench.resources.nics.records import Nic
from workbench.resources.snapshot_record import SnapshotRecord
from workbench.resources.unknown import Unknown
from workbench.resources.vsphere import vsphere_lines
from workbench.safefiles import format_bytes

MAX_DEVICES = 64
"""Maximum number of GPUs or NICs that are listed; the largest VMs have about 20 of each."""
_TITLES = {"gpus": "GPUs", "nics": "NICs"}
_MAX_PAIRS_NAMED = 4  # further pairs of one kind are counted, so that 64 GPUs stay readable


def lines(snapshot: SnapshotRecord) -> Iterator[str]:
    """Yield the lines of the summary of a snapshot."""
    if snapshot.is_topology_file:
        yield f"Host: unknown ({snapshot.probes['host'].reason})"
        yield from addresses_by_node(snapshot)
        yield from _nvlinks_in_file(snapshot)
        yield from matrix(snapshot)
        return
    yield from _host(snapshot.host)
    yield from _part(snapshot, "gpus", list(_gpus(snapshot)))
    yield from _part(snapshot, "nics", list(_nics(snapshot)))
    yield from vsphere_lines(snapshot)
    yield from matrix(snapshot)


def wrapped(snapshot: SnapshotRecord, width: int) -> Iterator[str]:
    """Yield the lines of the summary, wrapped at `width` columns with a hanging indent."""
    for line in lines(snapshot):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        yield from textwrap.wrap(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )


def show_bytes(value: int | str | Unknown) -> str:
    """Return a number of bytes in binary units (``79.6 GiB``), and any other value as text.

    Examples
    --------
    >>> show_bytes(80 << 30)
    '80 GiB'
    >>> show_bytes(Unknown("needs root"))
    'unknown (needs root)'
    """
    return format_bytes(value) if isinstance(value, int) else str(value)


def _host(host: HostInfo) -> Iterator[str]:
    yield f"Host {host.hostname}"
    yield f"  hypervisor  {host.hypervisor}"
    yield f"  CPUs        {host.cpus} usable of {host.cpus_total}, NUMA nodes: {host.numa_nodes}"
    yield f"  memory      {show_bytes(host.memory_bytes)}{_limit(host)}"
    yield f"  /dev/shm    {show_bytes(host.shm_bytes)}"
    yield f"  memlock     {show_bytes(host.memlock_bytes)}"
    yield f"  system      {host.os}, kernel {host.kernel}"


def _limit(host: HostInfo) -> str:
    limited = isinstance(host.memory_limit_bytes, int)
    return f", container limit {show_bytes(host.memory_limit_bytes)}" if limited else ""


def _part(snapshot: SnapshotRecord, name: str, entries: list[str]) -> Iterator[str]:
    probe = snapshot.probes.get(name)
    if probe is not None and probe.status != "ok":
        presence = "unknown" if probe.status in ("failed", "unknown") else "none"
        yield f"{_TITLES[name]}: {presence} ({probe.reason})"
        return
    yield f"{_TITLES[name]}:"
    yield from entries


def _gpus(snapshot: SnapshotRecord) -> Iterator[str]:
    for gpu in snapshot.gpus[:MAX_DEVICES]:
        if isinstance(gpu.name, Unknown) and gpu.name == gpu.uuid == gpu.pci_address:
            yield f"  {gpu.index}  {gpu.name}"  # a lost GPU: show the reason once, not ten times
            continue
        yield from _gpu(gpu)
        yield from (f"     {line}" for line in detail_lines(gpu))
    yield from _more(len(snapshot.gpus), "GPUs")
    yield from (f"  {line}" for line in pair_lines(snapshot.gpu_pairs))


def _more(count: int, noun: str) -> Iterator[str]:
    if count > MAX_DEVICES:
        yield f"  and {count - MAX_DEVICES:,} more {noun}: `workbench resources --json` has all"


def _gpu(gpu: Gpu) -> Iterator[str]:
    form = f"vGPU {gpu.vgpu_profile}" if gpu.form == "vgpu" else gpu.form
    yield f"  {gpu.index}  {gpu.name}, {show_bytes(gpu.memory_bytes)}, {form}, at {gpu.pci_address}"
    yield (
        f"     driver {gpu.driver_version}, CUDA {gpu.cuda_version}, "
        f"compute capability {gpu.compute_capability}, {gpu.uuid}"
    )


def _nvlinks_in_file(snapshot: SnapshotRecord) -> Iterator[str]:
    """Yield the NVLinks that a topology file lists, one line for GPUs with the same links."""
    names = {gpu.pci_address: f"GPU{gpu.index}" for gpu in snapshot.gpus}
    grouped: dict[str, list[str]] = {}
    for gpu in snapshot.gpus:
        peers = [
            "the switch"
            if link.peer == "switch"
            else names.get(link.peer_pci_address, str(link.peer_pci_address))
            for link in gpu.known_links
        ]
        if peers:
            words = ", ".join(f"{peers.count(peer)} to {peer}" for peer in dict.fromkeys(peers))
            grouped.setdefault(words, []).append(f"GPU{gpu.index}")
    for words, gpus in grouped.items():
        yield f"  NVLinks of {', '.join(gpus)}: {words}"


def _nics(snapshot: SnapshotRecord) -> Iterator[str]:
    for nic in snapshot.nics[:MAX_DEVICES]:
        yield from _nic(nic)
    yield from _more(len(snapshot.nics), "NICs")


def _nic(nic: Nic) -> Iterator[str]:
    rate = nic.rate_gbps
    rate_text = f"{rate:g} Gb/s" if isinstance(rate, float) else f"rate {rate}"
    rdma = "no RDMA" if isinstance(nic.rdma_device, Unknown) else f"RDMA by {nic.rdma_device}"
    link = f"{nic.link_layer}, {nic.state}, {rate_text}, MTU {nic.mtu}"
    yield f"  {nic.name}  {link}, {rdma} ({nic.kind})"
    if isinstance(nic.addresses, tuple) and nic.addresses:
        yield f"     {', '.join(nic.addresses)}"


def detail_lines(gpu: Gpu) -> Iterator[str]:
    """Yield the details of a GPU, one line per subject."""
    if isinstance(gpu.vgpu, VgpuProfile):
        yield f"profile {gpu.vgpu_profile}: {profile_words(gpu)}, {_licence(gpu.licence)}"
    yield _state(gpu)
    yield f"NVLink: {nvlink_words(gpu)}"


def profile_words(gpu: Gpu) -> str | Unknown:
    """Return the meaning of a vGPU's profile and its permissions."""
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
    grouped = group((_between(pair), f"{pair.first}-{pair.second}") for pair in pairs)
    for connection, names in grouped.items():
        listed = ", ".join(names) if len(names) <= _MAX_PAIRS_NAMED else f"({len(names)} pairs)"
        yield f"between GPUs {listed}: {connection}"


def _state(gpu: Gpu) -> str:
    clock = gpu.clocks.sm_mhz if isinstance(gpu.clocks, GpuClocks) else gpu.clocks
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
    board_gb = profile.board_memory_gb
    of = "" if isinstance(board_gb, Unknown) else f" of {board_gb} GB"
    return f"{profile.memory_gb} GB{of}, {share}, {_permitted(profile)}"


def _permitted(profile: VgpuProfile) -> str:
    permissions = {"P2P": profile.p2p, "GPUDirect": profile.gpudirect}
    parts = []
    for answer, words in ((True, "{} possible"), (False, "no {}")):
        names = [name for name, permitted in permissions.items() if permitted is answer]
        if names:
            parts.append(words.format((" and " if answer else " or ").join(names)))
    reasons = dict.fromkeys(
        permitted for permitted in permissions.values() if isinstance(permitted, Unknown)
    )
    parts += [
        f"{' and '.join(name for name, value in permissions.items() if value == reason)} {reason}"
        for reason in reasons
    ]
    return ", ".join(parts)


def _licence(licence: Licence | Unknown) -> str:
    if isinstance(licence, Unknown):
        return f"licence {licence}"
    dated = isinstance(licence.expires, str) and licence.expires != "permanent"
    return f"{licence.state} until {licence.expires}" if dated else str(licence.state)


def _clocks(clocks: GpuClocks | Unknown) -> str:
    if isinstance(clocks, Unknown):
        return f"clocks {clocks}"
    if isinstance(clocks.sm_mhz, Unknown):
        return f"SM clock {clocks.sm_mhz}"
    maximum = f" of {clocks.sm_max_mhz}" if isinstance(clocks.sm_max_mhz, int) else ""
    held = clocks.held_by if isinstance(clocks.held_by, tuple) else ()
    return f"SM at {clocks.sm_mhz}{maximum} MHz" + (f" ({', '.join(held)})" if held else "")


def _pcie(link: PcieLink | Unknown) -> str:
    if isinstance(link, Unknown):
        return f"PCIe {link}"
    if isinstance(link.generation, Unknown):
        return f"PCIe {link.generation}"
    current = f"generation {link.generation} x{link.width}"
    maximum = f"generation {link.generation_max} x{link.width_max}"
    return f"PCIe {current}" if current == maximum else f"PCIe {current}, at most {maximum}"


def _ecc(ecc: Ecc | Unknown) -> str:
    if isinstance(ecc, Unknown):
        return f"ECC {ecc}"
    if isinstance(ecc.enabled, Unknown):
        return f"ECC {ecc.enabled}"
    if not ecc.enabled:
        return "ECC off"
    now = ecc.volatile_uncorrected
    ever = ecc.aggregate_uncorrected
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
    generations = {link.version.split(".")[0] for link in links if isinstance(link.version, str)}
    return f" of generation {' and '.join(sorted(generations))}" if generations else ""


def _rate(rate: float | Unknown) -> str:
    return f"rate {rate}" if isinstance(rate, Unknown) else f"{rate:g} GB/s each way"


def _peers(up: list[NvLink]) -> str:
    if all(link.peer == "switch" for link in up):
        return "the switch"
    peers = (link.peer_pci_address if link.peer == "gpu" else link.peer for link in up)
    return " and ".join(dict.fromkeys(str(peer) for peer in peers))


def _fabric(nvlink: NvLinks) -> str:
    fabric = nvlink.fabric
    if isinstance(fabric, Unknown):
        return ""  # most GPUs have no fabric; the snapshot's JSON contains the reason
    if isinstance(fabric.status, Unknown):
        return f", fabric {fabric.state}"
    return f", fabric {fabric.state}: {fabric.status}"


def _between(pair: GpuPair) -> str:
    read = pair.p2p_read
    write = pair.p2p_write
    if isinstance(read, Unknown) and pair.topology == read == write == pair.p2p_nvlink:
        return str(read)
    peer = f"{read}" if read == write else f"read {read}, write {write}"
    return f"{pair.topology} over PCIe; peer-to-peer {peer}; by NVLink {pair.p2p_nvlink}"
