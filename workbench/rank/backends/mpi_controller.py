"""Horovod's MPI controller: MPI instead of Gloo connects the ranks and carries their collectives.

It is used if Horovod was built with MPI, and this process is part of an MPI job (`launcher="mpi"`).
MPI cannot be started twice in a process. Therefore it is started once before Horovod, because
otherwise Horovod would end it with the first ring.
"""

from __future__ import annotations

import ctypes
import os

from horovod.torch import mpi_ops

JOB = "MPI_JOB"
"""The name of the job in `Backend.settings`."""
_CONTROLLER = "HOROVOD_CONTROLLER"
_THREAD_MULTIPLE = 3


def is_used() -> bool:
    """Return whether this process uses the MPI controller."""
    return os.environ.get(_CONTROLLER) == "mpi"


def job() -> str:
    """Return the job's name and its size; empty if the MPI controller cannot be used.

    The user can choose Gloo with Horovod's own variable ``HOROVOD_CONTROLLER``.
    """
    if not mpi_ops.mpi_built() or os.environ.get(_CONTROLLER, "mpi") != "mpi":
        return ""
    name = os.environ.get("PMIX_NAMESPACE", "")
    size = os.environ.get("OMPI_COMM_WORLD_SIZE", "")
    return f"{name} {size}" if name and size else ""


def start_mpi() -> None:
    """Start MPI unless it runs; return when all processes of the job have started it."""
    library = mpi_ops._basics.MPI_LIB_CTYPES
    started = ctypes.c_int()
    provided = ctypes.c_int()
    library.MPI_Initialized(ctypes.byref(started))
    if not started.value:
        library.MPI_Init_thread(None, None, _THREAD_MULTIPLE, ctypes.byref(provided))
