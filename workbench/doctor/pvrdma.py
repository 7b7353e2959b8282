"""Rules about VMware's paravirtual RDMA adapters, for one VM and for several VMs.

An adapter has two PCI functions in one slot: function 0 is a VMXNET3 adapter, which has the
interface and its addresses, and function 1 has the RDMA device. The guest does not see which
method PVRDMA uses between two VMs (memory copies on one ESXi host, RDMA, or TCP).
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
_VMWARE = "0x15ad"
_PVRDMA = "0x0820"
_VMXNET3 = "0x07b0"
_SUPPORT = "VMware, vSphere Networking 8.0, PVRDMA Support"
_DRIVER = "Linux kernel, drivers/infiniband/hw/vmw_pvrdma/pvrdma_main.c"


@rule(
    "error",
    why="Without its driver the adapter has no RDMA device: NCCL and MPI use TCP.",
    source=f"{_DRIVER}, pvrdma_pci_probe",
)
def pvrdma_without_device(snapshot: Snapshot) -> Iterator[Case]:
    """Find PVRDMA functions without an RDMA device, with the reason."""
    functions = {device.address: device for device in snapshot.known_pcie.devices}
    for device in functions.values():
        if (device.vendor, device.device) != (_VMWARE, _PVRDMA) or device.rdma_devices != ():
            continue
        partner_address = f"{device.address.rpartition('.')[0]}.0"
        partner = functions.get(partner_address)
        yield Case(
            f"the PVRDMA adapter {device.address} has no RDMA device"
            + _reason_text(snapshot, partner, partner_address),
            fix="Ask the administrator to remove the adapter and to add it again as a network "
            "adapter of type PVRDMA, which creates both functions."
            if _is_no_vmxnet3(partner)
            else f"{_modules_to_load(snapshot, partner_address)}`dmesg | grep -i pvrdma` shows why "
            "the driver refuses it.",
        )


def _is_no_vmxnet3(partner: PciDevice | None) -> bool:
    """Return whether function 0 of the slot is missing, or is known to be no VMXNET3 adapter."""
    if partner is None:
        return True
    kind = (partner.vendor, partner.device)
    return kind != (_VMWARE, _VMXNET3) and not any(isinstance(part, Unknown) for part in kind)


def _reason_text(snapshot: Snapshot, partner: PciDevice | None, partner_address: str) -> str:
    """Return why the driver made no RDMA device, as a clause; empty if that is unknown."""
    if _is_no_vmxnet3(partner):
        return f": its partner {partner_address} is no VMXNET3 adapter"
    if not _has_interface(snapshot, partner_address):
        return f": its partner {partner_address} has no interface"
    if snapshot.host.pvrdma_module is False:
        return ": the module vmw_pvrdma is not loaded"
    return ""


def _modules_to_load(snapshot: Snapshot, partner_address: str) -> str:
    """Return which modules to load, as the beginning of a fix."""
    first = "" if _has_interface(snapshot, partner_address) else "vmxnet3, and then "
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
    """Find active PVRDMA ports with GIDs of link-local addresses only."""
    for nic in snapshot.nics:
        if not is_pvrdma(nic) or nic.state != "active" or not nic.gids:
            continue
        if all(_is_link_local(gid) for gid in nic.gids):
            yield Case(
                f"all {len(nic.gids)} entries of its GID table are link-local: "
                f"{nic.name} has no IP address",
                f"{nic.rdma_device}",
                fix=f"`sudo ip addr add ADDRESS/PREFIX dev {nic.name}`, with an address of one "
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
    fix="No change is needed. `%fabric matrix` measures each pair of VMs: one at the rate of TCP "
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
    """Return the kind of adapter of a VM's active RDMA ports; None unless there is one kind."""
    kinds = {is_pvrdma(nic) for nic in active_ports(snapshot)}
    if len(kinds) != 1:
        return None
    return "PVRDMA" if kinds.pop() else "RDMA without PVRDMA"


def _networks(snapshot: Snapshot) -> str | None:
    """Return the IPv4 networks of a VM's active PVRDMA ports; None if they are unknown."""
    ports = [nic for nic in active_ports(snapshot) if is_pvrdma(nic)]
    networks = {network for nic in ports for network in _networks_of(nic)}
    return f"PVRDMA in {', '.join(sorted(networks))}" if networks else None


def _networks_of(nic: Nic) -> tuple[str, ...]:
    return () if isinstance(nic.networks, Unknown) else nic.networks


PVRDMA_MISMATCHES: tuple[Rule[Mapping[str, Snapshot]], ...] = (
    must_match(
        "pvrdma_unlike",
        "warning",
        _adapters,
        compared="whether the active RDMA ports are PVRDMA adapters",
        why="PVRDMA reaches adapters of another kind (native endpoints) only from vSphere 7.0 "
        "Update 1 on, with virtual hardware version 18 and an adapter that supports RDMA "
        "namespaces. Otherwise these VMs use TCP with each other.",
        fix="Ask for the same kind of adapter on all VMs. `%fabric matrix` shows what each pair "
        "reaches.",
        source=_SUPPORT,
    ),
    must_match(
        "pvrdma_unlike",
        "warning",
        _networks,
        compared="the IPv4 networks of the active PVRDMA ports",
        why="PVRDMA works between VMs on one vSphere Distributed Switch. Different subnets are "
        "usually different port groups or VLANs: RoCE v1 does not reach the other one, and RoCE "
        "v2 does only with a router.",
        fix="Ask for PVRDMA adapters of all VMs in one port group of one distributed switch, and "
        "give them addresses of one subnet.",
        source=_SUPPORT,
    ),
)
