"""The proof that a Horovod works: two real ranks agree on a sum."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from workbench.horovod_build.command import end_group
from workbench.horovod_build.failure import failed

_SCRIPT = Path(__file__).with_name("proof_ranks.py")
LIMIT_S = 120.0
"""How long two ranks may take to import PyTorch and agree, on a loaded machine."""


def prove(limit_s: float = LIMIT_S) -> float:
    """Sum a tensor over two ranks on this machine, with Gloo over loopback.

    Parameters
    ----------
    limit_s
        When to give up; the ranks are ended then, as on every other way out.

    Returns
    -------
    float
        Seconds from the start of both ranks to the end of both.

    Raises
    ------
    BuildFailed
        Where the ranks did not agree in time.
    """
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, str(_SCRIPT)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise failed(
            f"it is installed, but two ranks did not agree on a sum within {limit_s:.0f} s.",
            "Look for a firewall on the loopback interface, or a machine busy with other work.",
        ) from error
    finally:
        end_group(process)
    _require_sums(said)
    return time.monotonic() - began


def _require_sums(said: str) -> None:
    told = [line for line in said.splitlines() if line.startswith("RANK ")]
    results = [json.loads(line.removeprefix("RANK ")) for line in told]
    if sorted(result["rank"] for result in results) == [0, 1] and all(
        result["sum"] == result["expected"] for result in results
    ):
        return
    lines = [line.strip()[:200] for line in said.splitlines() if line.strip()]
    raise failed(
        "it is installed, but two ranks could not sum a tensor over Gloo.",
        "The lines below say why; `workbench build-horovod --rebuild` compiles it anew.",
        lines=lines[-8:],
    )
