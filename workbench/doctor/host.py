"""Rules about the VM itself: failed probes, its clock, and limits that ranks run into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from workbench.doctor.rule import Case, rule
from workbench.resources import Snapshot, Unknown
from workbench.resources.summary import show_bytes
from workbench.resources.time_limited_call import STILL_BLOCKED, TIMED_OUT
from workbench.resources.vsphere_limits import reached_limits

_SUBJECTS = {"gpus": "the GPUs", "nics": "the NICs", "pcie": "PCIe", "host": "this VM"}
_PROBE_FIXES = {
    "gpus": "Run `nvidia-smi` in the VM. If it hangs or fails too, restart the VM, "
    "and search `dmesg` for NVRM lines.",
    "nics": "Run `ip -s link` and `ls -R /sys/class/infiniband`, and read `dmesg`.",
    "pcie": "Run `lspci -tv`, read `dmesg`, and check that the file named by NCCL_TOPO_FILE "
    "can be read.",
    "host": "Read `dmesg`.",
}
_SLOW_CLOCKS = ("acpi_pm", "hpet")
_DOCKER_DEFAULT_SHM_BYTES = 64 << 20
_ENOUGH_SHM_BYTES = 1 << 30
# NCCL registers buffers of several MiB per channel and peer. The defaults of distributions
# (64 KiB to 8 MiB) are too small for the first buffers.
_ENOUGH_MEMLOCK_BYTES = 1 << 30
_USUAL_OPEN_FILES = 1024  # the limit of a login in the common distributions
_LOW_MEMORY_LIMIT = 0.5


@rule(
    "error",
    why="A driver that does not answer here will not answer the training either.",
    source="NVIDIA, GPU debug guidelines",
)
def probe_failed(snapshot: Snapshot) -> Iterator[Case]:
    """Find probes that failed or timed out, and values of GPUs that are unknown after a timeout."""
    for name, probe in snapshot.probes.items():
        if probe.status == "failed":
            yield Case(
                f"could not be read: {probe.reason} (after {probe.elapsed_ms:.0f} ms)",
                _SUBJECTS.get(name, name),
                fix=_PROBE_FIXES.get(name, "Read `dmesg`."),
            )
    reasons = _timeouts(snapshot) if snapshot.gpus else []
    if reasons:
        yield Case(
            f"only partly known: {'; '.join(reasons)}",
            _SUBJECTS["gpus"],
            severity="warning",
            fix=_PROBE_FIXES["gpus"],
        )


def _timeouts(snapshot: Snapshot) -> list[str]:
    """Return the reasons of GPU values that are unknown because a call to the driver timed out."""
    gpu_values = (getattr(gpu, field.name) for gpu in snapshot.gpus for field in fields(gpu))
    values = (*gpu_values, snapshot.gpu_pairs)
    reasons = {value.reason for value in values if isinstance(value, Unknown)}
    return sorted(reason for reason in reasons if TIMED_OUT in reason or STILL_BLOCKED in reason)


@rule(
    "warning",
    why="Each reading accesses a device, which a hypervisor has to emulate, where the CPU's "
    "counter is only a register. Whatever reads the time often, such as profilers and data "
    "loading, gets slower.",
    fix="`cat /sys/devices/system/clocksource/clocksource0/available_clocksource` lists the "
    "clock sources of this VM. If tsc, kvm-clock or hyperv_clocksource_tsc_page is among them, "
    "choose it: `echo NAME | sudo tee "
    "/sys/devices/system/clocksource/clocksource0/current_clocksource`. Otherwise "
    "`sudo dmesg | grep -i -e clocksource -e tsc` shows why the kernel rejected it.",
    source="Red Hat, Optimizing RHEL 9 for Real Time, Comparing the cost of reading hardware "
    "clock sources; PostgreSQL documentation, pg_test_timing (acpi_pm)",
)
def clock_source(snapshot: Snapshot) -> Iterator[Case]:
    """Find a kernel that reads the time from a device, not from the CPU's counter."""
    clock = snapshot.host.clock_source
    if clock in _SLOW_CLOCKS:
        yield Case(f"the kernel reads the time from {clock}")


@rule(
    "info",
    why="Above the limit the kernel kills a process of the group, a rank or this kernel, even "
    "though the VM has free memory. Files in /dev/shm count too.",
    fix="`docker run --memory=...`; in Kubernetes `resources.limits.memory` of the container; "
    "`MemoryMax=` of a systemd service; `mem_limit` of JupyterHub's spawner. If the limit is "
    "intended, use fewer DataLoader workers and prefetched batches.",
    source="Linux kernel, Documentation/admin-guide/cgroup-v2.rst, memory.max",
)
def memory_limit(snapshot: Snapshot) -> Iterator[Case]:
    """Find a cgroup limit of less than half of the VM's memory."""
    limit = snapshot.host.memory_limit_bytes
    memory = snapshot.host.memory_bytes
    if not isinstance(limit, int) or not isinstance(memory, int):
        return
    if limit < memory * _LOW_MEMORY_LIMIT:
        yield Case(
            f"the processes of this cgroup may use {show_bytes(limit)} of the VM's "
            f"{show_bytes(memory)} ({limit / memory:.0%})"
        )


@rule(
    "warning",
    why="DataLoader workers and NCCL pass data through /dev/shm: once it is full, workers die "
    "with a bus error, or NCCL fails to start.",
    fix="`docker run --shm-size=8g` (or `--ipc=host`); in Kubernetes an emptyDir with "
    "`medium: Memory` on /dev/shm; on a VM `mount -o remount,size=8g /dev/shm`.",
    source="PyTorch README, Docker image; NVIDIA, NCCL User Guide, Troubleshooting",
)
def shm_size(snapshot: Snapshot) -> Iterator[Case]:
    """Find a /dev/shm of less than 1 GiB; the default of a container is 64 MiB."""
    size = snapshot.host.shm_bytes
    if isinstance(size, int) and size < _ENOUGH_SHM_BYTES:
        yield Case(
            f"the shared memory of /dev/shm holds {show_bytes(size)}",
            severity="error" if size <= _DOCKER_DEFAULT_SHM_BYTES else "warning",
        )


@rule(
    "error",
    why="RDMA must lock the memory it reads and writes: registering buffers fails "
    "(`ibv_reg_mr ... Cannot allocate memory`), and NCCL stops.",
    fix="`* - memlock unlimited` in /etc/security/limits.conf and a new login; "
    "`--ulimit memlock=-1` for a container; `LimitMEMLOCK=infinity` for a systemd service.",
    source="NVIDIA, NCCL User Guide, Troubleshooting",
)
def memlock_limit(snapshot: Snapshot) -> Iterator[Case]:
    """Find a low RLIMIT_MEMLOCK on a VM with RDMA ports."""
    limit = snapshot.host.memlock_bytes
    rdma = [nic.name for nic in snapshot.nics if nic.kind == "rdma"]
    if rdma and isinstance(limit, int) and limit < _ENOUGH_MEMLOCK_BYTES:
        yield Case(
            f"locked memory is limited to {show_bytes(limit)}, with RDMA on {', '.join(rdma)}"
        )


@rule(
    "warning",
    why="DataLoader workers pass tensors as file descriptors and keep many of them open: with "
    "many workers and tensors they fail with `Too many open files`.",
    fix="`ulimit -n 65536` before JupyterLab and the ranks start, or "
    "`* - nofile 65536` in /etc/security/limits.conf; `--ulimit nofile=65536` for a container; "
    "`LimitNOFILE=65536` for a systemd service. If it cannot be raised: "
    '`torch.multiprocessing.set_sharing_strategy("file_system")`.',
    source="PyTorch documentation, torch.multiprocessing, Sharing strategies",
)
def open_files_limit(snapshot: Snapshot) -> Iterator[Case]:
    """Find a limit on open files below the usual one, or the usual one on a VM with GPUs."""
    limit = snapshot.host.open_files
    if not isinstance(limit, int) or limit > _USUAL_OPEN_FILES:
        return
    if limit < _USUAL_OPEN_FILES or snapshot.gpus:
        yield Case(
            f"a process may have {limit} files open at once",
            severity="info" if limit == _USUAL_OPEN_FILES else "warning",
        )


@rule(
    "info",
    why="No further device of this kind can be added to the VM in these releases.",
    fix="No change is needed. For more devices ask for a newer release of vSphere with its "
    "virtual hardware version, or for more VMs.",
    source="Broadcom, knowledge article 309986, Configuring VMDirectPath I/O passthrough devices; "
    "VMware, vSphere Virtual Machine Administration 7.0 and 8.0, Hardware Features Available with "
    "Virtual Machine Compatibility Settings",
)
def vsphere_limit(snapshot: Snapshot) -> Iterator[Case]:
    """Find VMs on vSphere with as many devices as a release permits."""
    for devices, releases in reached_limits(snapshot):
        yield Case(f"{devices}, which is the limit of vSphere {releases}")
