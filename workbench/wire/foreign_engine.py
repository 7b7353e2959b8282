"""What an engine that another ipyparallel cluster has started reports about itself."""

from __future__ import annotations

from dataclasses import dataclass

GIVEN_GPUS = "WORKBENCH_GIVEN_GPUS"
"""Set for an agent whose CUDA_VISIBLE_DEVICES has all GPUs that its ranks may use."""
TUNNEL = "WORKBENCH_TUNNEL"
"""The variable with the keys and the address of the kernel's end of `workbench.agent.tunnel`."""


@dataclass(frozen=True)
class ForeignEngine:
    """An engine's process and its machine.

    Attributes
    ----------
    machine
        As `workbench.resources.host.machine.machine_identity`; None if it is not known.
    host, job
        The machine's name, and the cgroups of the process, which two jobs do not share.
    pid, began
        The process, and when it began, in seconds since the epoch.
    python, executable
        The version and the path of its interpreter.
    cores, gpus
        The cores on which it may run, and its CUDA_VISIBLE_DEVICES; None if that is not set.
    routes
        The addresses of the kernel's machine that it reaches, each with its own address there.
    """

    machine: str | None
    host: str
    job: str
    pid: int
    began: float
    python: str
    executable: str
    cores: tuple[int, ...]
    gpus: str | None
    routes: dict[str, str]
