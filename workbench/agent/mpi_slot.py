"""What mpiexec starts for each rank: slot 0 of a VM starts the agent, and all wait for its end.

``python -m workbench.agent.mpi_slot FOLDER FIRST GRACE_S FIRST_S MARK``

FIRST is the MPI rank of slot 0 on this VM; GRACE_S and FIRST_S are the agent's. Each
slot writes to FOLDER, the agent's, what mpiexec gave it: its variables, with which another process
can take its place in the MPI job, and its cores. Then it prints a line that begins with MARK,
which mpiexec passes on to the kernel.
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
"""Begin the variables that a process has from mpiexec."""
_OF_MPIEXEC = "OMPI_MCA_orte_local_tmpdir_base"
"""With this, MPI cannot start: mpiexec adds the folder for all its processes under another name."""
_BOUND = "OMPI_MCA_orte_bound_at_launch"
_LOCK = "slots.lock"
_SEGMENTS = Path("/dev/shm")  # noqa: S108 - Open MPI's own choice
_POLL_S = 0.02
_START_S = 60.0


def main() -> int:
    """Run one slot; return its exit status."""
    folder, slot = Path(sys.argv[1]), int(os.environ["OMPI_COMM_WORLD_RANK"]) - int(sys.argv[2])
    variables = {name: text for name, text in os.environ.items() if name.startswith(VARIABLES)}
    bound = variables.get(_BOUND) == "1"
    environment = {name: text for name, text in variables.items() if name != _OF_MPIEXEC}
    given = {"environment": environment, "cores": sorted(os.sched_getaffinity(0)) if bound else []}
    if slot == 0:
        # the agent is no process of MPI: ranks that it forks later must not seem to be one
        for name in variables:
            del os.environ[name]
        if Path.cwd() == Path("/"):  # another machine's folder need not exist here
            with contextlib.suppress(OSError):
                os.chdir(Path.home())
        if bound:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        process, connection = start_agent(folder, float(sys.argv[3]), first_s=float(sys.argv[4]))
        connection.close()
        write(folder, slot, given)
        lock = _locked(folder)
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
        write(folder, slot, given)
        _report(folder, slot)
        fcntl.flock(file, fcntl.LOCK_SH)  # returns when slot 0 has ended
    return 0


def write(folder: Path, slot: int, given: dict[str, Any]) -> None:
    """Write to the agent's folder what `slots` returns for a slot."""
    path = folder / f"slot-{slot}.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(given), encoding="utf-8")


def _locked(folder: Path) -> int:
    """Create the lock file, which is locked before it has its name; return the descriptor."""
    new = folder / f"{_LOCK}.new"
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    new.rename(folder / _LOCK)
    return descriptor


def _report(folder: Path, slot: int) -> None:
    # one write: mpiexec mixes what several processes write
    os.write(1, f"{sys.argv[5]} {folder} {slot}\n".encode())


# in the agent


def slots(folder: Path) -> dict[str, Any]:
    """Return what mpiexec gave to each slot, by the slot's number as text.

    ``"environment"`` are the variables, and ``"cores"`` the cores; these are empty unless mpiexec
    has bound the slot. Another launcher has no slots.
    """
    found = {}
    for path in folder.glob("slot-*.json"):
        with contextlib.suppress(OSError, ValueError):
            found[path.stem.removeprefix("slot-")] = json.loads(path.read_text(encoding="utf-8"))
    return found


def remove_segments(folder: Path) -> None:
    """Remove shared memory of the ranks, which Open MPI leaves if mpiexec was killed."""
    for number, given in slots(folder).items():
        variables = given["environment"]
        job, rank = variables.get("PMIX_NAMESPACE", ""), variables.get("PMIX_RANK", number)
        if job.isdecimal():
            for path in _SEGMENTS.glob(f"vader_segment.*.{int(job):x}.{rank}"):
                with contextlib.suppress(OSError):
                    path.unlink()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(str(error))
