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
from pathlib import Path
from typing import Any

import psutil

from workbench.agent import mpi_slot
from workbench.resources import Unknown
from workbench.resources.host.machine import machine_identity
from workbench.wire.foreign_engine import ForeignEngine

_REACH_S = 2.0
_START_S = 45.0
_OWN = (*mpi_slot.VARIABLES, "IPP_")
"""Begin the variables of this engine alone: with them, another process would pass for it."""


def describe(addresses: Sequence[str], port: int, token: str) -> ForeignEngine:
    """Return this engine, and at which addresses it reaches the kernel, which sends the token."""
    machine = machine_identity()
    process = psutil.Process()
    return ForeignEngine(
        machine=None if isinstance(machine, Unknown) else machine,
        host=socket.gethostname(),
        job=_job(),
        pid=process.pid,
        began=process.create_time(),
        python=platform.python_version(),
        executable=sys.executable,
        cores=tuple(sorted(os.sched_getaffinity(0))),
        gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
        routes=_routes(addresses, port, token),
    )


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


def start(given: dict[str, Any]) -> str:
    """Start the agent; return the line of `workbench.agent.tunnel`, or why it failed."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(_OWN)}
    done = subprocess.run(
        [sys.executable, "-m", "workbench.agent.tunnel"],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_START_S,
        env=environment,
        check=False,
    )
    return (done.stdout + done.stderr).strip()


def give(folder: str, slot: int, cores: Sequence[int]) -> None:
    """Write this engine's variables for the rank of a slot, and its cores if they are not all."""
    mpi_slot.write(
        Path(folder),
        slot,
        {
            "environment": {n: text for n, text in os.environ.items() if not n.startswith(_OWN)},
            "cores": [] if set(own := os.sched_getaffinity(0)) >= set(cores) else sorted(own),
        },
    )
