"""The figures of a running cluster, for whoever serves them to Prometheus.

The Jupyter server answers ``/metrics``, and is another process than the kernel:
it reads an entry per cluster, which is renewed once a second while a cell runs.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.resources.process_registry import FOLDER, ProcessRegistry
from workbench.timings.derive import bandwidth_gbps
from workbench.timings.store import PHASES, Rows, communication_unseen, warm

if TYPE_CHECKING:
    from workbench.timings.timings import Timings

log = logging.getLogger(__name__)

VERSION = 1
PERIOD_S = 1.0
_END_S = 2.0


class Publisher:
    """Posts what a cluster's ranks have spent so far, from a thread of its own.

    Parameters
    ----------
    timings
        Whose rows to add up; each is looked at once.
    cluster
        Its name.
    registry
        Where to; the user's runtime folder by default.
    """

    def __init__(
        self, timings: Timings, cluster: str, registry: ProcessRegistry | None = None
    ) -> None:
        self._timings = timings
        self._cluster = cluster
        self._registry = registry or ProcessRegistry(_runtime_folder() / FOLDER)
        self._cursor = 0
        self._ranks: dict[int, dict[str, Any]] = {}
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._unsubscribe = timings.subscribe(self._wake.set)
        self._thread = threading.Thread(target=self._run, name="workbench-publisher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Withdraw what was posted; returns when the thread has ended, or a disk hangs.

        A thread that is in NumPy when the interpreter ends would abort the process.
        """
        self._closed.set()
        self._wake.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._wake.wait()
                self._wake.clear()
                self._post()
                while self._timings.running and not self._closed.wait(PERIOD_S):
                    self._post()
        except OSError as error:
            log.warning("cluster %s is not in the server's /metrics: %s", self._cluster, error)
        finally:
            self._unsubscribe()
            self._withdraw()

    def _withdraw(self) -> None:
        try:
            self._registry.unregister(self._cluster)
        except OSError as error:
            log.warning("cluster %s stays in the server's /metrics: %s", self._cluster, error)

    def _post(self) -> None:
        first, rows = self._timings.read(self._cursor)
        self._cursor = first + len(rows)
        for rank in np.unique(rows["rank"]).tolist():
            self._add(rank, rows[rows["rank"] == rank])
        dropped, vms = self._timings.dropped_by_rank, self._timings.places()
        ranks = [
            {
                "rank": rank,
                "vm": vms[rank],
                "dropped": dropped.get(rank, 0),
                **figures,
            }
            for rank, figures in sorted(self._ranks.items())
            if rank in vms  # a ring that shrank has fewer than before
        ]
        content = {"version": VERSION, "cluster": self._cluster, "time_s": time.time()}
        self._registry.register(self._cluster, {**content, "ranks": ranks})

    def _add(self, rank: int, rows: Rows) -> None:
        """Add a rank's new rows to its sums; its latest figures are their means.

        The sums have every iteration; the means are those of a `summary.Summary`.
        """
        before = self._ranks.get(rank, {})
        spent = {phase: float(rows[f"{phase}_ns"].sum() / 1e9) for phase in PHASES}
        spent["communication"] = float(rows["communication_ns"].sum() / 1e9)
        past = before.get("seconds", {})
        newest = warm(rows)
        duration, exposed = newest["iteration_ns"].sum(), newest["exposed_ns"].sum()
        silent = communication_unseen(newest).all()
        self._ranks[rank] = {
            "iterations": before.get("iterations", 0) + len(rows),
            "bytes": before.get("bytes", 0) + int(rows["bytes"].sum()),
            "seconds": {name: past.get(name, 0.0) + value for name, value in spent.items()},
            "latest": {
                "iteration": int(rows["iteration"].max()),
                "iteration_s": float(duration / len(newest) / 1e9),
                "exposed_share": None if silent or not duration else float(exposed / duration),
                "algbw_gbps": _known(bandwidth_gbps(newest, bus=False)),
                "busbw_gbps": _known(bandwidth_gbps(newest, bus=True)),
            },
        }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _runtime_folder() -> Path:
    from jupyter_core.paths import jupyter_runtime_dir

    return Path(jupyter_runtime_dir())
