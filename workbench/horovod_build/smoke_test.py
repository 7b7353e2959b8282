"""Smoke test of the installed Horovod: two ranks sum a tensor and record the times of the sum."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path

from workbench.horovod_build.commands import running
from workbench.horovod_build.failures import failed

_log = logging.getLogger(__name__)

_SCRIPT = Path(__file__).with_name("smoke_test_ranks.py")
LIMIT_S = 120.0
"""Time limit for two ranks to import PyTorch and compute a sum, on a loaded machine."""


def run_smoke_test(limit_s: float = LIMIT_S) -> float:
    """Sum a tensor over two ranks on this machine, with Gloo over loopback.

    The ranks are terminated in any case. Return the seconds that they took.

    Raises
    ------
    BuildFailed
        If the ranks did not compute the expected sum in time.
    """
    started = time.monotonic()
    try:
        with running([sys.executable, str(_SCRIPT)]) as process:
            output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise failed(
            f"it is installed, but two ranks did not compute a sum within {limit_s:.0f} s.",
            "Check for a firewall on the loopback interface, or other work that loads the machine.",
        ) from error
    _check_sums(output)
    elapsed_s = time.monotonic() - started
    _log.debug("Two ranks computed a sum in %.1f s", elapsed_s)
    return elapsed_s


def _check_sums(output: str) -> None:
    lines = [line.strip()[:200] for line in output.splitlines() if line.strip()]
    results = [
        json.loads(line.removeprefix("RANK "))
        for line in output.splitlines()
        if line.startswith("RANK ")
    ]
    if sorted(result["rank"] for result in results) == [0, 1] and all(
        result["sum"] == result["expected"] and result["recorded"] == 1 for result in results
    ):
        return
    raise failed(
        "it is installed, but two ranks could not sum a tensor over Gloo and record its times.",
        "See the lines below; `workbench build-horovod --rebuild` compiles it again.",
        lines=lines[-8:],
    )
