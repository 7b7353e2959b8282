"""Limits and use of control groups, versions 1 and 2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workbench.resources.files import read_int, read_text
from workbench.resources.unknown import Unknown

# Version 1 writes "no limit" as the highest page-aligned 63-bit number.
_NO_LIMIT_V1 = 1 << 62


@dataclass(frozen=True)
class Cgroups:
    """The control groups of this process: its own group, then the groups above it.

    In a container only the lowest groups are visible, so limits set above them are unknown.

    Attributes
    ----------
    memory, cpu
        Folders of the groups of the memory controller and of the CPU controller.
    """

    memory: tuple[Path, ...]
    cpu: tuple[Path, ...]

    def memory_limit_bytes(self) -> int | None:
        """Return the lowest memory limit of all groups; None if no group has a limit."""
        limits = [
            value
            for folder in self.memory
            for name in ("memory.max", "memory.limit_in_bytes")
            if isinstance(value := read_int(folder / name), int) and value < _NO_LIMIT_V1
        ]
        return min(limits, default=None)

    def memory_used_bytes(self) -> int | Unknown:
        """Return the memory that the group uses, without its inactive file cache."""
        folder = self.memory[0]
        for name in ("memory.current", "memory.usage_in_bytes"):
            used = read_int(folder / name)
            if isinstance(used, int):
                return max(0, used - _inactive_file(folder))
        return Unknown(f"{folder} does not report the memory use of the group")

    def cpu_used_s(self) -> float | Unknown:
        """Return the CPU seconds that the group has used so far."""
        folder = self.cpu[0]
        usage_us = stat_values(folder / "cpu.stat").get("usage_usec")
        if usage_us is not None:
            return usage_us / 1e6
        usage_ns = read_int(folder / "cpuacct.usage")
        return usage_ns if isinstance(usage_ns, Unknown) else usage_ns / 1e9

    def cpu_quota(self) -> float | None:
        """Return the lowest CPU quota of all groups, in CPUs; None if no group has a quota."""
        quotas = [value for folder in self.cpu if (value := _quota(folder)) is not None]
        return min(quotas, default=None)


def find_cgroups(sysfs: Path, procfs: Path) -> Cgroups:
    """Return the groups of this process below ``/sys/fs/cgroup``."""
    text = read_text(procfs / "self/cgroup")
    rows = [] if isinstance(text, Unknown) else [line.split(":", 2) for line in text.splitlines()]
    root = sysfs / "fs/cgroup"
    groups = {"": (root, "/")}
    for _, controllers, path in (row for row in rows if len(row) == 3):
        for controller in controllers.split(","):
            groups[controller] = (root / controller if controller else root, path)
    memory, cpu = (groups.get(name, groups[""]) for name in ("memory", "cpu"))
    return Cgroups(memory=_chain(*memory), cpu=_chain(*cpu))


def _chain(root: Path, path: str) -> tuple[Path, ...]:
    """Return the folder of a group, then the folders above it, up to the root."""
    group = root / path.strip("/")
    folders = [group, *group.parents]
    # In a container, the path may be the one on the host. Then only the root exists here.
    return tuple(folder for folder in folders[: folders.index(root) + 1] if folder.is_dir()) or (
        root,
    )


def stat_values(path: Path) -> dict[str, int]:
    """Return the content of a file with lines ``name number``; empty if it cannot be read."""
    text = read_text(path)
    if isinstance(text, Unknown):
        return {}
    pairs = (line.partition(" ") for line in text.splitlines())
    return {name: int(value) for name, _, value in pairs if value.isdigit()}


def _inactive_file(folder: Path) -> int:
    values = stat_values(folder / "memory.stat")
    return values.get("total_inactive_file", values.get("inactive_file", 0))


def _quota(folder: Path) -> float | None:
    text = read_text(folder / "cpu.max")
    if isinstance(text, str):
        quota, _, period = text.partition(" ")
        return None if quota == "max" else int(quota) / int(period or 100_000)
    quota_us = read_int(folder / "cpu.cfs_quota_us")
    period_us = read_int(folder / "cpu.cfs_period_us")
    if isinstance(quota_us, int) and isinstance(period_us, int) and quota_us > 0:
        return quota_us / period_us
    return None
