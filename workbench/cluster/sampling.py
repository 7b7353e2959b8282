"""Asks ranks to sample the lines of Python at which iterations are in no phase."""

from __future__ import annotations

import time

from workbench.cluster.state import ClusterState
from workbench.errors import UsageError
from workbench.wire.sample_messages import LineSamplesRequest

_ANSWER_S = 2.0
"""How long the answer of a rank may take to arrive."""
_POLL_S = 0.05


def sample_lines(state: ClusterState, running: tuple[int, ...], seconds: float) -> bool:
    """Sample the running cell for some seconds, or all of the next one; return which.

    Parameters
    ----------
    running
        The ranks of the cell that runs, if one does.
    """
    processes, samples = state.usable(), state.timings.line_samples
    recorded = state.timings.running if running else state.timings.recording
    if not recorded:
        raise UsageError(
            f"Cannot sample {'the running' if running else 'the next'} cell: it is not recorded. "
            "Switch recording on with %timings on before it."
        )
    asked = set(running or range(state.n))
    samples.clear()
    for rank in asked:
        processes.send(rank, LineSamplesRequest(seconds))
    deadline = time.monotonic() + _ANSWER_S + (seconds if running else 0)
    while time.monotonic() < deadline and not asked <= set(samples):
        time.sleep(_POLL_S)
    return bool(running)
