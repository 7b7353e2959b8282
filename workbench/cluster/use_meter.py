"""Add up how much a cluster's ranks use of their GPUs or CPUs."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from workbench.ranks import RankInfo
from workbench.resources import Unknown
from workbench.resources.usage import Sample
from workbench.resources.use import BUSY_SHARE, UseRecord, UseStore, is_on, notebook_name, today

_log = logging.getLogger(__name__)

_FLUSH_S = 30.0
"""Interval between writes to the store."""
_MAX_GAP_S = 30.0
"""A longer time between two samples is not counted as allocated: the machine was suspended."""
CPU_RANKS = "CPU ranks"


class UseMeter:
    """Adds up the use of a cluster's devices, and stores it about twice a minute.

    Parameters
    ----------
    cluster
        The cluster's name.
    store
        The store; see `UseStore`.
    clock
        Returns the seconds since the epoch.

    Attributes
    ----------
    error
        Why the use could not be stored; empty if it was.
    """

    def __init__(
        self,
        cluster: str,
        store: UseStore | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._clock = clock
        self._added: dict[tuple[str, str, str], UseRecord] = {}
        self._last_s: float | None = None
        self._in_cell = False
        self._flushed_s = clock()
        self.error = ""

    def add(
        self,
        ranks: Sequence[RankInfo],
        samples: Mapping[str, Sample | Unknown],
        *,
        in_cell: bool,
    ) -> None:
        """Count the time since the last call, with the use of each VM according to `samples`.

        `in_cell` is whether a cell runs from now on.
        """
        now = self._clock()
        last = self._last_s
        was_in_cell = self._in_cell
        self._last_s = now
        self._in_cell = in_cell
        if last is None or not 0 < now - last <= _MAX_GAP_S:
            return
        for (vm, device), users in _devices(ranks).items():
            sample = samples.get(vm, Unknown("the VM did not answer"))
            share = _share(sample, device, users)
            units = len(users) if device == CPU_RANKS else 1
            self._count(vm, device, (last, now), units, share, in_cell=was_in_cell)
        if now - self._flushed_s >= _FLUSH_S:
            self.flush()

    def _count(
        self,
        vm: str,
        device: str,
        span_s: tuple[float, float],
        units: int,
        share: float | Unknown,
        *,
        in_cell: bool,
    ) -> None:
        begin, now = span_s
        day = today()
        seconds = (now - begin) * units
        measured_s = 0.0 if isinstance(share, Unknown) else seconds
        used = 0.0 if isinstance(share, Unknown) else share
        before = self._added.get((day, vm, device)) or UseRecord(
            day, notebook_name(), self._cluster, vm, device, 0, 0, 0, 0, begin, now, 0
        )
        self._added[day, vm, device] = replace(
            before,
            allocated_s=before.allocated_s + seconds,
            measured_s=before.measured_s + measured_s,
            used_s=before.used_s + seconds * used,
            cells_s=before.cells_s + (seconds if in_cell else 0.0),
            last_s=now,
            busy_s=now if used >= BUSY_SHARE else before.busy_s,
        )

    def flush(self) -> None:
        """Store the added use; if that fails, keep it for the next time."""
        self._flushed_s = self._clock()
        if not self._added or not is_on():
            return
        try:
            (self._store or UseStore()).add(self._added.values())
        except (OSError, sqlite3.Error, RuntimeError) as error:  # RuntimeError: no home folder
            _log.info("%s: the use of GPUs could not be stored: %s", self._cluster, error)
            self.error = f"the use of GPUs is not being stored: {error}"
        else:
            self._added = {}
            self.error = ""


def _devices(ranks: Sequence[RankInfo]) -> dict[tuple[str, str], list[RankInfo]]:
    """Return the running ranks, by VM and device.

    Examples
    --------
    >>> cpu = RankInfo(0, "vm1", 11, "CPU", "", "", "ready", 4)
    >>> gpu = RankInfo(1, "vm1", 12, "0 (NVIDIA H100)", "", "", "ready", 4)
    >>> list(_devices([cpu, gpu]))
    [('vm1', 'CPU ranks'), ('vm1', 'GPU 0')]
    """
    ranks_by_device: dict[tuple[str, str], list[RankInfo]] = {}
    for rank in ranks:
        if rank.state != "dead":
            number = rank.gpu.partition(" ")[0]
            device = CPU_RANKS if number == "CPU" else f"GPU {number}"
            ranks_by_device.setdefault((rank.vm, device), []).append(rank)
    return ranks_by_device


def _share(sample: Sample | Unknown, device: str, users: Sequence[RankInfo]) -> float | Unknown:
    """Return the used share of a device, 0 to 1."""
    if isinstance(sample, Unknown):
        return sample
    if device == CPU_RANKS:
        return _cpu_share(sample, users)
    uses = [gpu for gpu in sample.gpus if f"GPU {gpu.index}" == device]
    if len(uses) != 1:  # MIG devices share an index
        return Unknown("its utilization is not reported")
    percent = uses[0].utilization_percent
    return percent if isinstance(percent, Unknown) else percent / 100


def _cpu_share(sample: Sample, users: Sequence[RankInfo]) -> float | Unknown:
    if isinstance(sample.processes, Unknown):
        return sample.processes
    percents = {process.pid: process.cpu_percent for process in sample.processes}
    shares = []
    for rank in users:
        percent = percents.get(rank.pid, Unknown("its process is not listed"))
        if isinstance(percent, Unknown):
            return percent
        shares.append(min(1.0, percent / 100 / max(1, rank.threads)))
    return sum(shares) / len(shares)
