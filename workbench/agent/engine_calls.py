"""What an engine of another ipyparallel cluster runs for the kernel: short calls.

It describes itself, starts the agent of its machine in processes of their own, and gives its
variables and cores to a rank. It goes on with its user's work.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench._version import __version__
from workbench.agent import mpi_slot
from workbench.resources import Unknown
from workbench.resources.host.machine import machine_identity
from workbench.wire.foreign_engine import ForeignEngine, start_ticks

_REACH_S = 2.0
_OWN = (*mpi_slot.VARIABLES, "IPP_")
"""Begin the variables of this engine alone: with them, another process would pass for it."""


def describe(addresses: Sequence[str], port: int, token: str) -> dict[str, Any]:
    """Return this engine, and at which addresses it reaches the kernel, which sends the token.

    These are the fields of `ForeignEngine` as plain values, which a kernel with another version of
    this package can read too, and that version.
    """
    machine = machine_identity()
    engine = ForeignEngine(
        machine=None if isinstance(machine, Unknown) else machine,
        host=socket.gethostname(),
        job=_job(),
        pid=os.getpid(),
        began=start_ticks(os.getpid()),
        python=platform.python_version(),
        executable=sys.executable,
        cores=tuple(sorted(os.sched_getaffinity(0))),
        gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
        routes=_routes(addresses, port, token),
    )
    return {"version": __version__, **asdict(engine)}


def _job() -> str:
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def _routes(addresses: Sequence[str], port: int, token: str) -> dict[str, str]:
    def own(address: str) -> str:
        try:
            with socket.create_connection((address, port), timeout=_REACH_S) as connection:
                same = connection.makefile("rb").readline() == token.encode() + b"\n"
                return str(connection.getsockname()[0]) if same else ""
        except OSError:
            return ""

    with ThreadPoolExecutor() as threads:
        found = zip(addresses, threads.map(own, addresses), strict=True)
        return {address: text for address, text in found if text}


def start(given: dict[str, Any], limit_s: float) -> str | None:
    """Start the agent; return the line of `workbench.agent.tunnel`, or why it failed.

    Return None if it takes longer than `limit_s` seconds.
    """
    environment = {name: text for name, text in os.environ.items() if not name.startswith(_OWN)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "workbench.agent.tunnel"],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return (done.stdout + done.stderr).strip()


def give(folder: str, slots: Sequence[int], cores: Sequence[int]) -> None:
    """Write this engine's variables for the ranks of slots, and its cores if they are not all."""
    own = os.sched_getaffinity(0)
    given = {
        "environment": {n: text for n, text in os.environ.items() if not n.startswith(_OWN)},
        "cores": [] if own >= set(cores) else sorted(own),
    }
    for slot in slots:
        mpi_slot.write(Path(folder), slot, given)
