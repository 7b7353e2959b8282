"""Functions that an engine of another ipyparallel cluster runs for the kernel.

With them, the engine describes itself, starts the agent of its VM in separate processes, and passes
its environment variables and cores on to a rank. Each call is short: afterwards, the engine
continues with the work of its user.
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
_ENGINE_PREFIXES = (*mpi_slot.VARIABLES, "IPP_")
"""Prefixes of variables that identify this engine. Other processes must not inherit them."""


def describe(addresses: Sequence[str], port: int, token: str) -> dict[str, Any]:
    """Return the version of this package and the fields of `ForeignEngine`, as plain values.

    The engine tries to connect to each of the kernel's `addresses`, where the kernel sends the
    token. A kernel with another version of this package can read plain values too.
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
    """Return the local address of each connection that succeeds, by the kernel's address."""

    def local_address(address: str) -> str:
        try:
            with socket.create_connection((address, port), timeout=_REACH_S) as connection:
                is_kernel = connection.makefile("rb").readline() == token.encode() + b"\n"
                return str(connection.getsockname()[0]) if is_kernel else ""
        except OSError:
            return ""

    with ThreadPoolExecutor() as threads:
        routes = zip(addresses, threads.map(local_address, addresses), strict=True)
        return {address: local for address, local in routes if local}


def start(settings: dict[str, Any], limit_s: float) -> str | None:
    """Start the agent, and return the output of `workbench.agent.tunnel`.

    The output is the line ``ready PUBLIC_KEY``, or the reason of a failure. Return None if the
    start takes longer than `limit_s` seconds.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(_ENGINE_PREFIXES)
    }
    try:
        completed = subprocess.run(
            [sys.executable, "-m", "workbench.agent.tunnel"],
            input=json.dumps(settings),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return (completed.stdout + completed.stderr).strip()


def give(folder: str, slots: Sequence[int], cores: Sequence[int]) -> None:
    """Write this engine's variables and cores to the agent's folder, for the ranks of some slots.

    Parameters
    ----------
    folder
        The agent's folder.
    slots
        The numbers of the slots on this VM.
    cores
        The cores of all engines. If this engine may run on all of them, the ranks are not bound.
    """
    engine_cores = os.sched_getaffinity(0)
    resources = {
        "environment": {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_ENGINE_PREFIXES)
        },
        "cores": [] if engine_cores >= set(cores) else sorted(engine_cores),
    }
    for slot in slots:
        mpi_slot.write(Path(folder), slot, resources)
