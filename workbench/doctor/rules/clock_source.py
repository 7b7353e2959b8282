"""A clock that is slow to read."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot

_SLOW = ("acpi_pm", "hpet")


def clock_source(snapshot: Snapshot) -> Iterator[Finding]:
    """Find a kernel that reads the time from a device, not from the CPU's counter."""
    clock = snapshot.host.clock_source
    if clock not in _SLOW:
        return
    yield Finding(
        rule="clock_source",
        severity="warning",
        subject="this VM",
        evidence=f"the kernel reads the time from {clock}",
        why="Each reading asks a device, which a hypervisor has to emulate, where the CPU's "
        "counter is a register: whatever asks for the time often, such as profilers and data "
        "loading, gets slower.",
        cure="`cat /sys/devices/system/clocksource/clocksource0/available_clocksource` lists what "
        "there is. Of tsc, kvm-clock and hyperv_clocksource_tsc_page take the one it has: `echo "
        "NAME | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource`. Where "
        "it has none, `sudo dmesg | grep -i -e clocksource -e tsc` says why the kernel gave it up.",
        source="Red Hat, Optimizing RHEL 9 for Real Time, Comparing the cost of reading hardware "
        "clock sources; PostgreSQL documentation, pg_test_timing (acpi_pm)",
    )
