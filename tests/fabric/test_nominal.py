"""Published rates, the rates of a VM's links, the hops of a ring, and cost models."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import workbench as wb
from workbench import fabric
from workbench.errors import UsageError
from workbench.fabric import models, nominal
from workbench.ranks import RankInfo
from workbench.resources import Unknown
from workbench.widgets.fabric_figures import landscape_figure

HGX = wb.Snapshot.load(Path(__file__).parents[2] / "labextension/test/fixtures/hgx-h100-host.json")


def ranks(*places, nic="ib0, mlx5_0"):
    """Ranks on VMs with a GPU each: ``("vm1", "0")``."""
    return [
        RankInfo(number, vm, 1, gpu, "any", nic, "ready", 1)
        for number, (vm, gpu) in enumerate(places)
    ]


@pytest.mark.parametrize(
    ("rate", "published"),
    [
        # NVIDIA's sums of both directions are 300, 600, 900 and 1,800
        *[(nominal.nvlink_gb_per_s(generation), gb)
          for generation, gb in ((2, 150), (3, 300), (4, 450), (5, 900))],
        (nominal.pcie_gb_per_s(1, 16), 4),
        (nominal.pcie_gb_per_s(3, 16), 15.75),
        (nominal.pcie_gb_per_s(4, 16), 31.5),
        (nominal.pcie_gb_per_s(5, 16), 63),
        (nominal.pcie_gb_per_s(6, 16), 118),
        (nominal.infiniband_gbps("QDR"), 32),
        (nominal.infiniband_gbps("FDR"), 54.5),
        (nominal.infiniband_gbps("HDR"), 200),
        (nominal.infiniband_gbps("NDR"), 400),
    ],
)  # fmt: skip
def test_published_rates(rate, published):
    assert rate == pytest.approx(published, rel=0.002)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: nominal.pcie_gb_per_s(7, 16),
        lambda: nominal.pcie_gb_per_s(5, 0),
        lambda: nominal.nvlink_gb_per_s(9),
        lambda: nominal.infiniband_gbps("HDR", 3),
        lambda: fabric.ring_us(-1, 2, 1.0),
        lambda: fabric.ring_us(1, 2, 0.0),
        lambda: fabric.ring_us(1, 2, math.nan),
        lambda: fabric.ring_us(1, 0, 1.0),
        lambda: fabric.ring_us(1, math.nan, 1.0),
        *[lambda model=model, latency=latency: model(1e6, 4, 10, latency)
          for model in (fabric.ring_us, fabric.tree_us, fabric.halving_doubling_us)
          for latency in (math.nan, math.inf, -1.0)],
        lambda: fabric.busbw_factor("gather", 2),
        lambda: fabric.tcp_efficiency(50),
        lambda: fabric.rdma_efficiency(0),
        lambda: fabric.weakest_hop(ranks(("vm1", "0")), {"vm1": HGX}),
    ],
)  # fmt: skip
def test_what_is_no_rate_is_refused(wrong):
    with pytest.raises(UsageError):
        wrong()


def test_the_landscape_of_an_hgx_host():
    """Equal links are one row; what the guest cannot see is unknown with its reason."""
    rows = {one.name: one for one in fabric.landscape(HGX, {"PCIe": 53.0, "mlx5_1": 44.0})}
    memory = rows["memory: GPU 0-7"]
    assert (memory.kind, memory.nominal_gb_per_s) == ("GPU memory", 3350)
    assert rows["NVLink, 18 links to NVSwitch: GPU 0-7"].nominal_gb_per_s == 450
    pcie = rows["PCIe 5.0 x16: GPU 0-7"]
    assert pcie.nominal_gb_per_s == pytest.approx(63.0, rel=0.001)
    assert pcie.measured_gb_per_s == 53.0
    ports = rows["InfiniBand 400 Gbit/s: mlx5_0, mlx5_1 and 6 more"]
    assert (ports.nominal_gb_per_s, ports.measured_gb_per_s) == (50, 44)
    assert "UPI" in rows["CPU to CPU: 2 NUMA nodes"].nominal_gb_per_s.reason
    assert all(isinstance(one.measured_gb_per_s, float | Unknown) for one in rows.values())


def test_a_virtual_rdma_device_has_no_rate_of_its_own():
    """The guest does not see the host's NIC behind PVRDMA."""
    port = replace(HGX.nics[0], hca_type="VMW_PVRDMA-10.1.1.1")
    assert "PVRDMA" in nominal.nic_gbps(port).reason


def test_a_speed_of_0_is_unknown():
    """Drivers of virtual NICs report it; it has no share, and is not the weakest hop."""
    snapshot = replace(HGX, nics=(replace(HGX.nics[0], rate_gbps=0.0),))
    assert isinstance(nominal.nic_gbps(snapshot.nics[0]), Unknown)
    found = fabric.landscape(snapshot, {"mlx5_0": 44.0})
    assert "unknown: the driver reports no speed" in repr(landscape_figure({"": found})._values)
    places = ranks(("vm1", "CPU"), ("vm2", "CPU"))
    hop = fabric.weakest_hop(places, {"vm1": snapshot, "vm2": snapshot})
    assert "the driver reports no speed" in hop.reason


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("Tesla P100-PCIE-16GB", 732),
        ("Tesla V100-SXM2-16GB", 900),
        ("Tesla V100S-PCIE-32GB", 1134),
        ("Quadro GV100", 870),
        ("Tesla T4", 320),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100-PCIE-40GB", 1555),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA L4", 300),
        ("NVIDIA H100 NVL", 3900),
        ("NVIDIA H200", 4800),
        ("NVIDIA GH200 480GB", 4000),
        ("NVIDIA B200", 8000),
        *((other, None) for other in ("NVIDIA T400", "NVIDIA L400", "XH200", "NVIDIA A1000")),
    ],
)
def test_memory_rates_are_those_of_the_same_gpu(name, rate):
    """By the whole name that the driver reports; another product's is unknown."""
    found = nominal.memory_gb_per_s(replace(HGX.gpus[0], name=name))
    assert isinstance(found, Unknown) if rate is None else found == rate


def test_two_ranks_on_one_gpu_have_no_link():
    hops = fabric.ring_hops(ranks(("vm1", "0"), ("vm1", "0")), {"vm1": HGX})
    assert {(hop.name, hop.kind) for hop in hops} == {("memory of GPU 0 of vm1", "GPU memory")}
    assert "both ranks use this GPU" in hops[0].gb_per_s.reason


def test_a_ring_within_a_vm_uses_nvlink():
    hop = fabric.weakest_hop(ranks(("vm1", "0 (H100)"), ("vm1", "3 (H100)")), {"vm1": HGX})
    assert (hop.kind, hop.gb_per_s, hop.vm) == ("NVLink", 450, "vm1")
    assert (hop.devices, hop.end) == ((HGX.gpus[0].pci_address, HGX.gpus[3].pci_address), "")


def test_the_weakest_hop_is_the_slowest_nic_between_vms():
    """Of two VMs, the one with the slower NIC is named; the others' hops are faster."""
    slow = replace(HGX, nics=(replace(HGX.nics[0], rate_gbps=100.0), *HGX.nics[1:]))
    places = [("vm1", "0"), ("vm1", "1"), ("vm2", "0"), ("vm2", "1")]
    snapshots = {"vm1": HGX, "vm2": slow}
    hop = fabric.weakest_hop(ranks(*places), snapshots)
    assert str(hop) == "NIC ib0, mlx5_0 of vm2, 100 Gbit/s: 12.5 GB/s (rank 1 to 2)"
    assert hop.end == slow.nics[0].name
    hops = fabric.ring_hops(ranks(*places), snapshots)
    pcie = [one.end for one in hops if one.kind == "PCIe" and one.ranks == (1, 2)]
    gpus, nic = (HGX.gpus[1], slow.gpus[0]), slow.nics[0].pci_address
    assert pcie == [gpus[0].pci_address, nic, gpus[1].pci_address, nic]
    kinds = [one.kind for one in hops]
    assert kinds.count("network") == 4  # out of and into each VM


def test_hops_of_interleaved_ranks_share_the_nic():
    """Ranks of two VMs in turn cross each NIC twice as often as ranks side by side."""
    places = [("vm1", "CPU"), ("vm2", "CPU")] * 2
    hop = fabric.weakest_hop(ranks(*places), {"vm1": HGX, "vm2": HGX})
    assert hop.gb_per_s == pytest.approx(25)
    assert "shared by 2 hops" in hop.name


def test_what_no_snapshot_shows_is_unknown():
    hop = fabric.weakest_hop(ranks(("vm1", "CPU"), ("vm2", "CPU")), {})
    assert "did not answer" in hop.reason
    hop = fabric.weakest_hop(ranks(("vm1", "CPU"), ("vm1", "CPU")), {"vm1": HGX})
    assert "host's memory" in hop.reason


def test_models_by_hand():
    """1 MB on 4 ranks at 8 Gbit/s (1 ms per MB), 10 us per message."""
    mb = 1_000_000
    assert fabric.ring_us(mb, 4, 8.0, 10) == pytest.approx(6 * 10 + 1500)
    assert fabric.halving_doubling_us(mb, 4, 8.0, 10) == pytest.approx(4 * 10 + 1500)
    assert fabric.tree_us(mb, 4, 8.0, 10) == pytest.approx(4 * 10 + 2000)
    assert fabric.reduce_scatter_us(mb, 4, 8.0, 10) == pytest.approx(3 * 10 + 750)
    assert fabric.broadcast_us(mb, 4, 8.0, 10) == pytest.approx(2 * 10 + 1000)
    # 2 VMs of 2 ranks, ten times as fast within: 2 * (1/2 * 0.1 ms) + 2 * 1/2 * (1/2 MB)
    hierarchical = fabric.hierarchical_us(mb, 2, 2, 80.0, 8.0, within_us=1, between_us=10)
    assert hierarchical == pytest.approx(2 * (1 + 50) + 2 * 10 + 500)
    for model in (fabric.ring_us, fabric.tree_us, fabric.all_to_all_us, fabric.broadcast_us):
        assert model(mb, 1, 8.0, 10) == 0


def test_bus_bandwidth_does_not_depend_on_the_number_of_ranks():
    """A ring at the link's rate has that rate as bus bandwidth, as in nccl-tests."""
    for kind, model in (("allreduce", fabric.ring_us), ("all-gather", fabric.all_gather_us)):
        for n in (2, 3, 8):
            algbw = 1e6 * 8 / (model(1e6, n, 10.0) * 1e3)
            assert algbw * fabric.busbw_factor(kind, n) == pytest.approx(10.0)


def test_protocols_leave_less_than_the_rate():
    """TCP with an MTU of 1500 on Ethernet 94.1 %, with 9000 99.0 %; RoCE v2 at 4096 98 %."""
    assert fabric.tcp_efficiency() == pytest.approx(0.941, abs=0.001)
    assert fabric.tcp_efficiency(9000) == pytest.approx(0.990, abs=0.001)
    assert 1 / fabric.tcp_efficiency(1500, 14) - 1 == pytest.approx(0.046, abs=0.001)
    assert fabric.rdma_efficiency() == pytest.approx(0.980, abs=0.001)
    shares = [models.rdma_efficiency(mtu, "InfiniBand") for mtu in (256, 1024, 4096)]
    assert all(a < b < 1 for a, b in pairwise(shares))
