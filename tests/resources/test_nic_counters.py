"""Counters of NICs other than bytes: packets, congestion and errors."""

from __future__ import annotations

import time

import pytest
from fake_machine import roce_gids
from fake_nvml import FakeNvml
from timers import FAR_S

from workbench.resources import Unknown
from workbench.resources.counters import Sampler

FIRST = Unknown("needs two samples")
PLAIN = Unknown("plain NIC: no RDMA device")
# As of a ConnectX-7 of an HGX H100 host (its sysfs in leptonai/gpud, testdata).
INFINIBAND = {
    "port_xmit_packets": 315_487_941_081,
    "port_rcv_packets": 317_548_853_677,
    "port_rcv_errors": 14,
    "symbol_error": 0,
    "link_downed": 0,
    "excessive_buffer_overrun_errors": 15,
}
HARDWARE = {"out_of_sequence": 0, "packet_seq_err": 0, "roce_adp_retrans": 3, "lifespan": 12}
ROCE = {"np_cnp_sent": 10, "rp_cnp_handled": 20, "np_ecn_marked_roce_packets": 30}


def sampler(machine):
    return Sampler(**machine.roots, nvml=FakeNvml(), errors_s=0.0, time_limit_s=FAR_S)


def port(machine, name="mlx5_0"):
    return machine.sysfs / f"class/infiniband/{name}/ports/1"


def infiniband(machine):
    machine.add_rdma("mlx5_0", device=machine.add_pci("0000:1a:00.0"))
    machine.set_counters(port(machine) / "counters", **INFINIBAND)
    machine.set_counters(port(machine) / "hw_counters", **HARDWARE)


def roce(machine, **options):
    pci = machine.add_pci("0000:3b:00.0")
    machine.add_interface("ens1", device=pci)
    machine.add_rdma("mlx5_0", device=pci, link_layer="Ethernet", gids=roce_gids("ens1"), **options)


def after(machine, *changes, seconds=0.05):
    """The one NIC after each change, and the longest that can lie between two readings."""
    found = []
    with sampler(machine) as live:
        began = time.monotonic()
        live.sample()
        for change in changes:
            time.sleep(seconds)
            change()
            found += live.sample().nics
        return *found, time.monotonic() - began


def rate(value, count, elapsed, seconds=0.05):
    """Whether a rate is what a count gives over a time between these two."""
    return count / elapsed <= value <= count / seconds


def test_packets_of_an_interface(machine):
    """Plain NICs count packets too; of RDMA there is nothing to count."""
    folder = machine.add_interface("eth0") / "statistics"
    nic, elapsed = after(
        machine, lambda: machine.set_counters(folder, tx_packets=70, rx_packets=140)
    )
    assert rate(nic.tx_packets_per_s, 70, elapsed)
    assert rate(nic.rx_packets_per_s, 140, elapsed)
    for value in (nic.rdma_tx_packets_per_s, nic.cnp_sent_per_s, nic.ecn_marked_per_s):
        assert value == PLAIN


def test_errors_of_an_interface(machine):
    """Its drops and errors have their own names; those that do not move are zero."""
    folder = machine.add_interface("eth0") / "statistics"
    nic, elapsed = after(machine, lambda: machine.set_counters(folder, rx_dropped=3))
    assert set(nic.errors) == {"rx_dropped", "tx_dropped", "rx_errors", "tx_errors"}
    assert rate(nic.errors["rx_dropped"], 3, elapsed)
    assert nic.errors["tx_errors"] == 0.0


def test_infiniband(machine):
    """A port's own packets are all there are; congestion notifications belong to RoCE."""
    infiniband(machine)

    def change():
        sent = INFINIBAND["port_xmit_packets"] + 500
        machine.set_counters(port(machine) / "counters", port_xmit_packets=sent)
        machine.set_counters(port(machine) / "hw_counters", out_of_sequence=9)

    nic, elapsed = after(machine, change)
    assert rate(nic.rdma_tx_packets_per_s, 500, elapsed)
    assert nic.tx_packets_per_s == nic.rdma_tx_packets_per_s
    assert nic.rx_packets_per_s == 0.0
    assert nic.cnp_sent_per_s == Unknown("the driver of mlx5_0 has no np_cnp_sent")
    assert rate(nic.errors["out_of_sequence"], 9, elapsed)


def test_only_errors_that_the_driver_counts(machine):
    """Names are the driver's; what it has not is left out, and so is what is no error."""
    infiniband(machine)
    nic, _ = after(machine, lambda: None)
    assert set(nic.errors) == {
        "port_rcv_errors",
        "symbol_error",
        "link_downed",
        "excessive_buffer_overrun_errors",
        "out_of_sequence",
        "packet_seq_err",
        "roce_adp_retrans",
    }


def test_a_counter_that_is_full(machine):
    """InfiniBand's counters stop at their most: that is no rate of zero."""
    infiniband(machine)
    full = {"port_xmit_data": 0xFFFFFFFF, "link_downed": 255}
    machine.set_counters(port(machine) / "counters", **full)
    nic, _ = after(machine, lambda: None)
    for value in (
        nic.rdma_tx_bytes_per_s,
        nic.errors["link_downed"],
        nic.errors["excessive_buffer_overrun_errors"],  # 15 of 4 bits, on the real host
    ):
        assert "may not count any further" in value.reason
    assert nic.errors["symbol_error"] == 0.0


def test_congestion_of_roce(machine):
    """Notifications sent, obeyed, and packets marked by a switch, each per second."""
    roce(machine)
    folder = port(machine) / "hw_counters"
    machine.set_counters(folder, **ROCE)
    nic, elapsed = after(
        machine, lambda: machine.set_counters(folder, **{k: v + 6 for k, v in ROCE.items()})
    )
    for value in (nic.cnp_sent_per_s, nic.cnp_handled_per_s, nic.ecn_marked_per_s):
        assert rate(value, 6, elapsed)


def test_packets_of_roce_add_up(machine):
    """The kernel's packets and RDMA's are added; the errors of both are listed."""
    roce(machine)
    machine.set_counters(port(machine) / "counters", port_xmit_packets=0, port_rcv_errors=0)
    statistics = machine.sysfs / "class/net/ens1/statistics"

    def change():
        machine.set_counters(port(machine) / "counters", port_xmit_packets=100)
        machine.set_counters(statistics, tx_packets=10)

    nic, elapsed = after(machine, change)
    assert rate(nic.rdma_tx_packets_per_s, 100, elapsed)
    assert rate(nic.tx_packets_per_s, 110, elapsed)
    assert {"port_rcv_errors", "rx_dropped"} <= set(nic.errors)


def test_a_reset_of_rdma_leaves_no_part_of_the_sum(machine):
    """If RDMA's counter was reset, the sum is unknown: the kernel's part would mislead."""
    roce(machine)
    machine.set_rdma_words("mlx5_0", 10**9, 0)

    def reset():
        machine.set_rdma_words("mlx5_0", 5, 0)
        machine.set_bytes("ens1", 100, 0)

    def go_on():
        machine.set_rdma_words("mlx5_0", 1005, 0)

    during, afterwards, elapsed = after(machine, reset, go_on)
    assert isinstance(during.tx_bytes_per_s, Unknown)
    assert rate(afterwards.tx_bytes_per_s, 4000, elapsed)


def test_pvrdma(machine):
    """PVRDMA has no counters, and that is the reason; the interface's own counters continue."""
    roce(machine, hca_type="VMW_PVRDMA-1.0.1.0-k", counters=False)
    folder = machine.sysfs / "class/net/ens1/statistics"
    nic, elapsed = after(machine, lambda: machine.set_counters(folder, tx_packets=40))
    why = Unknown("no counters for PVRDMA: its driver has none")
    for value in (nic.rdma_tx_packets_per_s, nic.cnp_sent_per_s, nic.ecn_marked_per_s):
        assert value == why
    assert rate(nic.tx_packets_per_s, 40, elapsed)
    assert set(nic.errors) == {"rx_dropped", "tx_dropped", "rx_errors", "tx_errors"}


def test_pvrdma_without_an_interface(machine):
    """With nothing that counts at all, the errors are not known either."""
    device = machine.add_pci("0000:0b:00.1", vendor="0x15ad")
    machine.add_rdma("vmw_pvrdma0", device=device, hca_type="VMW_PVRDMA-1.0.1.0-k", counters=False)
    nic, _ = after(machine, lambda: None)
    assert nic.errors == Unknown("no counters for PVRDMA: its driver has none")


def test_a_driver_that_counts_elsewhere(machine):
    """AWS's EFA counts bytes among its hardware counters, not words of a port."""
    machine.add_rdma(
        "efa_0", device=machine.add_pci("0000:10:1b.0", vendor="0x1d0f"), hca_type="EFA",
        link_layer="Unspecified", counters=False,
    )  # fmt: skip
    folder = port(machine, "efa_0") / "hw_counters"
    machine.set_counters(folder, tx_bytes=0, rx_bytes=0, tx_pkts=0, rx_pkts=0, rx_drops=0)
    nic, elapsed = after(
        machine, lambda: machine.set_counters(folder, tx_bytes=9000, rx_pkts=4, rx_drops=2)
    )
    assert rate(nic.rdma_tx_bytes_per_s, 9000, elapsed)
    assert rate(nic.rdma_rx_packets_per_s, 4, elapsed)
    assert nic.rx_bytes_per_s == 0.0
    assert rate(nic.errors["rx_drops"], 2, elapsed)


def test_errors_are_asked_for_less_often(machine):
    """Firmware answers for a port's errors: their rates are kept until the next query."""
    infiniband(machine)
    with Sampler(**machine.roots, nvml=FakeNvml(), errors_s=3600.0) as live:
        assert live.sample().nics[0].errors["out_of_sequence"] == FIRST
        live.sample()
        machine.set_counters(port(machine) / "hw_counters", out_of_sequence=9)
        assert live.sample().nics[0].errors["out_of_sequence"] == 0.0


def test_an_interface_that_goes(machine):
    """A NIC that is taken away is no longer in the sample; the others stay."""
    for name in ("eth0", "eth1"):
        machine.add_interface(name)
    with sampler(machine) as live:
        live.sample()
        (machine.sysfs / "class/net/eth0").unlink()
        assert [nic.name for nic in live.sample().nics] == ["eth1"]


@pytest.mark.parametrize("text", ["", "no number"])
def test_a_counter_that_cannot_be_understood(machine, text):
    """Costs its own rate, with the reason."""
    folder = machine.add_interface("eth0") / "statistics"
    machine.write(folder / "tx_packets", text)
    nic, _ = after(machine, lambda: None)
    assert "no integer" in nic.tx_packets_per_s.reason
    assert nic.rx_packets_per_s == 0.0
