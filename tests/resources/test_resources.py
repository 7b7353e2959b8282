"""Snapshots of machines of several kinds."""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import pytest
from fake_machine import CPUINFO_BARE, snap
from fake_nvml import DRIVER_NOT_LOADED, FakeNvml, h100, mig_a100, vgpu

import workbench
from workbench.resources import NcclSettings, Snapshot, Unknown, take_snapshot


def test_this_machine_can_be_described():
    """On whatever machine this runs, a snapshot is taken and each part says how it went."""
    snapshot = workbench.take_snapshot()
    assert snapshot.probes["host"].status == "ok"
    assert isinstance(snapshot.host.cpus, int)
    assert 1 <= snapshot.host.cpus <= snapshot.host.cpus_total
    assert snapshot.host.memory_bytes > 1 << 26
    for probe in snapshot.probes.values():
        assert (probe.reason == "") == (probe.status == "ok")
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


def test_importing_opens_nothing():
    """Importing the package loads no NVML and starts no thread."""
    code = (
        "import sys, threading, workbench.resources, workbench.resources.counters;"
        "print('pynvml' in sys.modules, threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "1"]


# GPUs


def test_passthrough_gpu():
    """A GPU handed through is named with all that NVML reports, its address as sysfs has it."""
    (gpu,) = take_snapshot(nvml=FakeNvml(h100())).gpus
    assert (gpu.index, gpu.name, gpu.form) == (0, "NVIDIA H100 80GB HBM3", "passthrough")
    assert gpu.pci_address == "0000:53:00.0"
    assert gpu.memory_bytes == 85_520_809_984
    assert (gpu.driver_version, gpu.cuda_version) == ("580.105.08", "13.0")
    assert gpu.compute_capability == "9.0"
    assert gpu.vgpu_profile == Unknown("not a vGPU")


def test_bytes_from_older_bindings_are_text():
    """Older bindings answer in bytes; the snapshot has text in any case."""
    device = h100(name=b"NVIDIA H100 80GB HBM3", bus_id=b"00000000:53:00.0", mode=0)
    (gpu,) = take_snapshot(nvml=FakeNvml(device)).gpus
    assert (gpu.name, gpu.pci_address) == ("NVIDIA H100 80GB HBM3", "0000:53:00.0")
    assert gpu.form == "whole"


@pytest.mark.parametrize("name", ["GRID A100-4C", "NVIDIA A100-4C"])
def test_vgpu(name):
    """A vGPU carries its profile as the driver names it, without the brand."""
    (gpu,) = take_snapshot(nvml=FakeNvml(vgpu(name))).gpus
    assert (gpu.form, gpu.vgpu_profile, gpu.memory_bytes) == ("vgpu", "A100-4C", 4 << 30)


def test_mig_devices_replace_their_gpu(machine):
    """Of a GPU cut by MIG, its devices are listed: each its own memory and UUID."""
    gpus = snap(machine, FakeNvml(h100(), mig_a100())).gpus
    assert [gpu.form for gpu in gpus] == ["passthrough", "mig", "mig"]
    assert [gpu.index for gpu in gpus] == [0, 1, 1]
    assert len({gpu.uuid for gpu in gpus}) == 3
    assert {gpu.memory_bytes for gpu in gpus[1:]} == {20_937_965_568}
    assert {gpu.pci_address for gpu in gpus[1:]} == {"0000:07:00.0"}


def test_mig_backed_vgpu_is_one_device(machine):
    """A vGPU with a MIG instance behind it is one vGPU, though its MIG mode says enabled."""
    device = vgpu("NVIDIA A100-4-20C", 20, mig_mode=1, mig=mig_a100().mig)
    (gpu,) = snap(machine, FakeNvml(device)).gpus
    assert (gpu.form, gpu.vgpu_profile) == ("vgpu", "A100-4-20C")


def test_mig_without_instances(machine):
    """A GPU with MIG enabled and no instance yet is shown as the GPU that it is."""
    (gpu,) = snap(machine, FakeNvml(h100(mig_mode=1))).gpus
    assert gpu.form == "passthrough"


def test_lost_gpu_costs_only_itself(machine):
    """A GPU that fell off the bus has that reason in its fields; its neighbour is unaffected."""
    lost, well = snap(machine, FakeNvml(h100(lost=True), h100())).gpus
    assert isinstance(lost.name, Unknown)
    assert "lost" in lost.name.reason
    assert well.name == "NVIDIA H100 80GB HBM3"


def test_driver_not_loaded(machine):
    """Without a driver there are no GPUs, and the probe says why; NVML's error is no failure."""
    snapshot = snap(machine, FakeNvml(init_error=DRIVER_NOT_LOADED))
    assert snapshot.gpus == ()
    assert snapshot.probes["gpus"].status == "absent"
    assert snapshot.probes["gpus"].reason == "the NVIDIA driver is not loaded"


def test_driver_mismatch_is_a_failure(machine):
    """A driver that does not fit its library is not absent: something is wrong."""
    probe = snap(machine, FakeNvml(init_error=18)).probes["gpus"]
    assert probe.status == "failed"
    assert "restart" in probe.reason


def test_call_missing_from_the_binding(machine):
    """A binding without one call costs that value, with the call's name as the reason."""

    class Old(FakeNvml):
        nvmlDeviceGetVirtualizationMode = None  # noqa: N815  # NVML's name

    (gpu,) = snap(machine, Old(h100())).gpus
    assert "nvmlDeviceGetVirtualizationMode" in gpu.form.reason
    assert gpu.name == "NVIDIA H100 80GB HBM3"


def test_nvml_is_let_go(machine):
    """After a snapshot NVML is closed as often as it was opened."""
    nvml = FakeNvml(h100())
    snap(machine, nvml)
    assert (nvml.inits, nvml.opened) == (1, 0)


def test_wedged_driver_costs_only_the_gpus(machine):
    """A driver that hangs costs its part, keeps one thread, and answers again once it is back."""
    machine.add_interface("eth0")
    nvml = FakeNvml(h100())
    nvml.answers.clear()
    try:
        first, second = (snap(machine, nvml, time_limit_s=3) for _ in range(2))
    finally:
        nvml.answers.set()
    assert first.probes["gpus"].status == "failed"
    assert first.probes["gpus"].reason == "NVML did not answer within 3 s"
    assert [nic.name for nic in first.nics] == ["eth0"]
    assert first.host.hostname == "vm-17"
    assert second.probes["gpus"].reason == "NVML has not returned from an earlier call"
    for _ in range(10_000):  # the call that hung ends soon after
        third = snap(machine, nvml)
        if third.gpus:
            break
        time.sleep(0.01)
    assert third.probes["gpus"].status == "ok"


# Host


@pytest.mark.parametrize(
    ("vendor", "product", "name"),
    [
        ("VMware, Inc.", "VMware7,1", "VMware"),
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "KVM"),
        ("Microsoft Corporation", "Virtual Machine", "Hyper-V"),
        ("Google", "Google Compute Engine", "KVM"),
        ("Amazon EC2", "p5.48xlarge", "KVM (Nitro)"),
    ],
)
def test_hypervisor_by_dmi(machine, vendor, product, name):
    """The firmware's tables name the hypervisor."""
    machine.set_dmi(vendor, product)
    assert snap(machine).host.hypervisor == name


@pytest.mark.parametrize("vendor", ["Supermicro", "Amazon EC2"])
def test_bare_metal(machine, vendor):
    """Without the CPU's hypervisor flag it is bare metal, the clouds' bare metal too."""
    machine.set_dmi(vendor, "p5.metal")
    machine.write(machine.procfs / "cpuinfo", CPUINFO_BARE)
    assert snap(machine).host.hypervisor == "none"


def test_hypervisor_by_clock(machine):
    """If DMI is hidden, a paravirtual clock identifies the hypervisor."""
    clock = "devices/system/clocksource/clocksource0/available_clocksource"
    machine.write(machine.sysfs / clock, "tsc kvm-clock \n")
    assert snap(machine).host.hypervisor == "KVM"


def test_hidden_hypervisor(machine):
    """A hypervisor that only the CPU's flags betray is unknown, not none."""
    assert "flags" in snap(machine).host.hypervisor.reason


def test_container_limits(machine):
    """The lowest limit of all groups above the process counts; a quota limits the CPUs."""
    group = machine.sysfs / "fs/cgroup/kubepods/pod1"
    machine.write(machine.procfs / "self/cgroup", "0::/kubepods/pod1\n")
    machine.write(group / "memory.max", f"{16 << 30}\n")
    machine.write(group / "cpu.max", "100000 100000\n")
    machine.write(group.parent / "memory.max", f"{8 << 30}\n")
    host = snap(machine).host
    assert (host.memory_limit_bytes, host.memory_bytes) == (8 << 30, 65_536_000 * 1024)
    assert (host.cpus, host.cpus_total) == (1, 8)


def test_container_limits_version_1(machine):
    """Control groups of version 1, seen from a container that is shown the host's path."""
    machine.write(
        machine.procfs / "self/cgroup", "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n"
    )
    machine.write(machine.sysfs / "fs/cgroup/memory/memory.limit_in_bytes", f"{2 << 30}\n")
    machine.write(machine.sysfs / "fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    assert snap(machine).host.memory_limit_bytes == 2 << 30


def test_no_limit(machine):
    """If the kernel sets no limit the snapshot has that as a word that JSON can carry."""
    machine.write(machine.sysfs / "fs/cgroup/memory.max", "max\n")
    assert snap(machine).host.memory_limit_bytes == "unlimited"


def test_locked_memory(machine):
    """Docker's root may not lock more than its limit; a VM's root may lock all there is."""
    machine.write(machine.procfs / "self/status", "Name:\tx\nCapEff:\t00000000a80425fb\n")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    expected = "unlimited" if limit == resource.RLIM_INFINITY else limit
    assert snap(machine).host.memlock_bytes == expected
    machine.write(machine.procfs / "self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n")
    assert snap(machine).host.memlock_bytes == "unlimited"


def test_empty_machine(tmp_path):
    """With no /sys and no /proc at all there is still a snapshot, every value with its reason."""
    snapshot = take_snapshot(sysfs=tmp_path / "no", procfs=tmp_path / "no", nvml=FakeNvml())
    assert "does not exist" in snapshot.host.hostname.reason
    assert "does not exist" in snapshot.host.memory_bytes.reason
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


# What a container is, and what it was given


@pytest.mark.parametrize(
    ("file", "text", "kind"),
    [
        ("self/root/.dockerenv", "", "docker"),
        ("self/root/run/.containerenv", "", "podman"),
        (
            "self/cgroup",
            "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope",
            "kubernetes",
        ),
        ("self/cgroup", "12:memory:/docker/0a1b2c", "docker"),
        ("self/cgroup", "0::/user.slice/user-1000.slice/session-1.scope", "none"),
        ("self/environ", "HOME=/root\0KUBERNETES_SERVICE_HOST=10.0.0.1\0", "kubernetes"),
        ("self/environ", "container=systemd-nspawn\0", "systemd-nspawn"),
        ("self/environ", "container=\0A=container=x\0", "none"),
    ],
)
def test_container(machine, file, text, kind):
    """Files, cgroups and variables identify a container; Kubernetes before its runtime."""
    machine.write(machine.procfs / file, text)
    assert snap(machine).host.container == kind


def test_what_a_process_may_use(machine):
    """The clock, the RDMA device nodes and the limit on open files are in the snapshot."""
    host = snap(machine).host
    assert (host.clock_source, host.rdma_device_nodes) == ("tsc", ())
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert host.open_files == ("unlimited" if limit == resource.RLIM_INFINITY else limit)
    machine.add_rdma("mlx5_0", device=machine.add_pci("0000:1a:00.0"))
    assert snap(machine).host.rdma_device_nodes == ("uverbs0",)


def test_numa_nodes_that_may_be_used(machine):
    """A node counts where this process may run on one of its CPUs."""
    assert "lists its CPUs" in snap(machine).host.usable_numa_nodes.reason
    nodes = machine.sysfs / "devices/system/node"
    machine.write(nodes / "node0/cpulist", "0-4095\n")
    machine.write(nodes / "node1/cpulist", "4096-4097\n")
    assert snap(machine).host.usable_numa_nodes == (0,)


def test_settings_of_nccl(machine, tmp_path):
    """The environment's come before the file's; others' variables stay out."""
    machine.write(tmp_path / "etc/nccl.conf", "NCCL_NET=Socket\n#NCCL_X=1\nNCCL_DEBUG = INFO\n")
    settings = NcclSettings({"NCCL_NET": "IB", "TOKEN": "secret"}, tmp_path)
    snapshot = snap(machine, nccl=settings)
    assert snapshot.host.nccl_settings == {"NCCL_DEBUG": "INFO", "NCCL_NET": "IB"}
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
