"""Sample a cluster's VMs, for its run on disk and for the use of its GPUs."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

from workbench.resources.use import is_on
from workbench.timings.samples import PERIOD_S

if TYPE_CHECKING:
    from workbench.cluster.processes import ClusterProcesses
    from workbench.cluster.use_meter import UseMeter
    from workbench.timings import Timings

_log = logging.getLogger(__name__)

_BETWEEN_CELLS_S = 8.0
"""Period between cells; agents end their sampler after 10 s without a question."""
_DOWN = frozenset({"stopping", "stopped", "starting"})


class Sampled(Protocol):
    """The sampled cluster; see `ClusterState`."""

    name: str
    state: str
    processes: ClusterProcesses

    @property
    def forked(self) -> bool:
        """Whether the ranks belong to another process."""

    @property
    def timings(self) -> Timings:
        """The timings since the last start."""


class ClusterSampler:
    """A thread that samples all VMs of a cluster while it is up.

    Each VM is sampled every 2 s while a cell runs. Between cells, it is sampled every 8 s, only
    for the use of GPUs. A sample takes about 2 ms of CPU time on its VM. There is no thread if
    neither the run nor the use of GPUs is recorded.
    """

    def __init__(self, state: Sampled) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def on_change(self) -> None:
        """Begin, speed up or end sampling, as the cluster's state requires; for any thread."""
        self._changed.set()
        if not self._is_needed():
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="workbench-samples", daemon=True
                )
                _log.debug("%s: starting to sample the VMs", self._state.name)
                self._thread.start()

    def _is_needed(self) -> bool:
        state = self._state
        return state.state not in _DOWN and not state.forked and (self._records() or is_on())

    def _records(self) -> bool:
        """Return whether samples are stored with the run, because a recorded cell runs."""
        return self._state.state == "running" and self._state.timings.recording

    def _run(self) -> None:
        from workbench.cluster.use_meter import UseMeter

        meter = UseMeter(self._state.name)
        while True:
            self._changed.clear()
            began = time.monotonic()
            with self._lock:
                if not self._is_needed():
                    self._thread = None
                    break
            self._take_sample(meter)
            period_s = PERIOD_S if self._state.state == "running" else _BETWEEN_CELLS_S
            self._changed.wait(began + period_s - time.monotonic())
            # at most one sample is taken in half a period, even if the state changes often
            time.sleep(max(0.0, began + PERIOD_S / 2 - time.monotonic()))
        meter.flush()

    def _take_sample(self, meter: UseMeter) -> None:
        from workbench.cluster.agents import samples

        processes = self._state.processes
        timings = self._state.timings
        in_cell = self._state.state == "running"
        recorded = self._records()
        try:
            samples_by_vm = samples(processes.agents.all)
            if recorded:
                timings.samples.add(time.time(), samples_by_vm)
            if is_on():
                meter.add(processes.engines.ranks, samples_by_vm, in_cell=in_cell)
        except Exception:  # noqa: BLE001 - the cluster may be stopping; training must continue
            _log.debug("%s: a sample failed", self._state.name, exc_info=True)
