"""Rules on PCIe: distances, topology files, ACS and ATS, each with a good and a bad machine."""

from __future__ import annotations

import contextlib
import copy

import pytest
from fake_machine import CPUINFO_BARE, snap
from fake_nvml import Between, FakeNvml, h100
from nvml_machines import SYS, hgx_h100
from pci_host import (
    GPU,
    NIC,
    A,
    B,
    C,
    D,
    M,
    N,
    add_bridge,
    add_gpu,
    add_port,
    build_host,
    capabilities,
)
from topology_files import cpu, pci, switch, system

from workbench.doctor import diagnose
from workbench.errors import SnapshotError
from workbench.resources import UNLIMITED, NcclSettings, Snapshot

TRUE = system(cpu(0, switch(1, pci(A, GPU), pci(B, GPU), pci(N, NIC))))
ACS, ATS = 0x000D, 0x000F


def vm(machine):
    machine.set_dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)")
    return machine


def bare(machine):
    machine.set_dmi("Supermicro", "AS -4124GO-NART")
    machine.write(machine.procfs / "cpuinfo", CPUINFO_BARE)
    return machine


@pytest.fixture
def flat(machine):
    """A VM that shows two GPUs and a port on the root bus."""
    for address in (A, B):
        add_gpu(machine, address, numa=-1)
    add_port(machine, N, "mlx5_0", numa=-1)
    return vm(machine)


@pytest.fixture
def switched(machine):
    """A GPU and a port under one switch."""
    upstream = add_bridge(machine, "0000:50:00.0", add_bridge(machine, "0000:00:01.0"))
    add_gpu(machine, A, add_bridge(machine, "0000:51:01.0", upstream))
    add_port(machine, N, "mlx5_0", add_bridge(machine, "0000:51:02.0", upstream))
    return machine


def taken(machine, text=None, **environ):
    """A snapshot with two GPUs of NVML's, where NCCL_TOPO_FILE may name a file with a text."""
    if text is not None:
        file = machine.sysfs.parent / "topology.xml"
        file.write_text(text)
        environ["NCCL_TOPO_FILE"] = str(file)
    gpus = [h100(uuid=f"GPU-{a[5:7]}", bus_id=f"0000{a}") for a in (A, B)]
    return snap(machine, FakeNvml(*gpus), nccl=NcclSettings(environ, machine.sysfs.parent))


def found(snapshot, rule):
    return [one for one in diagnose(snapshot) if one.rule == rule]


def pcie_rules(snapshot):
    others = {"shm_size", "memlock_limit"}
    return {one.rule for one in diagnose(snapshot)} - others


def configure(machine, address, *entries):
    config = machine.sysfs / "bus/pci/devices" / address / "config"
    config.write_bytes(capabilities(*entries))


# gpu_nic_too_far and topology_file_missing


def test_flat_vm(flat):
    """A flat VM has GPUs too far from their port and no file; both are reported once for all."""
    snapshot = taken(flat)
    (far,) = found(snapshot, "gpu_nic_too_far")
    assert (far.subject, far.severity) == ("GPUs 0-1", "warning")
    assert "the nearest: mlx5_0, where PHB is beyond PXB" in far.evidence
    assert "NCCL_NET_GDR_LEVEL=PHB" in far.fix
    (missing,) = found(snapshot, "topology_file_missing")
    assert missing.severity == "warning"
    assert missing.evidence.startswith("KVM shows GPUs (2) and RDMA devices (1)")
    assert found(Snapshot.from_json(snapshot.to_json()), "topology_file_missing") == [missing]


def test_flat_vm_with_its_file(flat):
    """With the file that its vendor made, nothing is wrong, though file and kernel differ."""
    assert pcie_rules(taken(flat, TRUE)) == set()


def test_one_near_port_is_enough(machine):
    """On a host with two sockets, only the GPU that no port is near to is named."""
    (far,) = found(taken(build_host(bare(machine))), "gpu_nic_too_far")
    assert far.subject == D
    assert "the nearest: mlx5_1, where PHB" in far.evidence


def test_level_that_forbids(switched):
    """If NCCL_NET_GDR_LEVEL forbids what is near, the fix is to remove it."""
    assert pcie_rules(taken(vm(switched))) == set()
    (far,) = found(taken(switched, NCCL_NET_GDR_LEVEL="LOC"), "gpu_nic_too_far")
    assert "PIX is beyond NCCL_NET_GDR_LEVEL=LOC" in far.evidence
    assert "or set it to PIX" in far.fix


def test_who_needs_no_file(machine):
    """One GPU without RDMA needs none; two that show no switch may, which is good to know."""
    vm(machine)
    add_gpu(machine, A)
    machine.add_pci("0000:00:03.0", vendor="0x1af4")
    assert pcie_rules(taken(machine)) == set()
    add_gpu(machine, B)
    (finding,) = found(taken(machine), "topology_file_missing")
    assert finding.severity == "info"
    assert pcie_rules(taken(bare(machine))) == set()


def test_a_file_alone_is_not_judged(tmp_path):
    """A topology file does not say which ports have RDMA: nothing is claimed."""
    file = tmp_path / "topology.xml"
    file.write_text(system(cpu(0, pci(A, GPU)), cpu(1, pci(N, NIC))))
    assert diagnose(Snapshot.from_nccl_topology(file)) == []


# peer_memory_missing

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.148.08  Release Build\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.148.08  Tue May 6 2025\n"


def driver(machine, text):
    machine.write(machine.procfs / "driver/nvidia/version", text)
    (machine.sysfs / "module").mkdir(exist_ok=True)
    port = machine.sysfs / "class/infiniband/mlx5_0/device"
    if not (port / "driver").exists():
        folder = machine.sysfs / "bus/pci/drivers/mlx5_core"
        folder.mkdir(parents=True, exist_ok=True)
        (port.resolve() / "driver").symlink_to(folder)
    return machine


def test_nothing_opens_gpu_memory(switched):
    """The proprietary driver without nvidia_peermem leaves GPUDirect RDMA unused."""
    (finding,) = found(taken(driver(switched, CLOSED)), "peer_memory_missing")
    assert (finding.severity, finding.subject) == ("warning", "GPU 0")
    assert "proprietary" in finding.evidence
    assert "modprobe nvidia_peermem" in finding.fix
    switched.write(switched.sysfs / "module/nvidia_peermem/version", "570.148.08\n")
    assert found(taken(switched), "peer_memory_missing") == []


def test_dma_buf(switched):
    """The open driver does without the module, on a kernel that is new enough."""
    assert found(taken(driver(switched, OPEN)), "peer_memory_missing") == []
    switched.write(switched.procfs / "sys/kernel/osrelease", "5.4.0-150-generic\n")
    (finding,) = found(taken(switched), "peer_memory_missing")
    assert finding.severity == "info"
    assert "5.4.0-150-generic may have no dma-buf" in finding.evidence


def test_gpu_memory_that_is_not_wanted(flat):
    """If GPU and port are too far apart, only the rule about distances reports it."""
    assert found(taken(driver(flat, CLOSED)), "peer_memory_missing") == []
    assert len(found(taken(flat, TRUE), "peer_memory_missing")) == 1


# topology_file_unreadable


def test_file_that_is_not_there(flat):
    """A setting that names no file is one warning, not also a missing file."""
    snapshot = taken(flat, NCCL_TOPO_FILE="/no/such.xml")
    (finding,) = found(snapshot, "topology_file_unreadable")
    assert finding.severity == "warning"
    assert "/no/such.xml" in finding.evidence
    assert found(snapshot, "topology_file_missing") == []


def test_broken_file(flat):
    """A file that is cut short is an error with the place."""
    (finding,) = found(taken(flat, TRUE[:150]), "topology_file_unreadable")
    assert finding.severity == "error"
    assert "topology.xml" in finding.evidence


# topology_file_refused


@pytest.mark.parametrize(
    ("text", "evidence"),
    [
        (f'<?xml version="1.0"?>\n{TRUE}', "line 1 has an XML declaration"),
        (TRUE.replace("\n<cpu", "\n\t<cpu"), "has a tab"),
        (TRUE.replace(" busid", "\n busid", 1), "ends on another line"),
        (f"\ufeff{TRUE}", "byte order mark"),
    ],
)
def test_file_that_nccl_stops_at(flat, text, evidence):
    """A file that only NCCL's parser rejects is an error: no rank would start."""
    snapshot = taken(flat, text)
    (finding,) = found(snapshot, "topology_file_refused")
    assert finding.severity == "error"
    assert evidence in finding.evidence
    assert found(Snapshot.from_json(snapshot.to_json()), "topology_file_refused") == [finding]
    rewritten = taken(flat, snapshot.to_nccl_topology())
    assert found(rewritten, "topology_file_refused") == []


def test_file_that_nccl_takes(flat):
    """Comments may contain anything, values any blank."""
    text = "<!-- <?xml?>\t\n<a\n> -->\n" + TRUE.replace("x86_64", "x86\t64")
    assert found(taken(flat, text), "topology_file_refused") == []


def test_a_file_of_another_machine_is_judged(tmp_path):
    """A file is checked without the machine that it is for."""
    file = tmp_path / "topology.xml"
    file.write_text(f'<?xml version="1.0"?>\n{TRUE}')
    (finding,) = diagnose(Snapshot.from_nccl_topology(file))
    assert finding.rule == "topology_file_refused"


# topology_sources_differ


def test_file_of_another_machine(switched):
    """A file that puts apart what the kernel shows under one switch is not this machine's."""
    apart = system(cpu(0, switch(1, pci(A, GPU))), cpu(1, switch(2, pci(N, NIC))))
    (finding,) = found(taken(vm(switched), apart), "topology_sources_differ")
    assert "GPU 0 and mlx5_0 (SYS, not PIX)" in finding.evidence
    together = system(cpu(0, switch(1, pci(A, GPU), pci(N, NIC))))
    assert pcie_rules(taken(switched, together)) == set()


def test_file_that_flatters_a_host(machine):
    """On bare metal the kernel is right: a file that brings near what is far is named."""
    build_host(bare(machine))
    near = system(
        cpu(0, switch(1, pci(A, GPU), pci(B, GPU), pci(C, GPU), pci(D, GPU), pci(M, NIC))),
    )
    (finding,) = found(taken(machine, near), "topology_sources_differ")
    assert "(PIX, not SYS)" in finding.evidence
    assert "more" in finding.evidence


# acs_redirect


def test_acs_on_bare_metal(switched):
    """Redirection between GPU and port is a warning with the command for each bridge."""
    bare(switched)
    configure(switched, "0000:51:02.0", (ACS, 0x001D))
    (finding,) = diagnose_pcie(switched)
    assert finding.rule == "acs_redirect"
    assert "GPU 0 and mlx5_0" in finding.evidence
    assert "`sudo setpci -s 0000:51:02.0 ECAP_ACS+0x6.w=0000`" in finding.fix


def test_acs_elsewhere(switched):
    """Above both it redirects nothing between them, off it does nothing, in a VM it is needed."""
    bare(switched)
    configure(switched, "0000:00:01.0", (ACS, 0x001D))
    configure(switched, "0000:51:01.0", (ACS, 0))
    assert diagnose_pcie(switched) == []
    configure(switched, "0000:51:02.0", (ACS, 0x001D))
    (switched.procfs / "cpuinfo").write_text("flags : hypervisor\n")
    vm(switched)
    assert diagnose_pcie(switched) == []


def diagnose_pcie(machine):
    snapshot = taken(machine)
    names = pcie_rules(snapshot)
    return [one for one in diagnose(snapshot) if one.rule in names]


# ats_off


def test_ats_in_a_vm(switched):
    """A port of a VM whose ATS is off is a warning; on, absent or unreadable it is none."""
    vm(switched)
    configure(switched, N, (ATS, 0))
    (finding,) = diagnose_pcie(switched)
    assert (finding.rule, finding.subject) == ("ats_off", "mlx5_0")
    assert "ATS_ENABLED=true" in finding.fix
    configure(switched, N, (ATS, 0x8000))
    assert diagnose_pcie(switched) == []
    configure(switched, N, (0x0001, 0))
    assert diagnose_pcie(switched) == []


def test_ats_on_bare_metal(switched):
    """Without a VM ATS is not needed."""
    configure(bare(switched), N, (ATS, 0))
    assert diagnose_pcie(switched) == []


# All together


def places(value, path=()):
    """Every place in plain JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        yield (*path, key)
        if isinstance(one, dict | list):
            yield from places(one, (*path, key))


def without(plain, path):
    """The same with an unknown value at a place."""
    changed = copy.deepcopy(plain)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = {"unknown": "not reported by the driver"}
    return changed


@pytest.mark.slow
def test_no_unknown_value_is_taken_for_wrong(switched):
    """Whichever value of a good machine is not known, no rule finds it wrong."""
    vm(switched)
    configure(switched, N, (ATS, 0x8000))
    nvml = FakeNvml(*hgx_h100().devices[:2], between={(0, 1): Between(SYS)})
    nothing_told = NcclSettings({}, switched.sysfs.parent)
    plain = snap(switched, nvml, nccl=nothing_told).to_plain()
    plain["host"].update(shm_bytes=8 << 30, memlock_bytes=UNLIMITED)
    tried = 0
    for path in places(plain):
        with contextlib.suppress(SnapshotError):  # not every value may be unknown
            snapshot = Snapshot.from_plain(without(plain, path))
            tried += 1
            assert diagnose(snapshot) == [], path
    assert tried > 100
