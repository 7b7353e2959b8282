"""Summary of a snapshot as text, for terminals."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from workbench.resources.distance_matrix import matrix, places
from workbench.resources.gpus.records import Gpu, NvLinks
from workbench.resources.gpus.summary import detail_lines, pair_lines
from workbench.resources.host.record import Host
from workbench.resources.nics.records import Nic
from workbench.resources.snapshot import Snapshot
from workbench.resources.unknown import Unknown
from workbench.safefiles import format_bytes

MOST_DEVICES = 64
"""Most GPUs or NICs that are listed; the largest hosts have about 20 of each."""
_TITLES = {"gpus": "GPUs", "nics": "NICs"}


def lines(snapshot: Snapshot) -> Iterator[str]:
    """Yield the lines of the summary of a snapshot."""
    host = snapshot.probes.get("host")
    if host is not None and host.status == "absent":  # of a topology file
        yield f"Host: unknown ({host.reason})"
        yield from places(snapshot)
        yield from _nvlinks_in_file(snapshot)
        yield from matrix(snapshot)
        return
    yield from _host(snapshot.host)
    yield from _part(snapshot, "gpus", list(_gpus(snapshot)))
    yield from _part(snapshot, "nics", list(_nics(snapshot)))
    yield from matrix(snapshot)


def wrapped(snapshot: Snapshot, width: int) -> Iterator[str]:
    """Yield the same lines, wrapped at `width` columns with a hanging indent."""
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
    """Return a number of bytes in binary units (``79.6 GiB``), and any other value as text."""
    return format_bytes(value) if isinstance(value, int) else str(value)


def _host(host: Host) -> Iterator[str]:
    yield f"Host {host.hostname}"
    yield f"  hypervisor  {host.hypervisor}"
    yield f"  CPUs        {host.cpus} usable of {host.cpus_total}, NUMA nodes: {host.numa_nodes}"
    yield f"  memory      {show_bytes(host.memory_bytes)}{_limit(host)}"
    yield f"  /dev/shm    {show_bytes(host.shm_bytes)}"
    yield f"  memlock     {show_bytes(host.memlock_bytes)}"
    yield f"  system      {host.os}, kernel {host.kernel}"


def _limit(host: Host) -> str:
    limited = isinstance(host.memory_limit_bytes, int)
    return f", container limit {show_bytes(host.memory_limit_bytes)}" if limited else ""


def _part(snapshot: Snapshot, name: str, entries: list[str]) -> Iterator[str]:
    probe = snapshot.probes.get(name)
    if probe is not None and probe.status != "ok":
        what = "unknown" if probe.status in ("failed", "unknown") else "none"
        yield f"{_TITLES[name]}: {what} ({probe.reason})"
        return
    yield f"{_TITLES[name]}:"
    yield from entries


def _gpus(snapshot: Snapshot) -> Iterator[str]:
    for gpu in snapshot.gpus[:MOST_DEVICES]:
        if isinstance(gpu.name, Unknown) and gpu.name == gpu.uuid == gpu.pci_address:
            yield f"  {gpu.index}  {gpu.name}"  # a lost GPU: show the reason once, not ten times
            continue
        yield from _gpu(gpu)
        yield from (f"     {line}" for line in detail_lines(gpu))
    yield from _more(len(snapshot.gpus), "GPUs")
    yield from (f"  {line}" for line in pair_lines(snapshot.gpu_pairs))


def _more(count: int, what: str) -> Iterator[str]:
    if count > MOST_DEVICES:
        yield f"  and {count - MOST_DEVICES:,} more {what}: `workbench resources --json` has all"


def _gpu(gpu: Gpu) -> Iterator[str]:
    form = f"vGPU {gpu.vgpu_profile}" if gpu.form == "vgpu" else gpu.form
    yield f"  {gpu.index}  {gpu.name}, {show_bytes(gpu.memory_bytes)}, {form}, at {gpu.pci_address}"
    yield (
        f"     driver {gpu.driver_version}, CUDA {gpu.cuda_version}, "
        f"compute capability {gpu.compute_capability}, {gpu.uuid}"
    )


def _nvlinks_in_file(snapshot: Snapshot) -> Iterator[str]:
    """Yield the NVLinks that a topology file lists, one line for GPUs with the same links."""
    names = {gpu.pci_address: f"GPU{gpu.index}" for gpu in snapshot.gpus}
    grouped: dict[str, list[str]] = {}
    for gpu in snapshot.gpus:
        links = gpu.nvlink.links if isinstance(gpu.nvlink, NvLinks) else ()
        peers = [
            "the switch"
            if link.peer == "switch"
            else names.get(link.peer_pci_address, str(link.peer_pci_address))
            for link in (links if isinstance(links, tuple) else ())
        ]
        if peers:
            words = ", ".join(f"{peers.count(one)} to {one}" for one in dict.fromkeys(peers))
            grouped.setdefault(words, []).append(f"GPU{gpu.index}")
    for words, gpus in grouped.items():
        yield f"  NVLinks of {', '.join(gpus)}: {words}"


def _nics(snapshot: Snapshot) -> Iterator[str]:
    for nic in snapshot.nics[:MOST_DEVICES]:
        yield from _nic(nic)
    yield from _more(len(snapshot.nics), "NICs")


def _nic(nic: Nic) -> Iterator[str]:
    rate = f"{nic.rate_gbps:g} Gb/s" if isinstance(nic.rate_gbps, float) else _rate(nic.rate_gbps)
    rdma = "no RDMA" if isinstance(nic.rdma_device, Unknown) else f"RDMA by {nic.rdma_device}"
    yield f"  {nic.name}  {nic.link_layer}, {nic.state}, {rate}, MTU {nic.mtu}, {rdma} ({nic.kind})"
    if isinstance(nic.addresses, tuple) and nic.addresses:
        yield f"     {', '.join(nic.addresses)}"


def _rate(rate: Any) -> str:
    return f"rate {rate}"
