"""What a container may use: limits and use of control groups, versions 1 and 2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workbench.resources.files import read_int, read_text
from workbench.resources.unknown import Unknown

# Version 1 writes "no limit" as the highest page-aligned 63-bit number.
_NO_LIMIT_V1 = 1 << 62


@dataclass(frozen=True)
class Cgroups:
    """The control groups above this process, own group first.

    In a container only the lowest few are visible; limits set above them
    cannot be seen from inside.

    Attributes
    ----------
    memory, cpu
        Folders of the groups that hold the memory and the CPU controller.
    """

    memory: tuple[Path, ...]
    cpu: tuple[Path, ...]

    def memory_limit_bytes(self) -> int | None:
        """Give the lowest limit of all groups, None where none is set."""
        limits = [
            value
            for folder in self.memory
            for name in ("memory.max", "memory.limit_in_bytes")
            if isinstance(value := read_int(folder / name), int) and value < _NO_LIMIT_V1
        ]
        return min(limits, default=None)

    def memory_used_bytes(self) -> int | Unknown:
        """Give what the group holds and cannot drop at once (no inactive file cache)."""
        folder = self.memory[0]
        for name in ("memory.current", "memory.usage_in_bytes"):
            used = read_int(folder / name)
            if isinstance(used, int):
                return max(0, used - _inactive_file(folder))
        return Unknown(f"{folder} does not say what the group uses")

    def cpu_used_s(self) -> float | Unknown:
        """Give the CPU seconds that the group has used so far."""
        folder = self.cpu[0]
        usage_us = stat_values(folder / "cpu.stat").get("usage_usec")
        if usage_us is not None:
            return usage_us / 1e6
        usage_ns = read_int(folder / "cpuacct.usage")
        return usage_ns if isinstance(usage_ns, Unknown) else usage_ns / 1e9

    def cpu_quota(self) -> float | None:
        """Give the CPUs' worth of time that all groups allow, None where none is set."""
        quotas = [value for folder in self.cpu if (value := _quota(folder)) is not None]
        return min(quotas, default=None)


def find_cgroups(sysfs: Path, procfs: Path) -> Cgroups:
    """Find the groups of this process under ``/sys/fs/cgroup``."""
    text = read_text(procfs / "self/cgroup")
    entries = [] if isinstance(text, Unknown) else [x.split(":", 2) for x in text.splitlines()]
    root = sysfs / "fs/cgroup"
    places = {"": (root, "/")}
    for _, controllers, path in (entry for entry in entries if len(entry) == 3):
        for controller in controllers.split(","):
            places[controller] = (root / controller if controller else root, path)
    memory, cpu = (places.get(name, places[""]) for name in ("memory", "cpu"))
    return Cgroups(memory=_chain(*memory), cpu=_chain(*cpu))


def _chain(root: Path, path: str) -> tuple[Path, ...]:
    own = root / path.strip("/")
    folders = [own, *own.parents]
    # Inside a container the path may be the host's, of which only the root exists.
    return tuple(x for x in folders[: folders.index(root) + 1] if x.is_dir()) or (root,)


def stat_values(path: Path) -> dict[str, int]:
    """Read a file of lines ``name number``; empty where there is no such file."""
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
