"""Trees of PCI devices in a machine of folders."""

from __future__ import annotations

BRIDGE, GPU, NIC = "0x060400", "0x030200", "0x020700"
A, B, C, D = "0000:53:00.0", "0000:54:00.0", "0000:63:00.0", "0000:93:00.0"
N, M = "0000:55:00.0", "0000:95:00.0"


def add_gpu(machine, address, above="pci0000:00", numa=0):
    return machine.add_pci(address, vendor="0x10de", pci_class=GPU, numa=numa, above=above)


def add_port(machine, address, name, above="pci0000:00", numa=0):
    device = machine.add_pci(address, pci_class=NIC, numa=numa, above=above)
    machine.add_rdma(name, device=device)
    return device


def add_bridge(machine, address, above="pci0000:00", numa=0):
    return machine.add_pci(address, vendor="0x1000", pci_class=BRIDGE, numa=numa, above=above)


def build_host(machine):
    """A bare-metal host: a root port with two switches in a row, and a second socket.

    The upper switch (ports 50 and 51) has C and, by the lower one (52), A, B and N.
    """
    root_port = add_bridge(machine, "0000:00:01.0")
    upstream = add_bridge(machine, "0000:50:00.0", root_port)
    ports = [add_bridge(machine, f"0000:51:0{n}.0", upstream) for n in (0, 1)]
    lower = add_bridge(machine, "0000:52:00.0", ports[0])
    for address, number in ((A, 1), (B, 2)):
        add_gpu(machine, address, add_bridge(machine, f"0000:5a:0{number}.0", lower))
    add_port(machine, N, "mlx5_0", add_bridge(machine, "0000:5a:03.0", lower))
    add_gpu(machine, C, ports[1])
    add_gpu(machine, D, add_bridge(machine, "0000:80:01.0", "pci0000:80", 1), 1)
    add_port(machine, M, "mlx5_1", add_bridge(machine, "0000:80:02.0", "pci0000:80", 1), 1)
    return machine


def capabilities(*entries):
    """A configuration space of 4096 bytes with a list of extended capabilities."""
    space = bytearray(4096)
    at = 0x100
    for number, (identity, control) in enumerate(entries, 1):
        following = 0 if number == len(entries) else at + 0x20
        space[at : at + 4] = (identity | 1 << 16 | following << 20).to_bytes(4, "little")
        space[at + 6 : at + 8] = control.to_bytes(2, "little")
        at += 0x20
    return bytes(space)
