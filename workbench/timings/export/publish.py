"""Publication of the figures of a running cluster for Prometheus.

The Jupyter server serves ``/metrics``, in another process than the kernel. It reads one file per
cluster. The kernel updates the file once a second while a cell runs.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.resources.process_registry import FOLDER, ProcessRegistry, jupyter_folder
from workbench.timings.figures import is_most_typical, untypical
from workbench.timings.source import LiveSource
from workbench.timings.store import (
    PHASES,
    Rows,
    communication_unseen,
    peers_of,
)

_log = logging.getLogger(__name__)

VERSION = 1
PERIOD_S = 1.0
_END_S = 2.0


class Publisher:
    """Publisher of the sums and the latest means of a cluster's ranks, in a background thread.

    Parameters
    ----------
    timings
        The cluster's timings; each row is read once.
    cluster
        The cluster's name.
    """

    def __init__(self, timings: LiveSource, cluster: str) -> None:
        self._timings = timings
        self._cluster = cluster
        self._registry = ProcessRegistry(_runtime_folder() / FOLDER)
        self._cursor = 0
        self._ranks: dict[int, dict[str, Any]] = {}
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._unsubscribe = timings.subscribe(self._wake.set)
        self._thread = threading.Thread(target=self._run, name="workbench-publisher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Remove the published figures, and wait up to 2 seconds for the thread.

        The process would abort if the thread were in NumPy when the interpreter ends. The wait is
        limited, because the disk may hang.
        """
        self._closed.set()
        self._wake.set()
        self._thread.join(_END_S)
        if self._thread.is_alive():
            _log.info("the publisher of cluster %s has not ended in %g s", self._cluster, _END_S)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._wake.wait()
                self._wake.clear()
                self._post()
                while self._timings.running and not self._closed.wait(PERIOD_S):
                    self._post()
        except OSError as error:
            _log.warning("cluster %s is not in the server's /metrics: %s", self._cluster, error)
        finally:
            self._unsubscribe()
            self._withdraw()

    def _withdraw(self) -> None:
        try:
            self._registry.unregister(self._cluster)
        except OSError as error:
            _log.warning("cluster %s stays in the server's /metrics: %s", self._cluster, error)

    def _post(self) -> None:
        first, rows = self._timings.read(self._cursor, aligned=False)
        self._cursor = first + len(rows)
        if len(rows):
            self._add(rows)
        dropped = self._timings.dropped_by_rank
        vms = self._timings.vm_names()
        ranks = [
            {
                "rank": rank,
                "vm": vms[rank],
                "dropped": dropped.get(rank, 0),
                **figures,
            }
            for rank, figures in sorted(self._ranks.items())
            if rank in vms  # The ring may have shrunk since the rank's last row.
        ]
        content = {"version": VERSION, "cluster": self._cluster, "time_s": time.time()}
        self._registry.register(self._cluster, {**content, "ranks": ranks})

    def _add(self, rows: Rows) -> None:
        """Add each rank's new rows to its sums, and use their means as its latest figures.

        The sums include every iteration. The means are over the typical iterations
        (`figures.typical`).
        """
        rows = rows[np.argsort(rows["rank"], kind="stable")]
        ranks, begins = np.unique(rows["rank"], return_index=True)
        counts = np.diff(begins, append=len(rows))

        def total(values: npt.NDArray[Any]) -> list[Any]:
            added: list[Any] = np.add.reduceat(values, begins).tolist()
            return added

        # The sums are computed for all ranks together, because a NumPy call per rank would be slow.
        newest = is_most_typical(untypical(rows), begins)
        busy = newest & (rows["communication_ns"] > 0)
        n = np.maximum(peers_of(rows), 1)
        bits = np.where(busy, rows["bytes"] * 8.0, 0.0)
        columns = {
            "iteration": np.maximum.reduceat(rows["iteration"], begins).tolist(),
            "count": counts.tolist(),
            "bytes": total(rows["bytes"]),
            "newest": total(newest.astype(np.int64)),
            "duration_ns": total(np.where(newest, rows["iteration_ns"], 0)),
            "exposed_ns": total(np.where(newest, rows["exposed_ns"], 0)),
            "with_communication": total((newest & ~communication_unseen(rows)).astype(np.int64)),
            "busy_ns": total(np.where(busy, rows["communication_ns"], 0)),
            "bits": total(bits),
            "bus_bits": total(bits * (2 * (n - 1) / n)),
            **{name: total(rows[f"{name}_ns"]) for name in (*PHASES, "communication")},
        }
        for rank, values in zip(ranks.tolist(), zip(*columns.values(), strict=True), strict=True):
            earlier = self._ranks.get(rank, {})
            self._ranks[rank] = _figures(earlier, dict(zip(columns, values, strict=True)))


def _figures(earlier: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return a rank's figures, computed from its earlier figures and its new sums."""
    earlier_seconds = earlier.get("seconds", {})
    duration = new["duration_ns"]
    busy = new["busy_ns"]
    is_unknown = not new["with_communication"] or not duration
    return {
        "iterations": earlier.get("iterations", 0) + new["count"],
        "bytes": earlier.get("bytes", 0) + new["bytes"],
        "seconds": {
            name: earlier_seconds.get(name, 0.0) + new[name] / 1e9
            for name in (*PHASES, "communication")
        },
        "latest": {
            "iteration": new["iteration"],
            "iteration_s": duration / new["newest"] / 1e9,
            "exposed_share": None if is_unknown else new["exposed_ns"] / duration,
            "algbw_gbps": new["bits"] / busy if busy else None,
            "busbw_gbps": new["bus_bits"] / busy if busy else None,
        },
    }


def _runtime_folder() -> Path:
    from jupyter_core.paths import jupyter_runtime_dir

    return jupyter_folder(jupyter_runtime_dir())
