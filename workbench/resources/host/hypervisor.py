"""Detect the hypervisor of this VM."""

from __future__ import annotations

from pathlib import Path

from workbench.resources.files import read_text
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


def find_hypervisor(sysfs: Path, procfs: Path) -> str | Unknown:
    """Return the hypervisor, detected by DMI, paravirtual clocks and CPU flags.

    Returns
    -------
    str or Unknown
        ``"none"`` on bare metal.
    """
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
    text = read_text(procfs / "cpuinfo")
    if isinstance(text, Unknown):
        return None
    for line in text.splitlines():
        if line.startswith("flags"):
            return "hypervisor" in line.split()
    return None
