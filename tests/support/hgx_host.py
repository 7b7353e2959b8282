"""A complete HGX host as folders: 8 GPUs, 9 RDMA devices, a full PCIe tree, a thousand processes.

The addresses are those of the HGX H100 capture (`nvml_machines`); counters have the names
that a ConnectX-7 of such a host has (leptonai/gpud, testdata). How switches are placed between
them is this example's own: two NICs and two GPUs under each pair of switches.
"""

from __future__ import annotations

import os

from fake_machine import roce_gids
from fake_nvml import GIB, Process
from nvml_machines import hgx_h100
from pci_host import GPU, NIC, add_bridge

BUSES = (0x53, 0x64, 0x75, 0x86, 0x97, 0xA8, 0xB9, 0xCA)
RANKS = range(5000, 5008)
KERNEL = 4000
PORT_COUNTERS = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
]
HARDWARE_COUNTERS = [
    "duplicate_request",
    "implied_nak_seq_err",
    "lifespan",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rp_cnp_handled",
    "rx_atomic_requests",
    "rx_dct_connect",
    "rx_icrc_encapsulated",
    "rx_read_requests",
    "rx_write_requests",
]


def build_hgx(machine, processes=1000):
    """Fill a machine of folders, and give the NVML that goes with it."""
    for place, bus in enumerate(BUSES):
        node = place // 4
        root = f"pci0000:{bus - 3:02x}"
        port = add_bridge(machine, f"0000:{bus - 3:02x}:01.0", root, node)
        upstream = add_bridge(machine, f"0000:{bus - 2:02x}:00.0", port, node)
        below = [
            add_bridge(machine, f"0000:{bus - 1:02x}:0{n}.0", upstream, node) for n in range(4)
        ]
        gpu = f"0000:{bus:02x}:00.0"
        machine.add_pci(gpu, vendor="0x10de", pci_class=GPU, numa=node, above=below[0])
        _add_port(machine, place, f"0000:{bus + 1:02x}:00.0", below[1], node)
    _add_port(machine, 8, "0000:1a:00.0", add_bridge(machine, "0000:19:01.0", "pci0000:19"), 0)
    machine.add_interface("eth0")
    machine.add_process(KERNEL, "python", "-m", "ipykernel_launcher", "-f", "/r/kernel-a.json")
    machine.add_process(4999, "python", "-m", "workbench.agent.program", "4000", parent=KERNEL)
    for pid in RANKS:
        machine.add_process(pid, "python", "-m", "workbench.agent.program", "4000", parent=4999)
    for pid in range(10_000, 10_000 + processes):
        machine.add_process(pid, "sleep")
    nvml = hgx_h100()
    for pid, device in zip(RANKS, nvml.devices, strict=True):
        device.compute = [Process(pid, 30 * GIB)]
    return nvml


def _add_port(machine, number, address, above, node):
    device = machine.add_pci(address, pci_class=NIC, numa=node, driver="mlx5_core", above=above)
    interface, name = f"rdma{number}", f"mlx5_{number}"
    machine.add_interface(interface, device=device, speed=400_000, mtu=4200)
    machine.add_rdma(name, device=device, link_layer="Ethernet", gids=roce_gids(interface))
    port = machine.sysfs / f"class/infiniband/{name}/ports/1"
    machine.set_counters(port / "counters", **dict.fromkeys(PORT_COUNTERS, 0))
    machine.set_counters(port / "hw_counters", **dict.fromkeys(HARDWARE_COUNTERS, 0))


def cores():
    """CPUs of this process, which the machine of folders is to have."""
    return max(os.sched_getaffinity(0)) + 1
