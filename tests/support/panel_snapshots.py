"""Snapshots of complete machines for the tests of the panel: `labextension/test/fixtures/*.json`.

Write them again with ``python tests/support/panel_snapshots.py`` after a change of the snapshot's
fields; `test_panel_snapshots.py` says when they are out of date. What differs from one
run to the next (times, the folder) is replaced.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from fake_machine import CPUINFO_BARE, Machine, roce_gids, snap
from fake_nvml import Between, FakeNvml, mig_a100
from nvml_machines import NODE, SYS, a100_guest, bridged_a100, hgx_a100, hgx_h100
from pci_host import GPU, add_bridge
from topology_files import INFINIBAND, azure_ndv4, cpu, pci, switch, system

from workbench.resources import NcclSettings, Snapshot

FOLDER = Path(__file__).parents[2] / "labextension/test/fixtures"
ETHERNET = "0x020000"
# What a snapshot has of the process that takes it, and not of the machine of folders.
OF_THE_PROCESS = {
    "cpus": 64,
    "cpus_total": 64,
    "shm_bytes": 64 << 30,
    "memlock_bytes": "unlimited",
    "os": "Ubuntu 24.04 LTS",
    "open_files": 65_536,
    "container": "none",
}
V100_BUSES = (0x34, 0x36, 0x39, 0x3B, 0x57, 0x59, 0x5C, 0x5E)


def nothing(machine):
    """A VM with one virtio NIC, and no driver of NVIDIA's."""
    one_node(machine).set_dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)")
    card = machine.add_pci("0000:01:00.0", vendor="0x1af4", driver="virtio_net", numa=-1)
    machine.add_interface("eth0", device=card)
    return snap(machine, FakeNvml(init_error=9))


def fraction(machine):
    """A vSphere guest with a tenth of an A100 and one RDMA NIC, each on a root port of its own."""
    vsphere(machine)
    port(machine, "0000:0b:00.0", 0, below=2, numa=-1)
    return snap(machine, placed(machine, a100_guest("A100-4C", 4)))


def whole_vgpus(machine):
    """A vSphere guest with two full vGPUs that reach each other, a plain and an RDMA NIC."""
    vsphere(machine)
    port(machine, "0000:0b:00.0", 0, below=3, numa=-1)
    card = machine.add_pci("0000:0c:00.0", vendor="0x15ad", driver="vmxnet3", numa=-1)
    machine.add_interface("ens160", device=card, speed=10_000)
    return snap(machine, placed(machine, a100_guest("A100-40C", 40, count=2)))


def bridged(machine):
    """A host of two sockets: two pairs of bridged A100 and two NICs, on root ports."""
    bare(machine)
    nvml = bridged_a100()
    for number, device in enumerate(nvml.devices):
        on_port(machine, device.bus_id[4:], GPU, f"pci0000:{device.bus_id[9:11]}", number // 2)
    port(machine, "0000:31:00.0", 0, numa=0, root="pci0000:30")
    port(machine, "0000:ca:00.0", 1, numa=1, root="pci0000:c9")
    return snap(machine, nvml)


def hgx_in_a_vm(machine):
    """8 H100 and 8 ports passed through: sysfs hides the tree, the topology file has it."""
    one_node(machine).set_dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)")
    nvml = hgx_h100()
    gpus = [device.bus_id[4:].lower() for device in nvml.devices]
    ports = [f"0000:{int(gpu[5:7], 16) + 1:02x}:00.0" for gpu in gpus]
    for number, (gpu, nic) in enumerate(zip(gpus, ports, strict=True)):
        on_port(machine, gpu, GPU, "pci0000:00", -1, 2 * number + 1)
        port(machine, nic, number, below=2 * number + 2, numa=-1, infiniband=True)
    card = machine.add_pci("0000:02:00.0", vendor="0x1af4", driver="virtio_net", numa=-1)
    machine.add_interface("eth0", device=card)
    groups = [
        switch(i + 1, *(pci(gpus[n], GPU) + pci(ports[n], INFINIBAND) for n in (2 * i, 2 * i + 1)))
        for i in range(4)
    ]
    text = system(cpu(0, *groups[:2]), cpu(1, *groups[2:]))
    return snap(machine, nvml, nccl=told(machine, text))


def hgx_host(machine):
    """An HGX H100 host: each GPU with its port below a switch, a storage NIC and a plain one."""
    bare(machine)
    nvml = hgx_h100()
    for number, device in enumerate(nvml.devices):
        bus, node = int(device.bus_id[9:11], 16), number // 4
        root_port = add_bridge(machine, f"0000:{bus - 3:02x}:01.0", f"pci0000:{bus - 3:02x}", node)
        upstream = add_bridge(machine, f"0000:{bus - 2:02x}:00.0", root_port, node)
        ports = [add_bridge(machine, f"0000:{bus - 1:02x}:0{n}.0", upstream, node) for n in (0, 1)]
        on_port(machine, device.bus_id[4:], GPU, ports[0], node)
        port(machine, f"0000:{bus + 1:02x}:00.0", number, numa=node, root=ports[1],
             infiniband=True)  # fmt: skip
    port(machine, "0000:29:00.0", 8, numa=0, root="pci0000:26", speed=200_000)
    card = machine.add_pci("0000:1c:00.0", vendor="0x8086", driver="ice", above="pci0000:1a")
    machine.add_interface("eno1", device=card, speed=25_000)
    return snap(machine, nvml)


def ndv4(machine):
    """Azure's NDv4: 8 A100 and 8 ports on PCI domains of their own, the vendor's file."""
    one_node(machine).set_dmi("Microsoft Corporation", "Virtual Machine")
    nvml = hgx_a100()
    for device in nvml.devices:
        address = device.bus_id[4:].lower()
        machine.add_pci(address, vendor="0x10de", pci_class=GPU, numa=-1,
                        above=f"pci{address[:7]}")  # fmt: skip
    for number in range(8):
        address = f"{0x101 + number:04x}:00:00.0"
        port(machine, address, number, numa=-1, root=f"pci{address[:7]}", infiniband=True,
             direct=True)  # fmt: skip
    return snap(machine, nvml, nccl=told(machine, azure_ndv4()))


def slices(machine):
    """8 A100 on a host, each cut into two MIG devices, and two NICs."""
    bare(machine)
    buses = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)
    gpus = []
    for number, bus in enumerate(buses):
        gpu = mig_a100()
        gpu.bus_id, gpu.uuid = f"00000000:{bus:02X}:00.0", f"{gpu.uuid[:-1]}{number}"
        for part in gpu.mig:
            part.uuid = f"{part.uuid[:-1]}{number}"
        gpus.append(gpu)
    for pair in range(4):
        node, at = pair // 2, buses[2 * pair] - 4
        root_port = add_bridge(machine, f"0000:{at:02x}:01.0", f"pci0000:{at:02x}", node)
        upstream = add_bridge(machine, f"0000:{at + 1:02x}:00.0", root_port, node)
        for n in (0, 1):
            below = add_bridge(machine, f"0000:{at + 2:02x}:0{n}.0", upstream, node)
            on_port(machine, gpus[2 * pair + n].bus_id[4:], GPU, below, node)
        if pair in (0, 2):
            below = add_bridge(machine, f"0000:{at + 2:02x}:02.0", upstream, node)
            port(machine, f"0000:{at + 3:02x}:00.0", node, numa=node, root=below)
    pairs = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    between = {(a, b): Between(NODE if a // 4 == b // 4 else SYS, 5, 5, 5) for a, b in pairs}
    return snap(machine, FakeNvml(*gpus, between=between))


def sixteen_from_a_file(machine):
    """16 GPUs and 8 ports as a topology file alone describes them, two switches in a row."""

    def board(domain, node):
        first = 6 * node
        groups = [
            switch(
                f"{first + n:x}",
                *(pci(f"{domain}:{bus:02x}:00.0", GPU) for bus in V100_BUSES[2 * n : 2 * n + 2]),
                pci(f"{domain}:{V100_BUSES[2 * n] + 1:02x}:00.1", INFINIBAND),
            )
            for n in range(4)
        ]
        upper = [switch(f"{first + 4 + n:x}", *groups[2 * n : 2 * n + 2]) for n in (0, 1)]
        return cpu(node, *upper)

    file = machine.sysfs.parent / "sixteen.xml"
    file.write_text(system(board("0000", 0), board("0001", 1)))
    return Snapshot.from_nccl_topology(file)


CASES = {
    "nothing": nothing,
    "a100-4c": fraction,
    "a100-40c-pair": whole_vgpus,
    "bridged-a100": bridged,
    "hgx-h100-vm": hgx_in_a_vm,
    "hgx-h100-host": hgx_host,
    "hgx-a100-ndv4": ndv4,
    "mig": slices,
    "sixteen-from-a-file": sixteen_from_a_file,
}
FROM_A_FILE = {"sixteen-from-a-file"}


def text_of(name: str, folder: Path) -> str:
    """Give a case's snapshot as the text of its file; `folder` is where its machine is built."""
    plain = CASES[name](Machine(folder)).to_plain()
    plain["taken_at"] = 1_700_000_000.0
    if name not in FROM_A_FILE:
        plain["host"] |= OF_THE_PROCESS
    for probe in plain["probes"].values():
        probe["elapsed_ms"] = 1.0
    return json.dumps(plain, separators=(",", ":")).replace(str(folder), "") + "\n"


# Parts of machines


def one_node(machine):
    (machine.sysfs / "devices/system/node/node1").rmdir()
    return machine


def vsphere(machine):
    one_node(machine).set_dmi("VMware, Inc.", "VMware7,1")


def bare(machine):
    machine.set_dmi("Supermicro", "AS -4124GO-NART")
    machine.write(machine.procfs / "cpuinfo", CPUINFO_BARE)


def told(machine, text):
    file = machine.sysfs.parent / "topology.xml"
    file.write_text(text)
    return NcclSettings({"NCCL_TOPO_FILE": str(file)}, machine.sysfs.parent)


def placed(machine, nvml):
    """Put the guest's vGPUs on root ports of their own."""
    for number, device in enumerate(nvml.devices):
        on_port(machine, device.bus_id[4:], GPU, "pci0000:00", -1, number + 1)
    return nvml


def on_port(machine, address, pci_class, root, numa, number=1):
    """A device of NVIDIA's below a root port, or right below the port that is given."""
    above = root if isinstance(root, Path) else root_port(machine, root, numa, number)
    return machine.add_pci(
        address.lower(), vendor="0x10de", pci_class=pci_class, numa=numa, above=above
    )


def root_port(machine, root, numa, number):
    return add_bridge(machine, f"{root.lower()[3:]}:{number:02x}.0", root.lower(), numa)


def port(
    machine,
    address,
    number,
    *,
    below=1,
    numa=0,
    root="pci0000:00",
    infiniband=False,
    speed=100_000,
    direct=False,
):
    """An RDMA port, with an interface where it is Ethernet."""
    above = root if isinstance(root, Path) or direct else root_port(machine, root, numa, below)
    pci_class = INFINIBAND if infiniband else ETHERNET
    card = machine.add_pci(address, pci_class=pci_class, driver="mlx5_core", numa=numa, above=above)
    if infiniband:
        machine.add_interface(f"ib{number}", device=card, mtu=4092, arp_type=32)
        machine.add_rdma(f"mlx5_{number}", device=card)
        return
    interface = f"ens{192 + number}np0"
    machine.add_interface(interface, device=card, speed=speed, mtu=9000)
    machine.add_rdma(
        f"mlx5_{number}",
        device=card,
        hca_type="MT4124",
        rate=f"{speed // 1000} Gb/sec (4X EDR)" if speed == 100_000 else "200 Gb/sec (4X HDR)",
        link_layer="Ethernet",
        gids=roce_gids(interface),
    )


def main() -> None:
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            (FOLDER / f"{name}.json").write_text(text_of(name, Path(folder)))


if __name__ == "__main__":
    main()
