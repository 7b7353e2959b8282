"""Rules on the host, RoCE, NUMA and NCCL's settings: one good and one bad snapshot each."""

from __future__ import annotations

from dataclasses import replace

import fake_machine
import pytest
from fake_machine import roce_gids
from fake_nvml import DRIVER_NOT_LOADED, FakeNvml, h100
from pci_host import add_bridge, add_gpu

from workbench.doctor import diagnose
from workbench.resources import UNLIMITED, NcclSettings, Snapshot, Unknown, take_snapshot

GPUS = ("0000:53:00.0", "0000:54:00.0")
V1_ONLY = {0: ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "IB/RoCE v1", "ens0")}


def two_gpus():
    return FakeNvml(*(h100(bus_id=f"0000{address}") for address in GPUS))


def no_gpu():
    return FakeNvml(init_error=DRIVER_NOT_LOADED)


def snap(machine, nvml=None, nccl=None, **host):
    """A VM with good limits, whatever this machine's are."""
    settings = NcclSettings(nccl or {}, machine.sysfs.parent)
    snapshot = fake_machine.snap(machine, nvml or two_gpus(), nccl=settings)
    values = {"shm_bytes": 8 << 30, "memlock_bytes": UNLIMITED, "open_files": 65536, **host}
    return replace(snapshot, host=replace(snapshot.host, **values))


def found(snapshot, rule):
    return [finding for finding in diagnose(snapshot) if finding.rule == rule]


def only(snapshot):
    """The only finding; it is the same for a snapshot from a file."""
    (finding,) = diagnose(snapshot)
    assert diagnose(Snapshot.from_json(snapshot.to_json())) == [finding]
    return finding


def add_roce(machine, number=0, above="pci0000:00", **port):
    pci = machine.add_pci(f"0000:3b:00.{number}", driver="mlx5_core", above=above)
    machine.add_interface(f"ens{number}", device=pci, mtu=9000)
    values = {"link_layer": "Ethernet", "gids": roce_gids(f"ens{number}")}
    machine.add_rdma(f"mlx5_{number}", device=pci, **{**values, **port})


def test_nothing_is_wrong_with_a_good_machine(machine):
    """Two GPUs under a switch, RoCE, a good clock and plain settings of NCCL: no finding."""
    upstream = add_bridge(machine, "0000:50:00.0", add_bridge(machine, "0000:00:01.0"))
    for number, address in enumerate(GPUS):
        add_gpu(machine, address, add_bridge(machine, f"0000:51:0{number}.0", upstream))
    add_roce(machine, above=add_bridge(machine, "0000:51:02.0", upstream))
    good = {"NCCL_IB_GID_INDEX": "3", "NCCL_NET": "IB", "NCCL_IB_DISABLE": "0"}
    assert diagnose(snap(machine, nccl=good, usable_numa_nodes=(0,))) == []


def test_nothing_known_nothing_wrong(tmp_path):
    """If everything is unknown, no rule finds anything."""
    no = tmp_path / "no"
    snapshot = take_snapshot(
        sysfs=no, procfs=no, devfs=no, nvml=no_gpu(), nccl=NcclSettings({}, no)
    )
    unread = {name: Unknown("x") for name in snapshot.host.__dataclass_fields__}
    assert diagnose(replace(snapshot, host=replace(snapshot.host, **unread))) == []


# open_files_limit


@pytest.mark.parametrize(("limit", "severity"), [(1024, "info"), (256, "warning")])
def test_few_open_files(machine, limit, severity):
    """With GPUs the usual limit is good to know, a lower one is a warning."""
    finding = only(snap(machine, open_files=limit))
    assert (finding.rule, finding.severity) == ("open_files_limit", severity)
    assert f"{limit} files" in finding.evidence
    assert "ulimit -n" in finding.fix


@pytest.mark.parametrize("limit", [1025, UNLIMITED, Unknown("x")])
def test_enough_open_files(machine, limit):
    """A higher limit, none, or one that is not known is no finding."""
    assert diagnose(snap(machine, open_files=limit)) == []


def test_usual_open_files_without_gpus(machine):
    """The limit that every login gets is no finding on a VM without GPUs."""
    assert diagnose(snap(machine, no_gpu(), open_files=1024)) == []


# memory_limit


def test_memory_limit(machine):
    """A cgroup limit below half of the memory is reported with both numbers."""
    machine.write(machine.sysfs / "fs/cgroup/memory.max", str(8 << 30))
    finding = only(snap(machine))
    assert (finding.rule, finding.severity) == ("memory_limit", "info")
    assert "8 GiB of the VM's 62.5 GiB (13%)" in finding.evidence


@pytest.mark.parametrize("limit", ["max", str(40 << 30)])
def test_memory_limit_that_is_high(machine, limit):
    """No limit, or one that leaves most of the memory, is no finding."""
    machine.write(machine.sysfs / "fs/cgroup/memory.max", limit)
    assert diagnose(snap(machine)) == []


# clock_source


@pytest.mark.parametrize("name", ["acpi_pm", "hpet"])
def test_slow_clock(machine, name):
    """A clock that is a device is a warning with its name."""
    machine.set_clock_source(name)
    finding = only(snap(machine))
    assert (finding.rule, finding.severity) == ("clock_source", "warning")
    assert name in finding.evidence
    assert "available_clocksource" in finding.fix


@pytest.mark.parametrize(
    "name", ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen", "arch_sys_counter"]
)
def test_fast_clock(machine, name):
    """The CPU's counter and the hypervisors' own clocks are fine."""
    machine.set_clock_source(name)
    assert diagnose(snap(machine)) == []


# rdma_without_device_nodes


def test_container_without_rdma_devices(machine):
    """A container that was not given the devices shows the host's RDMA in sysfs only."""
    add_roce(machine)
    (machine.devfs / "infiniband/uverbs0").unlink()
    machine.write(machine.devfs / "infiniband/rdma_cm", "")
    machine.write(machine.procfs / "self/root/.dockerenv", "")
    finding = only(snap(machine))
    assert (finding.rule, finding.severity) == ("rdma_without_device_nodes", "error")
    assert finding.subject == "the docker container"
    assert "mlx5_0" in finding.evidence
    assert finding.fix.startswith("`docker run --device=/dev/infiniband")


def test_vm_without_uverbs(machine):
    """On a VM itself the kernel module is missing."""
    add_roce(machine)
    assert "modprobe ib_uverbs" in only(snap(machine, rdma_device_nodes=())).fix
    assert diagnose(snap(machine, rdma_device_nodes=Unknown("needs root"))) == []


def test_no_rdma_no_device_nodes(machine):
    """Without RDMA nothing is missing in /dev/infiniband."""
    assert diagnose(snap(machine)) == []


# roce_without_v2_gid


@pytest.mark.parametrize(
    ("gids", "evidence", "fix"),
    [
        (V1_ONLY, "all 1 entries of its GID table are RoCE v1", "RoCE mode"),
        ({}, "no entry of its GID table", "ip addr add ADDRESS/PREFIX dev ens0"),
    ],
)
def test_roce_without_v2(machine, gids, evidence, fix):
    """An active RoCE port without any address of RoCE v2 is a warning."""
    add_roce(machine, gids=gids)
    finding = only(snap(machine))
    assert (finding.rule, finding.subject) == ("roce_without_v2_gid", "mlx5_0")
    assert evidence in finding.evidence
    assert fix in finding.fix


def test_ethernet_rdma_that_may_be_iwarp(machine):
    """A driver that may use iWARP, whose ports have no RoCE v2, gives no finding."""
    pci = machine.add_pci("0000:3b:00.0", driver="irdma")
    machine.add_rdma("irdma0", device=pci, link_layer="Ethernet", gids=V1_ONLY)
    assert found(snap(machine), "roce_without_v2_gid") == []


# roce_v1_gid


@pytest.mark.parametrize("setting", [{"NCCL_IB_GID_INDEX": "0"}, {"NCCL_IB_ROCE_VERSION_NUM": "1"}])
def test_roce_v1_by_setting(machine, setting):
    """A setting that leads to a GID of version 1 is a warning with the entry to take."""
    add_roce(machine)
    finding = only(snap(machine, nccl=setting))
    assert (finding.rule, finding.severity) == ("roce_v1_gid", "warning")
    assert "entry 0 of its GID table is IB/RoCE v1; entry 1 is RoCE v2" in finding.evidence
    assert next(iter(setting)) in finding.fix


@pytest.mark.parametrize("index", ["1", "3", "-1", "", "x", "99"])
def test_other_gid_indices(machine, index):
    """An entry of version 2, NCCL's own choice, or what is no number is not found wrong."""
    add_roce(machine)
    assert diagnose(snap(machine, nccl={"NCCL_IB_GID_INDEX": index})) == []


def test_gid_index_on_infiniband(machine):
    """On InfiniBand the entry's type says `IB/RoCE v1` too, and is right."""
    gids = {0: (V1_ONLY[0][0], "IB/RoCE v1", "ib0")}
    machine.add_rdma("mlx5_0", device=machine.add_pci("0000:1a:00.0"), gids=gids)
    assert diagnose(snap(machine, nccl={"NCCL_IB_GID_INDEX": "0"})) == []


# pvrdma


def test_pvrdma(machine):
    """VMware's adapter works; what it cannot do is good to know."""
    pci = machine.add_pci("0000:0b:00.1", vendor="0x15ad", driver="vmw_pvrdma")
    machine.add_interface("ens224", device=pci, mtu=9000)
    machine.add_rdma(
        "vmw_pvrdma0",
        device=pci,
        hca_type="VMW_PVRDMA-1.0.1.0-k",
        link_layer="Ethernet",
        gids=roce_gids("ens224"),
        counters=False,
    )
    finding = only(snap(machine))
    assert (finding.rule, finding.severity) == ("pvrdma", "info")
    assert "VMW_PVRDMA-1.0.1.0-k" in finding.evidence


# rdma_unused


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket"), ("NCCL_NET", "socket")],
)
def test_rdma_switched_off(machine, name, value):
    """A setting that leaves TCP only, where RDMA ports are active, is a warning."""
    add_roce(machine)
    finding = only(snap(machine, nccl={name: value}))
    assert (finding.rule, finding.severity) == ("rdma_unused", "warning")
    assert f"{name}={value} is set, and 1 RDMA port is active" in finding.evidence
    assert f"unset {name}" in finding.fix


def test_rdma_switched_off_by_file(machine, tmp_path):
    """Settings in /etc/nccl.conf count as well."""
    add_roce(machine)
    machine.write(tmp_path / "etc/nccl.conf", "NCCL_IB_DISABLE=1\n")
    assert only(snap(machine)).rule == "rdma_unused"


def test_tcp_where_there_is_no_rdma(machine):
    """Without an active RDMA port, NCCL over TCP is as it should be."""
    assert diagnose(snap(machine, nccl={"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"})) == []


# nccl_p2p_disabled, nccl_shm_disabled


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("NCCL_P2P_DISABLE", "1", "nccl_p2p_disabled"),
        ("NCCL_P2P_LEVEL", "LOC", "nccl_p2p_disabled"),
        ("NCCL_SHM_DISABLE", "1", "nccl_shm_disabled"),
    ],
)
def test_paths_between_gpus_switched_off(machine, name, value, rule):
    """Direct paths switched off are a warning with several GPUs, and no finding with one."""
    finding = only(snap(machine, nccl={name: value}))
    assert (finding.rule, finding.severity) == (rule, "warning")
    assert f"{name}={value} is set, with 2 GPUs" in finding.evidence
    assert diagnose(snap(machine, FakeNvml(h100()), nccl={name: value})) == []


@pytest.mark.parametrize("value", ["0", "", "yes"])
def test_settings_that_nccl_takes_for_off(machine, value):
    """NCCL reads a number: 0, nothing and words switch nothing off."""
    names = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE")
    add_roce(machine)
    assert diagnose(snap(machine, nccl=dict.fromkeys(names, value))) == []


# gpu_on_other_numa_node


def test_gpu_on_other_node(machine):
    """A GPU on a node without usable CPUs is reported with its node."""
    add_gpu(machine, GPUS[0], numa=0)
    add_gpu(machine, GPUS[1], numa=1)
    finding = only(snap(machine, usable_numa_nodes=(0,)))
    assert (finding.rule, finding.subject) == ("gpu_on_other_numa_node", "GPU 1")
    assert "NUMA node 1; this process may run on CPUs of node 0 only" in finding.evidence
    assert "numactl --cpunodebind=1 --membind=1" in finding.fix
    assert diagnose(snap(machine, usable_numa_nodes=(0, 1))) == []
    assert diagnose(snap(machine, usable_numa_nodes=Unknown("x"))) == []


# numa_unknown_in_vm


def test_no_numa_in_a_vm(machine):
    """Several GPUs without a NUMA node are good to know."""
    for address in GPUS:
        add_gpu(machine, address, numa=-1)
    machine.set_dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)")
    (finding,) = found(snap(machine), "numa_unknown_in_vm")
    assert finding.severity == "info"
    assert "KVM gives no NUMA node for 2 GPUs (0, 1)" in finding.evidence
    assert "NCCL_TOPO_FILE" in finding.fix


def test_no_numa_elsewhere(machine):
    """One GPU, an unknown hypervisor, or a topology file: no finding."""
    for address in GPUS:
        add_gpu(machine, address, numa=-1)
    rule = "numa_unknown_in_vm"
    assert found(snap(machine), rule) == []  # no hypervisor is known
    machine.set_dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)")
    assert found(snap(machine, FakeNvml(h100())), rule) == []
    snapshot = snap(machine)
    assert "NCCL_TOPO_FILE is not set" in found(snapshot, rule)[0].evidence
    snapshot = replace(snapshot, pcie=replace(snapshot.pcie, topology_file="/etc/vm.xml"))
    assert found(snapshot, rule) == []
