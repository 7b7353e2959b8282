"""The hypervisor and container of this process, and an identity of the VM that runs it."""

from __future__ import annotations

import os
from pathlib import Path

from workbench.resources.files import find_line, read_text
from workbench.resources.unknown import Unknown

# From DMI's vendor or product, in lower case, to the hypervisor (names as in
# systemd-detect-virt and the vendors' documentation).
_DMI = (
    ("vmware", "VMware"),
    ("microsoft corporation virtual machine", "Hyper-V"),
    ("kvm", "KVM"),
    ("qemu", "KVM"),
    ("google compute engine", "KVM"),
    ("openstack", "KVM"),
    ("ovirt", "KVM"),
    ("nutanix", "AHV"),
    ("xen", "Xen"),
    ("innotek", "VirtualBox"),
    ("virtualbox", "VirtualBox"),
    ("parallels", "Parallels"),
    ("bhyve", "bhyve"),
)
# A paravirtual clock identifies the hypervisor even if DMI is hidden (Firecracker).
_CLOCKS = (("kvm-clock", "KVM"), ("hyperv", "Hyper-V"), ("xen", "Xen"))
# Variables that a runtime sets in a container.
_CONTAINER_VARIABLES = (
    ("KUBERNETES_SERVICE_HOST=", "kubernetes"),
    ("APPTAINER_CONTAINER=", "apptainer"),
    ("SINGULARITY_CONTAINER=", "apptainer"),
)
# Files that a runtime creates in a container's root.
_CONTAINER_FILES = (("run/.containerenv", "podman"), (".dockerenv", "docker"))
# Parts of a runtime's cgroup paths (cgroup version 1, or a shared cgroup namespace).
_CONTAINER_GROUPS = (
    ("kubepods", "kubernetes"),
    ("libpod", "podman"),
    ("/docker", "docker"),
    ("containerd", "containerd"),
    ("/lxc", "lxc"),
)


def find_hypervisor(sysfs: Path, procfs: Path) -> str | Unknown:
    """Return the hypervisor by DMI, paravirtual clocks and CPU flags; ``"none"`` on bare metal."""
    flagged = _hypervisor_flag(procfs)
    dmi = _dmi(sysfs)
    if dmi.startswith("amazon ec2"):
        # Bare-metal instances have the same vendor; only CPUID distinguishes them.
        return "none" if flagged is False else "KVM (Nitro)"
    for text, name in _DMI:
        if text in dmi:
            return name
    clocks = read_text(sysfs / "devices/system/clocksource/clocksource0/available_clocksource")
    for text, name in _CLOCKS:
        if isinstance(clocks, str) and text in clocks:
            return name
    if flagged is False and dmi:
        return "none"
    if flagged:
        return Unknown(
            "the CPU's flags show that there is one, but neither DMI nor a clock identifies it"
        )
    return Unknown("neither DMI, nor the CPU's flags, nor a clock shows it")


def _dmi(sysfs: Path) -> str:
    texts = (read_text(sysfs / "class/dmi/id" / name) for name in ("sys_vendor", "product_name"))
    return " ".join(text for text in texts if isinstance(text, str)).lower()


def _hypervisor_flag(procfs: Path) -> bool | None:
    """Return whether CPUID reports a hypervisor; None if the CPU has no such flag (ARM)."""
    flags = find_line(procfs / "cpuinfo", "flags")
    return None if isinstance(flags, Unknown) else "hypervisor" in flags.split()


def find_container(procfs: Path) -> str | Unknown:
    """Return the kind of container; ``"none"`` if no file, variable or cgroup indicates one.

    Kubernetes is checked first, as it starts its containers with one of the other runtimes.
    """
    variables = _variables(procfs)
    groups = read_text(procfs / "self/cgroup")
    kinds = [
        kind
        for start, kind in _CONTAINER_VARIABLES
        if any(variable.startswith(start) for variable in variables)
    ]
    if isinstance(groups, str):
        kinds += [kind for text, kind in _CONTAINER_GROUPS[:1] if text in groups]
    # The root of this process in procfs, so that tests can replace it.
    kinds += [kind for file, kind in _CONTAINER_FILES if (procfs / "self/root" / file).exists()]
    if isinstance(groups, str):
        kinds += [kind for text, kind in _CONTAINER_GROUPS if text in groups]
    # systemd's container interface: a variable of PID 1, which child processes may inherit.
    kinds += [
        kind
        for variable in variables
        if (kind := variable.removeprefix("container=")) != variable and kind
    ]
    if not kinds and isinstance(groups, Unknown):
        return groups
    return kinds[0] if kinds else "none"


def _variables(procfs: Path) -> list[str]:
    text = read_text(procfs / "self/environ")
    return text.split("\0") if isinstance(text, str) else []


def machine_identity() -> str | Unknown:
    """Return a text that is equal for two processes only if they run on the same VM.

    It consists of the boot id, the UTS namespace (which a container or test VM does not
    share) and the host name. Cloned VMs have the same host name, and containers on one VM
    have the same boot id.
    """
    procfs = Path("/proc")
    parts = [
        read_text(procfs / "sys/kernel/random/boot_id"),
        _namespace(procfs),
        read_text(procfs / "sys/kernel/hostname"),
    ]
    for value in parts:
        if isinstance(value, Unknown):
            return value
    return " ".join(map(str, parts))


def _namespace(procfs: Path) -> str | Unknown:
    path = procfs / "self/ns/uts"
    try:
        return str(os.readlink(path))  # noqa: PTH115 - the target is not a file
    except OSError as error:
        return Unknown(f"{path} cannot be read: {error.strerror}")
