"""The launcher for Slurm: agents as steps of a job, in this allocation or in a new one.

A new allocation is a batch job that does nothing but wait until no step is left: it ends when the
agents have ended, and they end without a kernel. Each agent is in a step of its own, with the
relay, which stays until the agent ends: Slurm kills what is left of a step whose task has ended.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.cluster.launchers import Connection, RelayLauncher, python_failure, slurm_commands
from workbench.cluster.launchers.slurm_job import Job
from workbench.cluster.options import Options
from workbench.cluster.threads import defer_interrupts
from workbench.errors import StartFailed
from workbench.hosts import Host, total_slots

_GUARD = """
read -r line && exit
sleep 1
for try in 1 2 3 4 5 6; do scancel --quiet --name="$1" && exit; sleep 10; done
"""
"""Cancels the job when the kernel has ended, even by SIGKILL, which closes the pipe.

A kept cluster has it while it waits in the queue.
"""
_FIRST_PAUSE_S = 0.05
_FAILURES = 5
"""So many failed polls in sequence end the wait: a controller may be restarted meanwhile."""


@dataclass(frozen=True)
class Allocation:
    """A job whose nodes are used.

    Attributes
    ----------
    name
        The name of its steps, and of the job if it is our own.
    job
        The job's id; empty before it is known.
    own
        Whether the job was submitted here, and must be cancelled.
    routes
        As `slurm_commands.routes` returns them.
    gpus
        The number of the job's GPUs on each node.
    """

    name: str
    job: str
    own: bool
    routes: dict[str, str] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)


class SlurmLauncher(RelayLauncher):
    """Runs the relay on each node as a step (srun)."""

    allocates = True

    def __init__(self, config: Path | None = None, arguments: tuple[str, ...] = ()) -> None:
        super().__init__(config, arguments)
        self._allocation: Allocation | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._released = False

    # the allocation

    def allocate(self, options: Options, progress: Callable[[str], None]) -> Options:
        """See `Launcher`. Waits in the queue, until `queue_timeout` at most."""
        if options.allocation is not None:
            self._allocation = Allocation(**options.allocation)
            return options
        here = None if options.job else os.environ.get("SLURM_JOB_ID")
        name = f"workbench-{secrets.token_hex(4)}"
        if here:
            self._allocation = Allocation(name, here, own=False)
            job = _existing(here, options.n)
        else:
            job = self._wait(self._submit(name, options), options, progress)
        hosts, gpus = slurm_commands.hosts_of(job, options.job.get("gpus_per_task", 0))
        if total_slots(hosts) < options.n:
            raise StartFailed(
                f"n={options.n}: Slurm job {job.id} has {total_slots(hosts)} tasks",
                cure="start fewer ranks, or request a new allocation (partition=..., nodes=...)",
            )
        routes = slurm_commands.routes([host.name for host in hosts])
        self._allocation = Allocation(name, job.id, own=not here, routes=routes, gpus=gpus)
        if options.keep_s is not None:
            self._end_guard()
        return replace(options, hosts=hosts, allocation=asdict(self._allocation))

    def _submit(self, name: str, options: Options) -> str:
        with defer_interrupts():  # a submitted job must be known, to be cancelled
            self._allocation = Allocation(name, "", own=True)
            with contextlib.suppress(OSError):
                self._guard = subprocess.Popen(
                    ["sh", "-c", _GUARD, "sh", name],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=slurm_commands.environment(),
                    start_new_session=True,
                )
            job_id = slurm_commands.submit(name, options.n, options.job)
            self._allocation = Allocation(name, job_id, own=True)
        if self._released:  # by another thread, before the job had an id
            self.release()
            raise StartFailed("the cluster was stopped")
        return job_id

    def _wait(self, job_id: str, options: Options, progress: Callable[[str], None]) -> Job:
        limit_s = options.job.get("queue_timeout", float("inf"))
        began, pause_s, failures = time.monotonic(), _FIRST_PAUSE_S, 0
        while True:
            try:
                job = slurm_commands.find(job_id)
                failures = 0
            except StartFailed as error:
                failures += 1
                if failures == _FAILURES:
                    raise
                progress(f"Slurm job {job_id}: {error.cause}")
                pause_s = slurm_commands.pause(pause_s)
                continue
            if job is None or job.end():
                raise StartFailed(job.end() if job else f"Slurm job {job_id} no longer exists")
            if job.running:
                return job
            why = f"Slurm job {job_id} is {job.reason()}"
            if job.impossible:
                raise StartFailed(
                    f"it can never start, and was cancelled: {why}",
                    cure="change the request; `sinfo -o '%P %D %c %l %G'` shows what there is",
                )
            if time.monotonic() - began > limit_s:
                raise StartFailed(
                    f"the job did not start within queue_timeout ({limit_s:g} s), and was "
                    f"cancelled: {why}",
                    cure="wait longer, or request less",
                )
            progress(why)
            pause_s = slurm_commands.pause(pause_s)

    def release(self) -> None:
        """See `Launcher`."""
        self._released = True
        taken, self._allocation = self._allocation, None
        if taken is None:
            return
        try:
            slurm_commands.cancel(taken.job, taken.name, own=taken.own)
        except StartFailed as error:
            warnings.warn(
                f"Slurm job {taken.job or taken.name} could not be cancelled: {error.cause}. It "
                "ends when its agents have ended. Check with squeue.",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self._end_guard()

    def _end_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            with contextlib.suppress(OSError):
                guard.communicate(b"\n")

    def why_gone(self, host: Host | None) -> str:
        """See `Launcher`."""
        taken = self._allocation
        if taken is None:
            return ""
        try:
            job = slurm_commands.find(taken.job)
            if job is None:
                return f"Slurm job {taken.job} has ended"
            return job.end() or (slurm_commands.node_trouble(job, host.name) if host else "")
        except StartFailed:
            return ""  # not known

    def describe(self) -> str:
        """See `Launcher`."""
        return slurm_commands.left(self._allocation.job) if self._allocation else ""

    # the agents

    def start(self, host: Host | None, folder: Path, grace_s: float, **_: Any) -> Connection:
        """See `Launcher`."""
        return self._run(host, [str(folder), str(grace_s), "stay"], None)

    def environment(self) -> dict[str, str]:
        """See `RelayLauncher`."""
        return slurm_commands.environment()

    def command(self, host: Host, program: list[str], _: float | None) -> list[str]:
        """See `RelayLauncher`."""
        taken = self._allocation
        if taken is None:
            raise StartFailed("the allocation was released", vm=host.name)
        gpus = taken.gpus.get(host.name)
        return [
            "srun",
            f"--jobid={taken.job}",
            f"--nodelist={host.name}",
            f"--job-name={taken.name}",
            # all that the job has on this node, together with the other steps
            *([f"--gpus-per-node={gpus}"] if gpus else []),
            *("--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--cpu-bind=none"),
            *("--quiet", "--no-kill", "--kill-on-bad-exit=0", "--mpi=none"),
            "env",
            # this process may have been started over ssh from elsewhere
            f"SSH_CONNECTION={taken.routes.get(host.name, '')}",
            *program,
        ]

    def failure(self, host: Host | None, code: int | None, said: str) -> StartFailed:
        """See `Launcher`."""
        assert host is not None
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = f" ({lines[-1]})" if lines else ""
        cause, cure = (
            python_failure(code, said, host.python or sys.executable)
            or (self.why_gone(host), "start the cluster again")
            if code is not None
            else ("", "")
        )
        if not cause:
            ended = "has not answered in time" if code is None else f"ended with exit status {code}"
            cause = f"the step of its agent (srun) {ended}"
            cure = f"check that `srun --nodelist={host.name} --overlap hostname` works in a job"
        return StartFailed(cause + last, vm=host.name, cure=cure)


def _existing(job_id: str, n: int) -> Job:
    """Return the job in which this process runs; raise `StartFailed` if it has ended."""
    job = slurm_commands.find(job_id)
    if job is None or not job.running:
        ended = job.end() or job.reason() if job else f"Slurm job {job_id} no longer exists"
        raise StartFailed(
            f"n={n} in the allocation of SLURM_JOB_ID={job_id}: {ended}",
            cure="unset SLURM_JOB_ID, or request a new allocation (partition=..., time=...)",
        )
    return job
