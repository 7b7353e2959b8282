"""The hops of the ring that a job's ranks form, and the weakest of them.

A ring of Gloo and MPI connects the ranks in their order. NCCL orders the ranks of a VM itself, but
also leaves and enters each VM once, so the weakest hop between VMs is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from workbench.errors import UsageError
from workbench.fabric.nominal import find_nic, nic_gbps, pcie_link_gb_per_s
from workbench.ranks import RankInfo
from workbench.resources import Distance, Gpu, NvLinks, Snapshot, Unknown

_SHARED_MEMORY = Unknown("through the host's memory, whose nominal rate the guest does not see")
_NO_SNAPSHOT = Unknown("the VM did not answer")
_ONE_GPU = Unknown("both ranks use this GPU: no link is between them")


@dataclass(frozen=True)
class Hop:
    """One link on the way from a rank to the next one in the ring.

    Attributes
    ----------
    name
        The link and its VM: ``"NIC ens192 of vm2, 25 Gbit/s"``.
    kind
        As of `nominal.Bandwidth`.
    ranks
        Sender and receiver.
    vm
        The VM that has the link.
    devices
        PCI addresses at its ends, as far as they are known.
    gb_per_s
        Nominal GB/s of this hop in one direction. Hops that share a NIC have equal parts of it.
    end
        The device whose own link it is: the PCI address for PCIe, the name of the NIC for the
        network. Empty for a link between two devices.
    """

    name: str
    kind: str
    ranks: tuple[int, int]
    vm: str
    devices: tuple[str, ...]
    gb_per_s: float | Unknown
    end: str = ""

    def __str__(self) -> str:
        """Return its name, its rate and its ranks in one line."""
        rate = self.gb_per_s
        text = f"rate {rate}" if isinstance(rate, Unknown) else f"{rate:.3g} GB/s"
        return f"{self.name}: {text} (rank {self.ranks[0]} to {self.ranks[1]})"


def ring_hops(ranks: Iterable[RankInfo], snapshots: Mapping[str, Snapshot]) -> list[Hop]:
    """Return all hops of the ring, in its order.

    Parameters
    ----------
    ranks
        `Cluster.ranks`, in the order of the ring.
    snapshots
        By VM, as `Cluster.snapshot` returns them.
    """
    infos = list(ranks)
    if len(infos) < 2:
        raise UsageError(
            f"Cannot find hops of {len(infos)} ranks: a ring has at least 2. Start a cluster of "
            "more."
        )
    pairs = [*zip(infos, [*infos[1:], infos[0]], strict=True)]
    crossing = [(one, other) for one, other in pairs if one.vm != other.vm]
    sends = Counter((one.vm, one.nic) for one, _ in crossing)
    receives = Counter((other.vm, other.nic) for _, other in crossing)
    hops: list[Hop] = []
    for one, other in pairs:
        ends = one.rank, other.rank
        if one.vm == other.vm:
            hops += _within(one, other, snapshots.get(one.vm), ends)
            continue
        for info, users in ((one, sends), (other, receives)):
            hops += _to_network(info, snapshots.get(info.vm), ends, users[info.vm, info.nic])
    return hops


def weakest_hop(ranks: Iterable[RankInfo], snapshots: Mapping[str, Snapshot]) -> Hop | Unknown:
    """Return the hop of the ring with the lowest nominal rate; parameters as for `ring_hops`.

    It is unknown if no rate is known.
    """
    hops = ring_hops(ranks, snapshots)
    known = [(hop.gb_per_s, hop) for hop in hops if not isinstance(hop.gb_per_s, Unknown)]
    if known:
        return min(known, key=lambda one: one[0])[1]
    reasons = dict.fromkeys(f"{hop.name}: {hop.gb_per_s.reason}" for hop in hops
                            if isinstance(hop.gb_per_s, Unknown))  # fmt: skip
    return Unknown("; ".join(reasons))


def _within(
    one: RankInfo, other: RankInfo, snapshot: Snapshot | None, ends: tuple[int, int]
) -> Iterator[Hop]:
    """Yield the hop between two ranks of one VM."""
    first, second = _gpu(snapshot, one), _gpu(snapshot, other)
    if snapshot is None or first is None or second is None:
        why = _NO_SNAPSHOT if snapshot is None else _SHARED_MEMORY
        yield Hop(f"host memory of {one.vm}", "host memory", ends, one.vm, (), why)
        return
    devices = _addresses(first, second)
    distance = snapshot.distance(first, second)
    if distance == Distance.LOC:
        memory = f"memory of GPU {first.index} of {one.vm}"
        yield Hop(memory, "GPU memory", ends, one.vm, devices, _ONE_GPU)
        return
    if distance == Distance.NVLINK:
        between = f"NVLink of GPU {first.index} and GPU {second.index} of {one.vm}"
        yield Hop(between, "NVLink", ends, one.vm, devices, _nvlink_gb_per_s(first, second))
        return
    for gpu in (first, second):
        link, rate = pcie_link_gb_per_s(snapshot, gpu)
        name = f"{link} of GPU {gpu.index} of {one.vm} ({distance})"
        yield Hop(name, "PCIe", ends, one.vm, devices, rate, str(gpu.pci_address))


def _to_network(
    info: RankInfo, snapshot: Snapshot | None, ends: tuple[int, int], users: int
) -> Iterator[Hop]:
    """Yield the hops between a rank and the network: its GPU's PCIe, its NIC's, and the NIC."""
    vm, nic = info.vm, find_nic(snapshot, info.nic) if snapshot else None
    if snapshot is None or nic is None:
        why = _NO_SNAPSHOT if snapshot is None else Unknown("it is not in the VM's snapshot")
        yield Hop(f"NIC {info.nic} of {vm}", "network", ends, vm, (), why)
        return
    gpu = _gpu(snapshot, info)
    for device, name in ((gpu, f"GPU {gpu.index if gpu else ''}"), (nic, f"NIC {info.nic}")):
        if device is not None and isinstance(device.pci_address, str):
            link, rate = pcie_link_gb_per_s(snapshot, device)
            way = f" ({snapshot.distance(gpu, nic)})" if gpu else ""
            devices = _addresses(*filter(None, (gpu, nic)))
            link = f"{link} of {name} of {vm}{way}"
            yield Hop(link, "PCIe", ends, vm, devices, rate, device.pci_address)
    gbps, shared = nic_gbps(nic), f", shared by {users} hops" if users > 1 else ""
    rated = "" if isinstance(gbps, Unknown) else f", {gbps:g} Gbit/s"
    rate = gbps if isinstance(gbps, Unknown) else gbps / 8 / users
    name = f"NIC {info.nic} of {vm}{rated}{shared}"
    yield Hop(name, "network", ends, vm, _addresses(nic), rate, nic.name)


def _gpu(snapshot: Snapshot | None, info: RankInfo) -> Gpu | None:
    """Return the GPU of a rank; None on a CPU."""
    number = info.gpu.partition(" ")[0]
    if snapshot is None or not number.isdecimal():
        return None
    divided = {gpu.index for gpu in snapshot.gpus if gpu.form == "mig"}
    usable = [gpu for gpu in snapshot.gpus if gpu.form == "mig" or gpu.index not in divided]
    return usable[int(number)] if int(number) < len(usable) else None


def _nvlink_gb_per_s(first: Gpu, second: Gpu) -> float | Unknown:
    """Return the rate between two GPUs: of the links that join them, or of all to the switches."""
    rates = []
    for one, other in ((first, second), (second, first)):
        links = one.links_up
        direct = [link for link in links if link.peer_pci_address == other.pci_address]
        if direct:
            links = tuple(direct)
        known = [link.nominal_gb_per_s for link in links]
        if not known or not isinstance(one.nvlink, NvLinks):
            return Unknown("the driver does not report the links")
        rates.append(sum(rate for rate in known if not isinstance(rate, Unknown)))
    return min(rates) or Unknown("no published rate for these links is known")


def _addresses(*devices: object) -> tuple[str, ...]:
    found = (getattr(device, "pci_address", None) for device in devices)
    return tuple(address for address in found if isinstance(address, str))
