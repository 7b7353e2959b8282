"""Open MPI in tests: whether it is here, what it has started, and what it has left."""

import re
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

_version = (
    subprocess.run(["mpiexec", "--version"], capture_output=True, text=True, check=False).stdout
    if shutil.which("mpiexec")
    else ""
)


def why_not():
    """Why mpiexec cannot be used here; None if it can."""
    found = re.search("OpenRTE|Open MPI", _version)
    return None if found else "there is no Open MPI here: apt-get install openmpi-bin"


needs_mpi = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
_FOLDERS = ("/tmp/ompi.*", "/tmp/workbench-mpi-*", "/dev/shm/vader_segment.*")


def mpi_processes(name="mpiexec"):
    """The running processes of a name of MPI's: mpiexec, orted, or the slots' module."""
    return [
        process
        for process in psutil.process_iter(["name", "cmdline", "status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE
        and (process.info["name"] == name or name in (process.info["cmdline"] or ()))
    ]


def mpi_leftovers():
    """All processes and folders of MPI on this machine."""
    names = ("mpiexec", "orted", "workbench.agent.mpi_slot")
    running = [process.pid for name in names for process in mpi_processes(name)]
    return {*running, *(str(path) for one in _FOLDERS for path in Path("/").glob(one[1:]))}
