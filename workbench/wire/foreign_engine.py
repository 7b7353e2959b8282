"""Report of an engine that another ipyparallel cluster has started, about itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GIVEN_GPUS = "WORKBENCH_GIVEN_GPUS"
"""Set for an agent if its CUDA_VISIBLE_DEVICES has all GPUs that its ranks may use."""
_STATE = 0
_STARTTIME = 19
TUNNEL = "WORKBENCH_TUNNEL"
"""Variable with the keys and the address of the kernel's end of `workbench.agent.tunnel`."""


@dataclass(frozen=True)
class ForeignEngine:
    """An engine's process and its VM.

    Attributes
    ----------
    machine
        As `workbench.resources.host.machine.machine_identity`; None if it is not known.
    host, job
        The VM's host name, and the cgroups of the process. Two jobs do not share their cgroups.
    pid, began
        The process id, and when the process began, as `start_ticks`.
    python, executable
        The version and the path of the process's Python interpreter.
    cores, gpus
        The cores on which the process may run, and its CUDA_VISIBLE_DEVICES; None if that variable
        is not set.
    routes
        The addresses of the kernel's VM that the process can reach, each with the local address
        that it uses for them.
    """

    machine: str | None
    host: str
    job: str
    pid: int
    began: int | None
    python: str
    executable: str
    cores: tuple[int, ...]
    gpus: str | None
    routes: dict[str, str]


def start_ticks(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the boot; None if it has ended.

    psutil's `create_time` is a date, so it changes when the clock is set.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the fields after the program's name, see proc(5)
    return None if fields[_STATE] in {"Z", "X"} else int(fields[_STARTTIME])
