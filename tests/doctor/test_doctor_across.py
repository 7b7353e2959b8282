"""Rules over several VMs: each with equal VMs and one that differs."""

from __future__ import annotations

from dataclasses import replace

import fake_machine
import pytest
from fake_machine import Machine, roce_gids
from fake_nvml import DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH, FakeNvml, Link, h100
from nvml_machines import a100_guest, hgx_a100, hgx_h100
from pci_host import A, N, add_bridge, add_gpu, add_port
from topology_files import GPU, INFINIBAND, cpu, pci, switch, system

import workbench
from workbench.doctor import diagnose_all
from workbench.doctor.rules import ACROSS, LIVE, RULES, rule_count
from workbench.resources import NcclSettings, Snapshot, Unknown


@pytest.fixture
def snap(tmp_path):
    """A snapshot of a VM: `build` sets it up, `host` replaces values of it."""
    taken = []

    def snap(nvml=None, build=None, nccl=None, **host):
        machine = Machine(tmp_path / str(len(taken)))
        if build:
            build(machine)
        settings = NcclSettings(nccl or {}, machine.sysfs.parent)
        one = fake_machine.snap(machine, nvml or FakeNvml(h100()), nccl=settings)
        gpus = tuple(replace(gpu, uuid=f"{gpu.uuid}-of-{len(taken)}") for gpu in one.gpus)
        taken.append(replace(one, gpus=gpus, host=replace(one.host, **host)))
        return taken[-1]

    return snap


def vms(*snapshots):
    return {f"vm{number}": snapshot for number, snapshot in enumerate(snapshots, 1)}


def only(*snapshots):
    """The one finding about VMs; it is the same for snapshots from files."""
    (finding,) = diagnose_all(vms(*snapshots))
    sent = vms(*(Snapshot.from_json(one.to_json()) for one in snapshots))
    assert diagnose_all(sent) == [finding]
    assert all((finding.subject, finding.evidence, finding.why, finding.fix, finding.source))
    return finding


def roce(**port):
    def build(machine):
        device = machine.add_pci("0000:3b:00.0")
        machine.add_interface("ens0", device=device, mtu=port.pop("mtu", 9000))
        values = {"link_layer": "Ethernet", "gids": roce_gids("ens0"), **port}
        folder = machine.add_rdma("mlx5_0", device=device, **values)
        machine.write(folder / "fw_ver", firmware)

    firmware = port.pop("firmware", "28.41.1000")
    return build


@pytest.mark.parametrize("build", [hgx_a100, hgx_h100, lambda: a100_guest("A100-40C", 40, 2)])
def test_equal_vms(snap, build):
    """Nothing is found in equal VMs, in one, and in none."""
    assert diagnose_all(vms(*(snap(build(), roce()) for _ in range(3)))) == []
    assert diagnose_all(vms(snap(build(), roce()))) == []
    assert diagnose_all({}) == []


def test_it_is_public():
    """It is public as `diagnose` is, and its rules have names of their own."""
    assert workbench.diagnose_all is diagnose_all
    assert rule_count(ACROSS) == 13
    assert not {rule.name for rule in ACROSS} & {rule.name for rule in (*RULES, *LIVE)}


def test_unknown_is_no_difference(snap):
    """A VM of which nothing is known does not differ from the others."""
    nothing = snap()
    unread = {name: Unknown("x") for name in nothing.host.__dataclass_fields__}
    nothing = replace(nothing, host=replace(nothing.host, **unread), pcie=Unknown("x"))
    assert diagnose_all(vms(snap(), snap(), nothing)) == []


def test_most_and_none(snap):
    """The VM that differs from most is named; if no value has a majority, all are."""
    few, many = (lambda: snap(cpus=4)), (lambda: snap(cpus=16))
    finding = only(many(), few(), many(), many())
    assert finding.subject == "vm2"
    assert finding.evidence == "vm2 has 4 usable cores; the other 3 have 16 usable cores"
    finding = only(few(), many())
    assert finding.subject == "vm1, vm2"
    assert finding.evidence == "vm1 has 4 usable cores; vm2 has 16 usable cores"


def test_many_that_differ(snap):
    """Of many VMs the first few are named, and the rest are counted."""
    found = only(*(snap(cpus=4) for _ in range(6)), *(snap(cpus=8) for _ in range(7)))
    assert found.subject == "vm1, vm2, vm3, vm4 and 2 more"


# same_gpu_twice


def test_the_same_gpu(snap):
    """One VM under two names, or two containers with one GPU, is an error."""
    one = snap()
    finding = only(one, snap(), one)
    assert (finding.rule, finding.severity, finding.subject) == (
        "same_gpu_twice",
        "error",
        "vm1, vm3",
    )
    assert str(one.gpus[0].uuid) in finding.evidence


# gpus_unlike


def test_number_of_gpus(snap):
    """Fewer GPUs are a warning; a VM without any, or whose driver fails, is an error."""
    finding = only(snap(hgx_h100()), snap(FakeNvml(*hgx_h100().devices[:4])), snap(hgx_h100()))
    assert (finding.rule, finding.severity, finding.subject) == ("gpus_unlike", "warning", "vm2")
    assert finding.evidence == "vm2 has 4 GPUs; the other 2 have 8 GPUs"
    absent = only(snap(), snap(), snap(FakeNvml(init_error=DRIVER_NOT_LOADED)))
    assert (absent.severity, absent.subject) == ("error", "vm3")
    assert "vm3 has no GPU; the other 2 have 1 GPU" in absent.evidence
    failed = only(snap(), snap(), snap(FakeNvml(init_error=LIB_RM_VERSION_MISMATCH)))
    assert "no GPU that answers" in failed.evidence


def test_form_of_gpus(snap):
    """Another model or another vGPU profile is reported."""
    finding = only(*(snap(a100_guest(f"A100-{gb}C", gb)) for gb in (40, 40, 20)))
    assert (finding.rule, finding.subject) == ("gpus_unlike", "vm3")
    assert "A100-20C" in finding.evidence
    assert "A100-40C" in finding.evidence


# drivers_unlike


def test_drivers(snap):
    """Another driver is reported with its CUDA version."""
    finding = only(snap(), snap(), snap(FakeNvml(h100(), driver="535.104.05", cuda=12_020)))
    assert (finding.rule, finding.subject) == ("drivers_unlike", "vm3")
    assert "NVIDIA driver 535.104.05 (CUDA 12.2)" in finding.evidence


# licences_unlike


def test_licence_on_one(snap):
    """The VMs without a licence are the subject, even if they are the majority."""
    finding = only(*(snap(a100_guest("A100-40C", 40, licensed=n == 1)) for n in range(3)))
    assert (finding.rule, finding.subject) == ("licences_unlike", "vm1, vm3")


# nvlinks_unlike, ecc_unlike


def test_nvlinks(snap):
    """GPUs with fewer links up than those of other VMs."""
    fewer = hgx_a100()
    for index, gpu in enumerate(fewer.devices):
        links = tuple(Link(up=number < 8) for number in range(12))
        fewer.devices[index] = replace(gpu, links=links)
    finding = only(snap(hgx_a100()), snap(hgx_a100()), snap(fewer))
    assert (finding.rule, finding.subject) == ("nvlinks_unlike", "vm3")
    assert "8 NVLinks up per GPU; the other 2 have 12" in finding.evidence


def test_peers_of_vgpus(snap):
    """Only the vGPUs of one VM may not use NVLink."""
    finding = only(*(snap(a100_guest("A100-40C", 40, 2, p2p=p2p)) for p2p in (0, 0, 5)))
    assert finding.rule == "nvlinks_unlike"
    assert "vm3 has NVLink between no pairs of GPUs" in finding.evidence


def test_ecc(snap):
    """ECC off on one VM is good to know."""
    off = FakeNvml(h100(ecc=(0, 0)))
    finding = only(*(snap(FakeNvml(h100(ecc=(1, 1)))) for _ in range(2)), snap(off))
    assert (finding.rule, finding.severity, finding.subject) == ("ecc_unlike", "info", "vm3")


# rdma_unlike


@pytest.mark.parametrize(
    ("port", "severity", "evidence"),
    [
        ({"rate": "200 Gb/sec (4X HDR)"}, "warning", "vm3 has 200 Gb/s; the other 2 have 400 Gb/s"),
        ({"mtu": 1500}, "warning", "vm3 has MTU 1500; the other 2 have MTU 9000"),
        ({"state": "1: DOWN"}, "warning", "vm3 has no active RDMA ports; the other 2 have 1"),
        ({"link_layer": "InfiniBand"}, "error", "vm3 has RDMA over InfiniBand"),
        ({"firmware": "28.39.1002"}, "info", "MT4129 with firmware 28.39.1002"),
    ],
)
def test_rdma(snap, port, severity, evidence):
    """Rate, MTU, state, link layer and firmware of the RDMA ports are compared."""
    finding = only(snap(build=roce()), snap(build=roce()), snap(build=roce(**port)))
    assert (finding.rule, finding.severity, finding.subject) == ("rdma_unlike", severity, "vm3")
    assert evidence in finding.evidence


# gpudirect_unlike, topology_files_unlike


def near(machine):
    upstream = add_bridge(machine, "0000:50:00.0", add_bridge(machine, "0000:00:01.0"))
    add_gpu(machine, A, add_bridge(machine, "0000:51:01.0", upstream))
    add_port(machine, N, "mlx5_0", add_bridge(machine, "0000:51:02.0", upstream))


def far(machine):
    add_gpu(machine, A)
    add_port(machine, N, "mlx5_0")


def test_gpudirect(snap):
    """Only one VM's GPU has no near port."""
    finding = only(snap(build=near), snap(build=near), snap(build=far))
    assert (finding.rule, finding.subject) == ("gpudirect_unlike", "vm3")
    assert "GPUDirect RDMA for 0 of 1 GPUs; the other 2 have" in finding.evidence


def test_topology_file_on_one(snap, tmp_path):
    """A file that only one VM has, or that differs."""
    text = system(cpu(0, switch(1, pci(A, GPU), pci(N, INFINIBAND))))
    file, other = tmp_path / "file.xml", tmp_path / "other.xml"
    file.write_text(text)
    other.write_text(text.replace(f'"{N}"', f'"{N}"').replace(pci(N, INFINIBAND), ""))
    with_file = {"NCCL_TOPO_FILE": str(file)}
    finding = only(snap(build=near, nccl=with_file), snap(build=near), snap(build=near))
    assert (finding.rule, finding.subject) == ("topology_files_unlike", "vm1")
    assert "a topology file of 1 GPUs and 1 NICs; the other 2 have no topology file" in (
        finding.evidence
    )
    rules = [
        one.rule
        for one in diagnose_all(
            vms(
                *(snap(build=near, nccl=with_file) for _ in range(2)),
                snap(build=near, nccl={"NCCL_TOPO_FILE": str(other)}),
            )
        )
    ]
    assert "topology_files_unlike" in rules


# nccl_settings_unlike


def test_settings(snap):
    """A setting on one VM only is reported; settings that may differ are not."""
    finding = only(snap(nccl={"NCCL_PROTO": "LL"}), snap(), snap())
    assert (finding.rule, finding.subject) == ("nccl_settings_unlike", "vm1")
    assert "vm1 has NCCL_PROTO=LL; the other 2 have no NCCL_PROTO" in finding.evidence
    own = {"NCCL_SOCKET_IFNAME": "eth1", "NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5_2"}
    assert diagnose_all(vms(snap(nccl=own), snap(), snap())) == []


# machines_unlike


@pytest.mark.parametrize(
    ("values", "evidence"),
    [
        ({"memory_bytes": 32 << 30}, "vm3 has 32 GiB of memory; the other 2 have 62.5 GiB"),
        ({"memory_limit_bytes": 8 << 30}, "vm3 has 8 GiB of memory"),
        ({"numa_nodes": 1}, "vm3 has 1 NUMA node; the other 2 have 2 NUMA nodes"),
        ({"kernel": "5.10.0"}, "vm3 has kernel 5.10.0"),
    ],
)
def test_machines(snap, values, evidence):
    """Memory, NUMA nodes and kernels that differ are good to know."""
    finding = only(snap(), snap(), snap(**values))
    assert (finding.rule, finding.severity) == ("machines_unlike", "info")
    assert evidence in finding.evidence


def test_memory_that_is_nearly_the_same(snap):
    """Some MB that a kernel reserves are no difference."""
    assert diagnose_all(vms(snap(), snap(memory_bytes=(64_000_000 << 10)))) == []
