"""Records of network interfaces and RDMA ports."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.resources.unknown import EARLIER, Unknown


@dataclass(frozen=True)
class Gid:
    """An entry that is set in an RDMA port's table of GIDs.

    Attributes
    ----------
    index
        Index in the table, as used by ``NCCL_IB_GID_INDEX``.
    gid
        The 128-bit address in IPv6 notation.
    type
        ``"IB/RoCE v1"`` or ``"RoCE v2"``.
    interface
        The network interface (RoCE only).
    """

    index: int
    gid: str
    type: str | Unknown
    interface: str | Unknown


@dataclass(frozen=True)
class Nic:
    """A network interface or RDMA port.

    Attributes
    ----------
    name
        Name of the interface; for an RDMA port without an interface, the name of the device.
    kind
        ``"rdma"``, ``"physical"`` (a plain device), or ``"virtual"`` (bridge, bond, veth).
    rdma_device, rdma_port
        Such as ``"mlx5_0"`` and 1.
    hca_type, firmware
        Type and firmware of the RDMA device: ``"MT4129"``, ``"28.41.1000"``.
    driver
        The kernel's driver: ``"mlx5_core"``.
    link_layer
        ``"InfiniBand"`` or ``"Ethernet"``.
    rate_gbps
        Current rate of the link in gigabits per second.
    state
        ``"active"``, ``"init"``, ``"armed"`` or ``"down"`` for RDMA; ``"up"`` or ``"down"``.
    mtu
        MTU of the interface in bytes.
    addresses
        IP addresses of the interface.
    gids
        The entries of the port's GID table that are set; empty for a plain NIC.
    numa_node, pci_address
        Location of the device; see `PciDevice.address`.
    networks
        IPv4 networks of the addresses: ``"10.0.0.0/24"``.
    """

    name: str
    kind: str
    rdma_device: str | Unknown
    rdma_port: int | Unknown
    hca_type: str | Unknown
    firmware: str | Unknown
    driver: str | Unknown
    link_layer: str | Unknown
    rate_gbps: float | Unknown
    state: str | Unknown
    mtu: int | Unknown
    addresses: tuple[str, ...] | Unknown
    gids: tuple[Gid, ...]
    numa_node: int | Unknown
    pci_address: str | Unknown
    networks: tuple[str, ...] | Unknown = EARLIER


def is_pvrdma(nic: Nic) -> bool:
    """Return whether it is a port of VMware's paravirtual RDMA adapter."""
    is_type = isinstance(nic.hca_type, str) and nic.hca_type.startswith("VMW_PVRDMA")
    return nic.kind == "rdma" and (is_type or nic.driver == "vmw_pvrdma")
