"""The hops of the ring that a job's ranks form, and the weakest hop.

Rings of Gloo and MPI connect the ranks in rank order. NCCL chooses its own order for the ranks of
a VM, but its ring also leaves and enters each VM once. The weakest hop between VMs is therefore
the same.
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
        One of the kinds of `nominal.Bandwidth`.
    ranks
        Sender and receiver.
    vm
        The VM that has the link.
    devices
        PCI addresses of the devices that the link connects, as far as they are known.
    gb_per_s
        Nominal rate of this hop in one direction, in GB/s. Hops that share a NIC have equal shares
        of its rate.
    end
        The device that the link connects to the VM or to the network: the PCI address for PCIe, the
        name of the NIC for the network. Empty for a link between two devices.
    """

    name: str
    kind: str
    ranks: tuple[int, int]
    vm: str
    devices: tuple[str, ...]
    gb_per_s: float | Unknown
    end: str = ""

    def __str__(self) -> str:
        """Return the name, the rate and the ranks in one line."""
        rate = self.gb_per_s
        text = f"rate {rate}" if isinstance(rate, Unknown) else f"{rate:.3g} GB/s"
        return f"{self.name}: {text} (rank {self.ranks[0]} to {self.ranks[1]})"


def ring_hops(ranks: Iterable[RankInfo], snapshots: Mapping[str, Snapshot]) -> list[Hop]:
    """Return all hops of the ring, in the order of the ring.

    Parameters
    ----------
    ranks
        `Cluster.ranks`, in the order of the ring.
    snapshots
        The VMs' snapshots by VM, as `Cluster.snapshot` returns them.

    Raises
    ------
    UsageError
        There are fewer than 2 ranks.

    Examples
    --------
    >>> first = RankInfo(0, "vm1", 10, "CPU", "any", "eth0", "ready", 1)
    >>> second = RankInfo(1, "vm1", 11, "CPU", "any", "eth0", "ready", 1)
    >>> print(ring_hops([first, second], {})[0])
    host memory of vm1: rate unknown (the VM did not answer) (rank 0 to 1)
    """
    infos = list(ranks)
    if len(infos) < 2:
        raise UsageError(
            f"Cannot find hops of {len(infos)} ranks: a ring has at least 2. Start a cluster of "
            "more."
        )
    pairs = [*zip(infos, [*infos[1:], infos[0]], strict=True)]
    pairs_between_vms = [
        (sender, receiver) for sender, receiver in pairs if sender.vm != receiver.vm
    ]
    sends = Counter((sender.vm, sender.nic) for sender, _ in pairs_between_vms)
    receives = Counter((receiver.vm, receiver.nic) for _, receiver in pairs_between_vms)
    hops: list[Hop] = []
    for sender, receiver in pairs:
        pair = sender.rank, receiver.rank
        if sender.vm == receiver.vm:
            hops += _hops_within_vm(sender, receiver, snapshots.get(sender.vm), pair)
            continue
        for info, users in ((sender, sends), (receiver, receives)):
            hops += _hops_to_network(info, snapshots.get(info.vm), pair, users[info.vm, info.nic])
    return hops


def weakest_hop(ranks: Iterable[RankInfo], snapshots: Mapping[str, Snapshot]) -> Hop | Unknown:
    """Return the hop of the ring with the lowest nominal rate.

    The parameters are the same as for `ring_hops`. If no rate is known, the result is an
    `Unknown` with the reasons.
    """
    hops = ring_hops(ranks, snapshots)
    rated = [(hop.gb_per_s, hop) for hop in hops if not isinstance(hop.gb_per_s, Unknown)]
    if rated:
        return min(rated, key=lambda rate_and_hop: rate_and_hop[0])[1]
    reasons = dict.fromkeys(f"{hop.name}: {hop.gb_per_s.reason}" for hop in hops
                            if isinstance(hop.gb_per_s, Unknown))  # fmt: skip
    return Unknown("; ".join(reasons))


def _hops_within_vm(
    sender: RankInfo, receiver: RankInfo, snapshot: Snapshot | None, pair: tuple[int, int]
) -> Iterator[Hop]:
    """Yield the hops between two ranks of the same VM."""
    vm = sender.vm
    first = _gpu(snapshot, sender)
    second = _gpu(snapshot, receiver)
    if snapshot is None or first is None or second is None:
        reason = _NO_SNAPSHOT if snapshot is None else _SHARED_MEMORY
        yield Hop(f"host memory of {vm}", "host memory", pair, vm, (), reason)
        return
    devices = _addresses(first, second)
    distance = snapshot.distance(first, second)
    if distance == Distance.LOC:
        name = f"memory of GPU {first.index} of {vm}"
        yield Hop(name, "GPU memory", pair, vm, devices, _ONE_GPU)
        return
    if distance == Distance.NVLINK:
        name = f"NVLink of GPU {first.index} and GPU {second.index} of {vm}"
        yield Hop(name, "NVLink", pair, vm, devices, _nvlink_gb_per_s(first, second))
        return
    for gpu in (first, second):
        link, rate = pcie_link_gb_per_s(snapshot, gpu)
        name = f"{link} of GPU {gpu.index} of {vm} ({distance})"
        yield Hop(name, "PCIe", pair, vm, devices, rate, str(gpu.pci_address))


def _hops_to_network(
    info: RankInfo, snapshot: Snapshot | None, pair: tuple[int, int], users: int
) -> Iterator[Hop]:
    """Yield the hops between a rank and the network: PCIe of its GPU and of its NIC, and the NIC.

    `users` is the number of hops that share the NIC in this direction.
    """
    vm = info.vm
    nic = find_nic(snapshot, info.nic) if snapshot else None
    if snapshot is None or nic is None:
        reason = _NO_SNAPSHOT if snapshot is None else Unknown("it is not in the VM's snapshot")
        yield Hop(f"NIC {info.nic} of {vm}", "network", pair, vm, (), reason)
        return
    gpu = _gpu(snapshot, info)
    for device, name in ((gpu, f"GPU {gpu.index if gpu else ''}"), (nic, f"NIC {info.nic}")):
        if device is not None and isinstance(device.pci_address, str):
            link, rate = pcie_link_gb_per_s(snapshot, device)
            distance = f" ({snapshot.distance(gpu, nic)})" if gpu else ""
            devices = _addresses(*filter(None, (gpu, nic)))
            link = f"{link} of {name} of {vm}{distance}"
            yield Hop(link, "PCIe", pair, vm, devices, rate, device.pci_address)
    gbps = nic_gbps(nic)
    shared = f", shared by {users} hops" if users > 1 else ""
    rated = "" if isinstance(gbps, Unknown) else f", {gbps:g} Gbit/s"
    rate = gbps if isinstance(gbps, Unknown) else gbps / 8 / users
    name = f"NIC {info.nic} of {vm}{rated}{shared}"
    yield Hop(name, "network", pair, vm, _addresses(nic), rate, nic.name)


def _gpu(snapshot: Snapshot | None, info: RankInfo) -> Gpu | None:
    """Return the GPU of a rank; None for a rank on a CPU."""
    number = info.gpu.partition(" ")[0]
    if snapshot is None or not number.isdecimal():
        return None
    # A GPU that is divided into MIG slices is used through its slices only.
    divided_indices = {gpu.index for gpu in snapshot.gpus if gpu.form == "mig"}
    usable = [gpu for gpu in snapshot.gpus if gpu.form == "mig" or gpu.index not in divided_indices]
    return usable[int(number)] if int(number) < len(usable) else None


def _nvlink_gb_per_s(first: Gpu, second: Gpu) -> float | Unknown:
    """Return the rate between two GPUs.

    It is the rate of the links between the two, or of all links to the switches.
    """
    gpu_rates = []
    for gpu, peer in ((first, second), (second, first)):
        links = gpu.links_up
        direct = [link for link in links if link.peer_pci_address == peer.pci_address]
        if direct:
            links = tuple(direct)
        link_rates = [link.nominal_gb_per_s for link in links]
        if not link_rates or not isinstance(gpu.nvlink, NvLinks):
            return Unknown("the driver does not report the links")
        gpu_rates.append(sum(rate for rate in link_rates if not isinstance(rate, Unknown)))
    return min(gpu_rates) or Unknown("no published rate for these links is known")


def _addresses(*devices: object) -> tuple[str, ...]:
    addresses = (getattr(device, "pci_address", None) for device in devices)
    return tuple(address for address in addresses if isinstance(address, str))
