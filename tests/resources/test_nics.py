"""Snapshots of network interfaces and RDMA ports."""

from __future__ import annotations

from fake_machine import roce_gids, snap

from workbench.resources import Unknown
from workbench.resources.nics.probe import ipv4_networks


def only_nic(machine):
    (nic,) = snap(machine).nics
    return nic


def test_infiniband_port(machine):
    """An InfiniBand port with its IPoIB interface is one NIC, at the rate of the port."""
    pci = machine.add_pci("0000:1a:00.0", numa=1, driver="mlx5_core")
    machine.add_interface("ib0", device=pci, mtu=4092, arp_type=32)
    machine.add_rdma("mlx5_0", device=pci)
    nic = only_nic(machine)
    assert (nic.name, nic.kind, nic.rdma_device, nic.rdma_port) == ("ib0", "rdma", "mlx5_0", 1)
    assert (nic.link_layer, nic.rate_gbps, nic.state) == ("InfiniBand", 400.0, "active")
    assert (nic.driver, nic.hca_type, nic.firmware) == ("mlx5_core", "MT4129", "28.41.1000")
    assert (nic.numa_node, nic.pci_address, nic.mtu) == (1, "0000:1a:00.0", 4092)


def test_roce_port_and_its_unset_gids(machine):
    """The table of GIDs has the entries that are set; unreadable entries are empty."""
    pci = machine.add_pci("0000:3b:00.0", numa=-1)
    machine.add_interface("ens1", device=pci, speed=100_000, mtu=9000)
    machine.add_rdma(
        "rocep59s0", device=pci, link_layer="Ethernet", rate="100 Gb/sec (4X EDR)",
        gids=roce_gids("ens1"),
    )  # fmt: skip
    nic = only_nic(machine)
    assert (nic.name, nic.link_layer, nic.rate_gbps, nic.mtu) == ("ens1", "Ethernet", 100.0, 9000)
    assert [gid.index for gid in nic.gids] == [0, 1, 3]
    assert nic.gids[2].type == "RoCE v2"
    assert nic.gids[2].gid.endswith("0a00:0005")
    assert "NUMA" in nic.numa_node.reason


def test_bond(machine):
    """A bonded RDMA device is the bond; the members say whose part they are."""
    first, second = (machine.add_pci(f"0000:9f:00.{n}") for n in (0, 1))
    bond = machine.add_interface("bond0", speed=200_000)
    (bond / "bonding").mkdir()
    for name, pci in (("p0", first), ("p1", second)):
        machine.add_interface(name, device=pci, speed=100_000)
        (machine.sysfs / "class/net" / name / "master").symlink_to(bond)
    machine.add_rdma(
        "mlx5_bond_0", device=first, hca_type="MT41692", rate="200 Gb/sec (2X NDR)",
        link_layer="Ethernet", gids=roce_gids("bond0"),
    )  # fmt: skip
    by_name = {nic.name: nic for nic in snap(machine).nics}
    assert set(by_name) == {"bond0", "p0", "p1"}
    assert (by_name["bond0"].kind, by_name["bond0"].rate_gbps) == ("rdma", 200.0)
    assert by_name["p1"].rdma_device.reason == "member of bond0, whose RDMA device is mlx5_bond_0"


def test_two_ports_of_one_function(machine):
    """A device with two ports makes two NICs, each with the interface of its port."""
    pci = machine.add_pci("0000:81:00.0")
    for number, name in ((0, "ens2"), (1, "ens2d1")):
        folder = machine.add_interface(name, device=pci)
        machine.write(folder / "dev_port", f"{number}\n")
        machine.add_rdma("mlx4_0", device=pci, port=number + 1, link_layer="Ethernet")
    nics = snap(machine).nics
    assert [(nic.name, nic.rdma_port) for nic in nics] == [("ens2", 1), ("ens2d1", 2)]


def test_rdma_port_without_interface(machine):
    """A port without an interface goes by its device, and says why it has no MTU."""
    machine.add_rdma("mlx5_3", device=machine.add_pci("0000:2a:00.0"))
    nic = only_nic(machine)
    assert nic.name == "mlx5_3"
    assert nic.mtu == Unknown("mlx5_3 has no network interface in this VM")


def test_devices_count_up(machine):
    """mlx5_2 comes before mlx5_10."""
    for number in (10, 2, 0):
        machine.add_rdma(f"mlx5_{number}", device=machine.add_pci(f"0000:0{number:x}:00.0"))
    assert [nic.name for nic in snap(machine).nics] == ["mlx5_0", "mlx5_2", "mlx5_10"]


def test_plain_virtio_interface(machine):
    """A virtio NIC has its PCI device's place, and no speed rather than -1."""
    pci = machine.add_pci("0000:00:03.0", vendor="0x1af4")
    virtio = pci / "virtio2"
    virtio.mkdir()
    machine.add_interface("eth0", device=virtio, speed=-1, mtu=1400)
    machine.add_interface("lo", arp_type=772)
    machine.add_interface("docker0", state="down")
    nics = {nic.name: nic for nic in snap(machine).nics}
    assert set(nics) == {"eth0", "docker0"}
    assert (nics["eth0"].kind, nics["docker0"].kind) == ("physical", "virtual")
    assert nics["eth0"].rate_gbps == Unknown("the driver reports no speed")
    assert nics["eth0"].pci_address == "0000:00:03.0"
    assert nics["eth0"].rdma_device == Unknown("plain NIC: no RDMA device")


def test_no_nic_at_all(machine):
    """A machine without any interface is reported as such."""
    probe = snap(machine).probes["nics"]
    assert (probe.status, probe.reason) == ("absent", "this machine has no network interface")


def test_networks_of_addresses():
    """Each once, and an odd netmask does not cost the others."""
    addresses = (
        ("10.0.0.5", "255.255.255.0"),
        ("10.0.0.6", "255.255.255.0"),
        ("10.1.0.5", "255.0.255.0"),
        ("10.2.0.5", ""),
        ("10.3.0.5", None),
        ("fe80::1", "ffff:ffff:ffff:ffff::"),
        ("192.168.1.9", "255.255.0.0"),
    )
    assert ipv4_networks(addresses) == ("10.0.0.0/24", "192.168.0.0/16")
