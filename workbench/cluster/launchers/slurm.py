"""The launcher for Slurm: it runs agents as steps of a job, in this or in a new allocation.

A new allocation is a batch job that only waits until no step is left. The agents end without a
kernel, and the job ends after the agents. Each agent runs in a separate step, together with the
relay. The relay stays until the agent ends, because Slurm kills the remaining processes of a step
when its task has ended.
"""

from __future__ import annotations

import contextlib
import logging
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

_log = logging.getLogger(__name__)

_GUARD = """
read -r line && exit
sleep 1
for try in 1 2 3 4 5 6; do scancel --quiet --name="$1" && exit; sleep 10; done
"""
"""Cancels the job when the kernel has ended. The end closes the pipe, even after SIGKILL.

A kept cluster has this guard only while its job waits in the queue.
"""
_FIRST_PAUSE_S = 0.05
_MAX_FAILURES = 5
"""The wait ends after this many consecutive failed polls. A controller's restart causes fewer."""


@dataclass(frozen=True)
class Allocation:
    """The Slurm job that provides the nodes. Its fields are saved for later kernels.

    Attributes
    ----------
    name
        The name of this cluster's steps, and of the job if `own` is True.
    job
        The id of the job; empty before it is known.
    own
        Whether the job was submitted for this cluster, and must be cancelled.
    routes
        The routes to the nodes, from `slurm_commands.routes`.
    gpus
        The number of the job's GPUs on each node.
    """

    name: str
    job: str
    own: bool
    routes: dict[str, str] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)


class SlurmLauncher(RelayLauncher):
    """Runs the relay on each node as a step of a job (srun)."""

    allocates = True

    def __init__(self, config: Path | None = None, arguments: tuple[str, ...] = ()) -> None:
        super().__init__(config, arguments)
        self._allocation: Allocation | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._released = False

    # Methods for the allocation.

    def allocate(self, options: Options, progress: Callable[[str], None]) -> Options:
        """Wait for the allocation, for at most `queue_timeout`. See `Launcher`."""
        if options.allocation is not None:
            self._allocation = Allocation(**options.allocation)
            return options
        current_job_id = None if options.job else os.environ.get("SLURM_JOB_ID")
        name = f"workbench-{secrets.token_hex(4)}"
        if current_job_id:
            self._allocation = Allocation(name, current_job_id, own=False)
            job = _current_job(current_job_id, options.n)
        else:
            job = self._wait(self._submit(name, options), options, progress)
        hosts, gpus = slurm_commands.hosts_of(job, options.job.get("gpus_per_task", 0))
        if total_slots(hosts) < options.n:
            raise StartFailed(
                f"n={options.n}: Slurm job {job.id} has {total_slots(hosts)} tasks",
                fix="start fewer ranks, or request a new allocation (partition=..., nodes=...)",
            )
        routes = slurm_commands.routes([host.name for host in hosts])
        self._allocation = Allocation(
            name, job.id, own=not current_job_id, routes=routes, gpus=gpus
        )
        if options.keep_s is not None:
            self._end_guard()
        return replace(options, hosts=hosts, allocation=asdict(self._allocation))

    def _submit(self, name: str, options: Options) -> str:
        """Submit a job, start its guard, and return its id."""
        # Delay interrupts: a submitted job can only be cancelled if its id is known.
        with defer_interrupts():
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
        if self._released:  # another thread called `release` before the job had an id
            self.release()
            raise StartFailed("the cluster was stopped")
        return job_id

    def _wait(self, job_id: str, options: Options, progress: Callable[[str], None]) -> Job:
        """Wait until a job runs, and return it."""
        limit_s = options.job.get("queue_timeout", float("inf"))
        began = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        failures = 0
        while True:
            try:
                job = slurm_commands.find_job(job_id)
                failures = 0
            except StartFailed as error:
                failures += 1
                _log.info("Poll %d of Slurm job %s has failed: %s", failures, job_id, error.cause)
                if failures == _MAX_FAILURES:
                    raise
                progress(f"Slurm job {job_id}: {error.cause}")
                pause_s = slurm_commands.pause(pause_s)
                continue
            if job is None or job.end():
                raise StartFailed(job.end() if job else f"Slurm job {job_id} no longer exists")
            if job.running:
                _log.info("Slurm job %s runs after %.1f s", job_id, time.monotonic() - began)
                return job
            reason = f"Slurm job {job_id} is {job.reason()}"
            if job.impossible:
                raise StartFailed(
                    f"it can never start, and was cancelled: {reason}",
                    fix="change the request; `sinfo -o '%P %D %c %l %G'` shows what there is",
                )
            if time.monotonic() - began > limit_s:
                raise StartFailed(
                    f"the job did not start within queue_timeout ({limit_s:g} s), and was "
                    f"cancelled: {reason}",
                    fix="wait longer, or request less",
                )
            progress(reason)
            pause_s = slurm_commands.pause(pause_s)

    def release(self) -> None:
        """See `Launcher`."""
        self._released = True
        allocation = self._allocation
        self._allocation = None
        if allocation is None:
            return
        try:
            slurm_commands.cancel(allocation.job, allocation.name, is_own_job=allocation.own)
        except StartFailed as error:
            warnings.warn(
                f"Slurm job {allocation.job or allocation.name} could not be cancelled: "
                f"{error.cause}. It ends when its agents have ended. Check with squeue.",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self._end_guard()

    def _end_guard(self) -> None:
        """End the guard without cancelling the job."""
        guard = self._guard
        self._guard = None
        if guard is not None:
            with contextlib.suppress(OSError):
                guard.communicate(b"\n")

    def unavailable_reason(self, host: Host | None) -> str:
        """See `Launcher`."""
        allocation = self._allocation
        if allocation is None:
            return ""
        try:
            job = slurm_commands.find_job(allocation.job)
            if job is None:
                return f"Slurm job {allocation.job} has ended"
            return job.end() or (slurm_commands.node_failure_reason(job, host.name) if host else "")
        except StartFailed:
            return ""  # unknown

    def describe(self) -> str:
        """See `Launcher`."""
        return slurm_commands.describe_job(self._allocation.job) if self._allocation else ""

    # Methods for the agents.

    def start(self, host: Host | None, folder: Path, grace_s: float, **_: Any) -> Connection:
        """See `Launcher`."""
        return self._run(host, [str(folder), str(grace_s), "stay"], None)

    def environment(self) -> dict[str, str]:
        """See `RelayLauncher`."""
        return slurm_commands.environment()

    def command(self, host: Host, program: list[str], _: float | None) -> list[str]:
        """See `RelayLauncher`."""
        allocation = self._allocation
        if allocation is None:
            raise StartFailed("the allocation was released", vm=host.name)
        gpus = allocation.gpus.get(host.name)
        return [
            "srun",
            f"--jobid={allocation.job}",
            f"--nodelist={host.name}",
            f"--job-name={allocation.name}",
            # Use all resources of the job on this node, and share them with the other steps.
            *([f"--gpus-per-node={gpus}"] if gpus else []),
            *("--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--cpu-bind=none"),
            *("--quiet", "--no-kill", "--kill-on-bad-exit=0", "--mpi=none"),
            "env",
            # Set SSH_CONNECTION, because this process may have one from another ssh connection.
            f"SSH_CONNECTION={allocation.routes.get(host.name, '')}",
            *program,
        ]

    def failure(self, host: Host | None, code: int | None, output: str) -> StartFailed:
        """See `Launcher`."""
        assert host is not None
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        suffix = f" ({lines[-1]})" if lines else ""
        cause, fix = (
            python_failure(code, output, host.python or sys.executable)
            or (self.unavailable_reason(host), "start the cluster again")
            if code is not None
            else ("", "")
        )
        if not cause:
            ended = "has not answered in time" if code is None else f"ended with exit status {code}"
            cause = f"the step of its agent (srun) {ended}"
            fix = f"check that `srun --nodelist={host.name} --overlap hostname` works in a job"
        return StartFailed(cause + suffix, vm=host.name, fix=fix)


def _current_job(job_id: str, n: int) -> Job:
    """Return the job that this process runs in; raise `StartFailed` if it has ended."""
    job = slurm_commands.find_job(job_id)
    if job is None or not job.running:
        ended = job.end() or job.reason() if job else f"Slurm job {job_id} no longer exists"
        raise StartFailed(
            f"n={n} in the allocation of SLURM_JOB_ID={job_id}: {ended}",
            fix="unset SLURM_JOB_ID, or request a new allocation (partition=..., time=...)",
        )
    return job
