"""Take a snapshot, each probe with its own time limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from workbench.resources.gpus.nvml import Library, NvmlUnavailable
from workbench.resources.gpus.probe import probe_gpus
from workbench.resources.host.probe import HostInfo, probe_host, unknown_host
from workbench.resources.nccl_settings import NcclSettings
from workbench.resources.nics.probe import probe_nics
from workbench.resources.pcie.probe import by_nvml, probe_pcie
from workbench.resources.snapshot import Snapshot
from workbench.resources.snapshot_record import Probe
from workbench.resources.time_limited_call import TimeLimitedCall
from workbench.resources.unknown import Unknown

_log = logging.getLogger(__name__)

T = TypeVar("T")

# All snapshots of a process share these calls, so that a driver that hangs blocks one thread,
# not one for each snapshot.
_CALLS = {
    "host": TimeLimitedCall("the kernel"),
    "gpus": TimeLimitedCall("NVML"),
    "nics": TimeLimitedCall("sysfs"),
    "pcie": TimeLimitedCall("sysfs or the topology file"),
}


def take_snapshot(
    *,
    sysfs: str | Path = "/sys",
    procfs: str | Path = "/proc",
    devfs: str | Path = "/dev",
    nvml: Library | None = None,
    nccl: NcclSettings | None = None,
    time_limit_s: float = 10.0,
) -> Snapshot:
    """Take a snapshot of this VM: its host, GPUs, NICs and PCIe.

    What cannot be read is empty or `Unknown`, and ``probes`` has the reason.

    Parameters
    ----------
    sysfs, procfs, devfs
        Where the kernel's file systems are mounted.
    nvml
        An object that behaves like ``pynvml``; by default ``pynvml``.
    nccl
        NCCL's settings, among them its topology file; by default this process's.
    time_limit_s
        Time limit of each probe in seconds. NVML needs seconds if the persistence mode is off.
    """
    sysfs, procfs = Path(sysfs), Path(procfs)
    settings = NcclSettings() if nccl is None else nccl
    host, host_probe = _run(
        "host", lambda: probe_host(sysfs, procfs, Path(devfs), settings), time_limit_s
    )
    nics, nics_probe = _run("nics", lambda: probe_nics(sysfs), time_limit_s)
    pcie, pcie_probe = _run("pcie", lambda: probe_pcie(sysfs, settings), time_limit_s)
    gpu_parts, gpus_probe = _run("gpus", lambda: probe_gpus(nvml, time_limit_s), time_limit_s)
    gpus, gpu_pairs = gpu_parts or ((), Unknown(gpus_probe.reason))
    if pcie is not None and not isinstance(gpu_pairs, Unknown):
        pcie = replace(pcie, distances=(*pcie.distances, *by_nvml(gpus, gpu_pairs)))
    if nics_probe.status == "ok" and not nics:
        nics_probe = Probe("absent", "this machine has no network interface", nics_probe.elapsed_ms)
    if gpus_probe.status == "ok" and not gpus:
        gpus_probe = Probe("absent", "the NVIDIA driver finds no GPU", gpus_probe.elapsed_ms)
    if pcie is not None and not pcie.trees:
        pcie_probe = Probe("absent", "this machine has no PCI", pcie_probe.elapsed_ms)
    return Snapshot(
        taken_at=time.time(),
        host=host if isinstance(host, HostInfo) else unknown_host(host_probe.reason),
        gpus=gpus,
        gpu_pairs=gpu_pairs,
        nics=nics or (),
        pcie=Unknown(pcie_probe.reason) if pcie is None else pcie,
        probes={"host": host_probe, "gpus": gpus_probe, "nics": nics_probe, "pcie": pcie_probe},
    )


def _run(name: str, probe: Callable[[], T], limit_s: float) -> tuple[T | None, Probe]:
    started = time.perf_counter()
    status = "ok"
    reason = ""
    value = None
    try:
        result = _CALLS[name].run(probe, limit_s)
    except NvmlUnavailable as error:
        status = "absent" if error.absent else "failed"
        reason = str(error)
    except Exception as error:  # noqa: BLE001  # a probe that fails only affects its own values
        status = "failed"
        reason = f"{type(error).__name__}: {error}"
    else:
        if isinstance(result, Unknown):
            status = "failed"
            reason = result.reason
        else:
            value = result
    elapsed_ms = round((time.perf_counter() - started) * 1000, 3)
    _log.debug("Probe of %s: %s after %.0f ms %s", name, status, elapsed_ms, reason)
    return value, Probe(status, reason, elapsed_ms)
