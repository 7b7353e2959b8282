"""The process that mpiexec starts for each rank: slot 0 of a VM starts the agent.

``python -m workbench.agent.mpi_slot FOLDER FIRST GRACE_S FIRST_S MARK``

FIRST is the MPI rank of slot 0 on this VM. GRACE_S and FIRST_S are arguments of the agent, and
FOLDER is its folder. Each slot writes to FOLDER the environment variables and the cores that
mpiexec has given the slot. With these variables, a rank can replace the slot in the MPI job. Then
the slot prints a line that begins with MARK, which mpiexec passes on to the kernel. All slots wait
until the agent has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from workbench.wire.detached import start_agent

VARIABLES = ("OMPI_", "PMIX_", "PMI_", "ORTE_", "PRTE_")
"""Prefixes of the variables that mpiexec sets."""
_MPIEXEC_VARIABLE = "OMPI_MCA_orte_local_tmpdir_base"
"""A rank that has this variable cannot start MPI.

mpiexec also passes this folder to its processes in another variable, which is kept.
"""
_BOUND = "OMPI_MCA_orte_bound_at_launch"
_LOCK = "slots.lock"
_SEGMENTS = Path("/dev/shm")  # noqa: S108 - Open MPI's own choice
_POLL_S = 0.02
_START_S = 60.0


def main() -> int:
    """Run one slot, and return its exit status."""
    folder = Path(sys.argv[1])
    slot = int(os.environ["OMPI_COMM_WORLD_RANK"]) - int(sys.argv[2])
    variables = {name: text for name, text in os.environ.items() if name.startswith(VARIABLES)}
    is_bound = variables.get(_BOUND) == "1"
    environment = {name: text for name, text in variables.items() if name != _MPIEXEC_VARIABLE}
    resources = {
        "environment": environment,
        "cores": sorted(os.sched_getaffinity(0)) if is_bound else [],
    }
    if slot == 0:
        # The agent is not a process of the MPI job, and neither are ranks that it forks later.
        for name in variables:
            del os.environ[name]
        if Path.cwd() == Path("/"):  # mpiexec runs in / because other folders may not exist here
            with contextlib.suppress(OSError):
                os.chdir(Path.home())
        if is_bound:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        process, connection = start_agent(folder, float(sys.argv[3]), first_s=float(sys.argv[4]))
        connection.close()
        write(folder, slot, resources)
        lock = _create_lock(folder)
        _report(folder, slot)
        process.wait()
        os.close(lock)
        return 0
    deadline = time.monotonic() + _START_S
    while not (folder / _LOCK).exists():
        if time.monotonic() > deadline:
            sys.stderr.write(f"slot 0 has not started the agent within {_START_S:g} s\n")
            return 1
        time.sleep(_POLL_S)
    with (folder / _LOCK).open("rb") as file:
        write(folder, slot, resources)
        _report(folder, slot)
        fcntl.flock(file, fcntl.LOCK_SH)  # returns when slot 0 has ended
    return 0


def write(folder: Path, slot: int, resources: dict[str, Any]) -> None:
    """Write the variables and cores of a slot to the agent's folder, where `slots` reads them."""
    path = folder / f"slot-{slot}.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(resources), encoding="utf-8")


def _create_lock(folder: Path) -> int:
    """Create the lock file, and return its descriptor.

    The file is locked before it gets its name, so no slot can find it unlocked.
    """
    new = folder / f"{_LOCK}.new"
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    new.rename(folder / _LOCK)
    return descriptor


def _report(folder: Path, slot: int) -> None:
    # Use a single write, because mpiexec mixes the output of several processes.
    os.write(1, f"{sys.argv[5]} {folder} {slot}\n".encode())


# Functions that the agent uses.


def slots(folder: Path) -> dict[str, Any]:
    """Return the variables and cores of each slot, by the slot's number as text.

    ``"environment"`` has the variables. ``"cores"`` has the cores, and is empty unless mpiexec has
    bound the slot to some. The result is empty for launchers without slots.
    """
    resources_by_slot = {}
    for path in folder.glob("slot-*.json"):
        with contextlib.suppress(OSError, ValueError):
            resources_by_slot[path.stem.removeprefix("slot-")] = json.loads(
                path.read_text(encoding="utf-8")
            )
    return resources_by_slot


def remove_segments(folder: Path) -> None:
    """Remove the shared memory of the ranks that Open MPI leaves if mpiexec was killed."""
    for slot, resources in slots(folder).items():
        variables = resources["environment"]
        job = variables.get("PMIX_NAMESPACE", "")
        rank = variables.get("PMIX_RANK", slot)
        if job.isdecimal():
            for path in _SEGMENTS.glob(f"vader_segment.*.{int(job):x}.{rank}"):
                with contextlib.suppress(OSError):
                    path.unlink()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(str(error))
