"""Sample the use of CPU, memory, GPUs, NICs and processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

from workbench.resources.files import read_text
from workbench.resources.gpus.counters import GpuMeter
from workbench.resources.gpus.nvml import Library
from workbench.resources.host.cgroup import find_cgroups
from workbench.resources.host.probe import cpu_capacity, meminfo_bytes
from workbench.resources.nics.counters import NicMeter
from workbench.resources.processes.meter import ProcessMeter
from workbench.resources.processes.proc import Proc
from workbench.resources.unknown import Unknown
from workbench.resources.usage import CpuUse, MemoryUse, Rate, Sample

# /proc/stat: user, nice, system, idle, iowait, irq, softirq; steal and guest are left out.
_BUSY_COLUMNS = (1, 2, 3, 6, 7)


class Sampler:
    """Reads the current use of this VM whenever `sample` is called.

    Reading blocks, for at most `time_limit_s` if NVML hangs, so do not call it on an event
    loop. Use it from one thread at a time.

    Parameters
    ----------
    sysfs, procfs
        Where the kernel's file systems are mounted.
    nvml
        An object that behaves like ``pynvml``; by default ``pynvml``.
    time_limit_s
        Seconds that NVML may take for one sample.
    ranks
        Folder in which ranks register; by default this user's folder.
    errors_s
        Minimum seconds between two readings of an RDMA port's error counters.
    """

    def __init__(
        self,
        *,
        sysfs: str | Path = "/sys",
        procfs: str | Path = "/proc",
        nvml: Library | None = None,
        time_limit_s: float = 0.5,
        ranks: Path | None = None,
        errors_s: float = 5.0,
    ) -> None:
        self._procfs = Path(procfs)
        self._cgroups = find_cgroups(Path(sysfs), self._procfs)
        self._cpu_rate = Rate()
        proc = Proc(self._procfs)
        self._gpus = GpuMeter(nvml, time_limit_s, sees_all=proc.is_whole_machine())
        self._nics = NicMeter(Path(sysfs), errors_s)
        self._processes = ProcessMeter(proc, ranks)

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sample(self) -> Sample:
        """Read everything once; rates need a previous sample."""
        gpus = self._gpus.read()
        return Sample(
            time=time.time(),
            cpu=CpuUse(self._cpu_percent()),
            memory=self._memory(),
            gpus=gpus.gpus,
            nics=self._nics.read(),
            processes=self._processes.read(gpus.processes),
        )

    def close(self) -> None:
        """Shut NVML down."""
        self._gpus.close()

    def _cpu_percent(self) -> float | Unknown:
        # In a container with a quota, measure the container and not the VM.
        limited = self._cgroups.cpu_quota() is not None
        used_s = self._cgroups.cpu_used_s() if limited else _busy_s(self._procfs)
        rate = self._cpu_rate.update(used_s, time.monotonic())
        if isinstance(rate, Unknown):
            return rate
        # Limit to 100 %: the kernel counts in ticks, so the CPU time of a short interval may
        # exceed the interval.
        return min(100.0, 100 * rate / cpu_capacity(self._cgroups))

    def _memory(self) -> MemoryUse:
        total = meminfo_bytes(self._procfs, "MemTotal")
        limit = self._cgroups.memory_limit_bytes()
        if limit is not None and (isinstance(total, Unknown) or limit < total):
            return MemoryUse(self._cgroups.memory_used_bytes(), limit)
        available = meminfo_bytes(self._procfs, "MemAvailable")
        if isinstance(total, Unknown) or isinstance(available, Unknown):
            return MemoryUse(available, total)
        return MemoryUse(total - available, total)


def _busy_s(procfs: Path) -> float | Unknown:
    """Return the total busy seconds of the CPUs in this process's affinity."""
    text = read_text(procfs / "stat")
    if isinstance(text, Unknown):
        return text
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    rows = [row for row in map(str.split, text.splitlines()) if row and row[0] in names]
    if not rows or min(map(len, rows)) <= max(_BUSY_COLUMNS):
        return Unknown(f"{procfs / 'stat'} does not list this process's CPUs")
    ticks = sum(int(row[i]) for row in rows for i in _BUSY_COLUMNS)
    return ticks / os.sysconf("SC_CLK_TCK")
