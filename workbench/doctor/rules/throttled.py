"""A GPU whose clocks are held down by heat or power."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding, Severity
from workbench.doctor.several import alike
from workbench.resources import Gpu, Snapshot
from workbench.resources.gpus.records import Clocks

_COOLING = (
    "See whether it lasts (`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`): clocks that change "
    "may show it for a moment. If it does, ask the administrator for the fans, the air flow and "
    "the power supplies of the host."
)
_POWER = (
    "`nvidia-smi -q -d POWER` shows the limit; where it is below the default limit, "
    "`sudo nvidia-smi -pl WATTS` (on the host, for a vGPU) raises it."
)
# By the names of `Clocks.held_by`; all others are how the GPU was set, or that it rests.
_HARMS: dict[str, tuple[Severity, str]] = {
    "hardware slowdown": ("warning", _COOLING),
    "thermal (hardware)": ("warning", _COOLING),
    "thermal (software)": ("warning", _COOLING),
    "power brake": ("warning", _COOLING),
    "power cap": ("info", _POWER),
}


def throttled(snapshot: Snapshot) -> Iterator[Finding]:
    """Find clocks that heat, a power brake or the power cap hold down at this moment."""
    for subject, evidence in alike(snapshot, _held):
        harms = [_HARMS[word] for word in _HARMS if word in evidence]
        severity, cure = harms[0]
        yield Finding(
            rule="throttled",
            severity=severity,
            subject=subject,
            evidence=evidence,
            why="Every step waits for the slowest rank: one GPU at lower clocks holds back all."
            if severity == "warning"
            else "At full load a GPU may well run at its power cap; one with a lower cap than the "
            "others holds back all.",
            cure=cure,
            source="NVIDIA, NVML API reference, NvmlClocksEventReasons",
        )


def _held(gpu: Gpu) -> str | None:
    clocks = gpu.clocks
    if not isinstance(clocks, Clocks) or not isinstance(clocks.held_by, tuple):
        return None
    by = [reason for reason in clocks.held_by if reason in _HARMS]
    return f"clocks are held down by: {', '.join(by)}" if by else None
