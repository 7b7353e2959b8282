"""Rules about VMware's paravirtual RDMA adapters: what each VM needs, and what all VMs need.

An adapter has two PCI functions in one slot: function 0 is a VMXNET3 adapter, which has the
interface and its addresses, and function 1 has the RDMA device. Which method PVRDMA uses between
two VMs (memory copies on one ESXi host, RDMA, or TCP) the guest does not see.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from workbench.doctor.rule import Case, Rule, must_match, rule
from workbench.resources import Gid, Nic, PciDevice, Snapshot, Unknown
from workbench.resources.nccl_ports import active_ports
from workbench.resources.nics.records import is_pvrdma

PVRDMA_DOWN = (
    "Bring the VMXNET3 interface of the same slot up (`ip link set dev {} up`). Ask the "
    "administrator whether the adapter is connected to a vSphere Distributed Switch whose only "
    "uplink is an RDMA adapter, and whether a VMkernel adapter is tagged for PVRDMA."
)
_VMWARE, _PVRDMA, _VMXNET3 = "0x15ad", "0x0820", "0x07b0"
_SUPPORT = "VMware, vSphere Networking 8.0, PVRDMA Support"
_DRIVER = "Linux kernel, drivers/infiniband/hw/vmw_pvrdma/pvrdma_main.c"


@rule(
    "error",
    why="Without its driver the adapter has no RDMA device: NCCL and MPI use TCP.",
    source=f"{_DRIVER}, pvrdma_pci_probe",
)
def pvrdma_without_device(snapshot: Snapshot) -> Iterator[Case]:
    """Find PVRDMA functions without an RDMA device, and why the driver made none."""
    functions = {one.address: one for one in snapshot.known_pcie.devices}
    for one in functions.values():
        if (one.vendor, one.device) != (_VMWARE, _PVRDMA) or one.rdma_devices != ():
            continue
        partner = f"{one.address.rpartition('.')[0]}.0"
        found = functions.get(partner)
        yield Case(
            f"the PVRDMA adapter {one.address} has no RDMA device" + _why(snapshot, found, partner),
            cure="Ask the administrator to remove the adapter and to add it again as a network "
            "adapter of type PVRDMA, which creates both functions."
            if _is_other(found)
            else f"{_load(snapshot, partner)}`dmesg | grep -i pvrdma` shows why the driver "
            "refuses it.",
        )


def _is_other(partner: PciDevice | None) -> bool:
    """Whether function 0 of the slot is missing, or is known to be no VMXNET3 adapter."""
    if partner is None:
        return True
    kind = (partner.vendor, partner.device)
    return kind != (_VMWARE, _VMXNET3) and not any(isinstance(one, Unknown) for one in kind)


def _why(snapshot: Snapshot, found: PciDevice | None, partner: str) -> str:
    if _is_other(found):
        return f": its partner {partner} is no VMXNET3 adapter"
    if not _has_interface(snapshot, partner):
        return f": its partner {partner} has no interface"
    if snapshot.host.pvrdma_module is False:
        return ": the module vmw_pvrdma is not loaded"
    return ""


def _load(snapshot: Snapshot, partner: str) -> str:
    """Return what to load, as the beginning of a cure."""
    first = "" if _has_interface(snapshot, partner) else "vmxnet3, and then "
    if not first and snapshot.host.pvrdma_module is True:
        return ""
    return f"Load {first}vmw_pvrdma (`sudo modprobe -a vmxnet3 vmw_pvrdma`). "


def _has_interface(snapshot: Snapshot, address: str) -> bool:
    return any(nic.pci_address == address for nic in snapshot.nics)


@rule(
    "warning",
    why="Connections of RoCE v2 are between IP addresses: with link-local ones the VMs reach each "
    "other in one Ethernet network at best, and NCCL and MPI may use TCP.",
    source=_DRIVER,
)
def pvrdma_without_ip(snapshot: Snapshot) -> Iterator[Case]:
    """Find active PVRDMA ports whose GIDs have link-local addresses only."""
    for nic in snapshot.nics:
        if not is_pvrdma(nic) or nic.state != "active" or not nic.gids:
            continue
        if all(_is_link_local(gid) for gid in nic.gids):
            yield Case(
                f"all {len(nic.gids)} entries of its GID table are link-local: "
                f"{nic.name} has no IP address",
                f"{nic.rdma_device}",
                cure=f"`sudo ip addr add ADDRESS/PREFIX dev {nic.name}`, with an address of one "
                "subnet on all VMs.",
            )


def _is_link_local(gid: Gid) -> bool:
    try:
        return ipaddress.IPv6Address(gid.gid).is_link_local
    except ValueError:
        return False


@rule(
    "info",
    why="Its driver has no counters, so its RDMA traffic cannot be shown; and it does not accept "
    "GPU memory as dma-buf, so gradients on GPUs pass through host memory. Between two ESXi hosts "
    "it uses TCP if one of them has no RDMA adapter as uplink of the distributed switch, which "
    "the guest does not see.",
    cure="No change is needed. `%fabric matrix` measures each pair of VMs: one at the rate of TCP "
    "has fallen back. For counters and GPUDirect RDMA ask for a passthrough adapter or "
    "an SR-IOV virtual function (which gives up vMotion).",
    source="Linux kernel, drivers/infiniband/hw/vmw_pvrdma/pvrdma_main.c, pvrdma_dev_ops; "
    "VMware, vSphere Networking 8.0, Remote Direct Memory Access for Virtual Machines",
)
def pvrdma(snapshot: Snapshot) -> Iterator[Case]:
    """Find VMware's paravirtual RDMA adapters."""
    for nic in snapshot.nics:
        if is_pvrdma(nic):
            yield Case(
                f"a VMware PVRDMA adapter (driver {nic.driver}, type {nic.hca_type})",
                f"{nic.rdma_device}",
            )


def _adapters(snapshot: Snapshot) -> str | None:
    """Return which kind of adapter the active RDMA ports of a VM have; None without any."""
    kinds = {is_pvrdma(nic) for nic in active_ports(snapshot)}
    if len(kinds) != 1:
        return None
    return "PVRDMA" if kinds.pop() else "RDMA without PVRDMA"


def _networks(snapshot: Snapshot) -> str | None:
    """Return the IPv4 networks of a VM's active PVRDMA ports; None if they are not known."""
    ports = [nic for nic in active_ports(snapshot) if is_pvrdma(nic)]
    networks = {one for nic in ports for one in _networks_of(nic)}
    return f"PVRDMA in {', '.join(sorted(networks))}" if networks else None


def _networks_of(nic: Nic) -> tuple[str, ...]:
    return () if isinstance(nic.networks, Unknown) else nic.networks


PVRDMA_MISMATCHES: tuple[Rule[Mapping[str, Snapshot]], ...] = (
    must_match(
        "pvrdma_unlike",
        "warning",
        _adapters,
        what="whether the active RDMA ports are PVRDMA adapters",
        why="PVRDMA reaches adapters of another kind (native endpoints) only from vSphere 7.0 "
        "Update 1 on, with virtual hardware version 18 and an adapter that supports RDMA "
        "namespaces. Otherwise these VMs use TCP with each other.",
        cure="Ask for the same kind of adapter on all VMs. `%fabric matrix` shows what each pair "
        "reaches.",
        source=_SUPPORT,
    ),
    must_match(
        "pvrdma_unlike",
        "warning",
        _networks,
        what="the IPv4 networks of the active PVRDMA ports",
        why="PVRDMA works between VMs on one vSphere Distributed Switch. Different subnets are "
        "usually different port groups or VLANs: RoCE v1 does not reach the other one, and RoCE "
        "v2 does only with a router.",
        cure="Ask for PVRDMA adapters of all VMs in one port group of one distributed switch, and "
        "give them addresses of one subnet.",
        source=_SUPPORT,
    ),
)
