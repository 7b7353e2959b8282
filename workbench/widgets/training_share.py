"""The share of exposed communication in the current training, for JupyterLab's status bar."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workbench.resources import Unknown
from workbench.resources.codec import encode

if TYPE_CHECKING:
    from workbench.cluster import Cluster

PERIOD_S = 10.0
"""Shortest interval between messages while a cell runs."""
_NOT_YET = Unknown("no iteration has ended yet")
_NOT_TIMED = Unknown("the communication of this training cannot be timed")


class TrainingShare:
    """Sender of ``{"type": "training", "exposed_share": ...}``: 0 to 1, or unknown."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._due = float("-inf")

    def update(self, cluster: Cluster | None, *, now: bool) -> None:
        """Send the share of the newest iterations, at most once per `PERIOD_S` unless `now`."""
        if cluster is None or (not now and time.monotonic() < self._due):
            return
        self._due = time.monotonic() + PERIOD_S
        self._send({"type": "training", "exposed_share": encode(exposed_share(cluster))})


def exposed_share(cluster: Cluster) -> float | Unknown:
    """Return the exposed share of the newest iterations, over all ranks, or why it is unknown."""
    if cluster.state in {"stopped", "starting"}:
        return _NOT_YET  # without loading the modules below
    from workbench.timings.summary import LATEST, summarize

    timings = cluster.timings
    if not len(timings):
        return _NOT_YET
    rows = timings.rows(max(0, len(timings) - 2 * LATEST * max(1, cluster.n)))
    share = round(summarize(rows, LATEST).exposed_share, 3)
    return _NOT_TIMED if math.isnan(share) else share
