"""Run Slurm's commands: submit a job, read its state and its nodes, and cancel it."""

from __future__ import annotations

import logging
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from workbench.cluster.launchers.slurm_job import Job
from workbench.errors import StartFailed
from workbench.hosts import Host

_log = logging.getLogger(__name__)

_MAX_COMMAND_S = 20.0
"""Time limit of a command. The commands wait less long for a silent controller."""
_KEPT_VARIABLES = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
"""Variables that say how to reach Slurm. The others describe the job step of this process."""
_HOLDER = """#!/bin/sh
# Keeps the allocation while a step runs in it; the agents end without a kernel.
idle=-2
while [ "$idle" -lt 2 ]; do
    sleep 10
    steps=$(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%i) || continue
    if printf '%s\\n' "$steps" | grep -Eqv '^ *$|[.](batch|extern)'; then
        idle=0
    else
        idle=$((idle + 1))
    fi
done
"""
_CAUSES = (
    (
        r"munge|auth_g_create|authentication error",
        "Slurm's authentication failed (munge)",
        "start munge on this machine, with the same key as the cluster's",
    ),
    (
        r"process configuration|cannot stat file|configuration source",
        "this machine has no configuration of Slurm",
        "start the kernel on a machine of the cluster, or set SLURM_CONF",
    ),
    (
        r"contact slurm controller|connect failure|Socket timed out|Zero Bytes",
        "Slurm's controller (slurmctld) does not answer",
        "check with `scontrol ping`, and start again when it answers",
    ),
    (
        r"invalid partition|Invalid partition",
        "partition {partition!r} does not exist",
        "name one of those that `sinfo` lists: {partitions}",
    ),
    (r"Invalid account", "account {account!r}: not valid here", "name one of yours"),
    (r"Invalid qos", "qos {qos!r}: not valid here", "name one that your account may use"),
    (
        r"Invalid feature",
        "constraint {constraint!r}: no node has such a feature",
        "name features that `sinfo -o '%N %f'` lists",
    ),
    (r"Invalid --time", "time={time!r}: not a time", "write it as Slurm does: 2:00:00, 30 or 1-0"),
    (
        r"generic resource",
        "gpus_per_task={gpus_per_task}: no node has GPUs that Slurm knows",
        "leave it out, or name a partition with GPUs",
    ),
    (
        r"node configuration is not available|More processors|Node count specification",
        "no node has what was requested",
        "request less, or another partition (`sinfo -o '%P %D %c %m %G'` shows what there is)",
    ),
)


def environment() -> dict[str, str]:
    """Return the environment for Slurm's commands, without the variables of this job step.

    Examples
    --------
    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"SLURM_CONF": "/etc/slurm.conf", "SLURM_NTASKS": "2"}):
    ...     "SLURM_CONF" in environment(), "SLURM_NTASKS" in environment()
    (True, False)
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or name in _KEPT_VARIABLES
    }


def run(*command: str, stdin_text: str = "", request: Mapping[str, Any] | None = None) -> str:
    """Run one of Slurm's commands, and return its output.

    Parameters
    ----------
    command
        The command and its arguments.
    stdin_text
        The standard input of the command.
    request
        The request of the user, for error messages.

    Raises
    ------
    StartFailed
        The command does not exist, has failed, or has not ended in time.
    """
    try:
        # Start a new session, because an interrupt of the kernel must not end the command half-way.
        completed = subprocess.run(
            command,
            input=stdin_text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MAX_COMMAND_S,
            env=environment(),
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        raise StartFailed(
            f"Slurm's command {command[0]} cannot be run on this machine ({error.strerror})",
            fix="start the kernel where Slurm is installed: on a login node, or in a job",
        ) from error
    except subprocess.TimeoutExpired as error:
        output = (error.stderr or b"").decode("utf-8", "replace")
        raise _failure(command[0], output or "connect failure", request) from error
    if completed.returncode:
        raise _failure(command[0], completed.stderr or completed.stdout, request)
    return completed.stdout


def _failure(command: str, output: str, request: Mapping[str, Any] | None) -> StartFailed:
    """Return the error about a failed command, with the cause if its output is known."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last_line = lines[-1] if lines else "no output"
    names = ("partition", "account", "qos", "constraint", "time", "gpus_per_task")
    requested: dict[str, Any] = {name: (request or {}).get(name) for name in names}
    for pattern, cause, fix in _CAUSES:
        if re.search(pattern, output, re.IGNORECASE):
            requested["partitions"] = _partitions() if "{partitions}" in fix else ""
            return StartFailed(
                f"{cause.format(**requested)} ({last_line})", fix=fix.format(**requested)
            )
    return StartFailed(
        f"{command} failed ({last_line})", fix="correct the request, or ask your admin"
    )


def _partitions() -> str:
    """Return the names of all partitions, as text."""
    try:
        return ", ".join(dict.fromkeys(run("sinfo", "--noheader", "--format=%R").split()))
    except StartFailed:
        return "unknown, because sinfo failed"


def submit(name: str, n: int, request: Mapping[str, Any]) -> str:
    """Submit a job that holds its allocation until no agent runs in it, and return its id.

    Parameters
    ----------
    name
        The name of the job.
    n
        The number of tasks.
    request
        The `JobRequest` of the user.

    Raises
    ------
    StartFailed
        Slurm refuses the request.
    """
    options = [
        f"--{option.replace('_', '-')}={request[option]}"
        for option in (
            *("partition", "time", "nodes", "account", "qos", "constraint"),
            *("cpus_per_task", "gpus_per_task"),
        )
        if request.get(option) is not None
    ]
    user_options = shlex.split(request.get("sbatch") or "")
    command = [
        *("sbatch", f"--ntasks={n}", *options, *user_options),
        *(f"--job-name={name}", "--output=/dev/null", "--no-requeue", "--no-kill", "--parsable"),
    ]
    job_id = run(*command, stdin_text=_HOLDER, request=request).strip().split(";")[0]
    _log.info("Submitted Slurm job %s (%s) with %d tasks", job_id, name, n)
    return job_id


def find_job(job_id: str) -> Job | None:
    """Return a job; None if Slurm does not know the job any more.

    Raises
    ------
    StartFailed
        Slurm does not answer.
    """
    try:
        text = run("scontrol", "show", "job", "--details", "--oneliner", job_id)
    except StartFailed as error:
        if "Invalid job id" in error.cause:
            return None
        raise
    return Job(job_id, text) if "JobState=" in text else None


def hosts_of(job: Job, gpus_per_task: int = 0) -> tuple[tuple[Host, ...], dict[str, int]]:
    """Return the nodes of a job, with its tasks as slots, and the number of GPUs of each node.

    Each node gets one task. Each further task goes to the node with the fewest tasks that has room
    for another task.
    """
    per_node = job.number("NtasksPerN:B:S:C")
    cpus_per_task = job.number("CPUs/Task") or 1
    max_tasks: dict[str, int] = {}
    gpus: dict[str, int] = {}
    for share in job.shares:
        limits = [per_node or share.cpus // cpus_per_task]
        limits += [share.gpus // gpus_per_task] if gpus_per_task else []
        names = _expanded(share.nodes)
        max_tasks |= dict.fromkeys(names, min(limits))
        gpus |= dict.fromkeys(names, share.gpus)
    slots = dict.fromkeys(max_tasks or _expanded(job.fields["NodeList"]), 1)
    while sum(slots.values()) < (job.number("NumTasks") or 0):
        candidates = [name for name in slots if slots[name] < max_tasks.get(name, 1)] or list(slots)
        slots[min(candidates, key=lambda name: slots[name])] += 1
    return tuple(Host(name, count) for name, count in slots.items()), gpus


def _expanded(names: str) -> list[str]:
    """Return the names of nodes in a text such as ``n[1-2]`` or ``n1,n2``."""
    return run("scontrol", "show", "hostnames", names).split() if "[" in names else names.split(",")


def routes(names: list[str]) -> dict[str, str]:
    """Return the route to each node, in the format of SSH_CONNECTION.

    A route has the addresses of this machine and of the node. It is empty for this machine, and for
    nodes without a known route.

    Raises
    ------
    StartFailed
        There are other nodes, but no route to any of them.
    """
    text = run("scontrol", "show", "node", "--oneliner", ",".join(names))
    this_node = socket.gethostname().split(".")[0]
    routes_by_node = dict.fromkeys(names, "")
    addresses = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(?<!\S)(\w+)=(\S*)", line))
        if fields.get("NodeHostName", "").split(".")[0] != this_node and "NodeName" in fields:
            address = addresses[fields["NodeName"]] = fields.get("NodeAddr") or fields["NodeName"]
            routes_by_node[fields["NodeName"]] = _route(address)
    if addresses and not any(routes_by_node.values()):
        others = ", ".join(f"{name} ({address})" for name, address in addresses.items())
        raise StartFailed(
            f"this machine has no IPv4 route to any other node of the job: {others}",
            fix="start the notebook on a machine that reaches the nodes over IPv4, or give them "
            "such an address (NodeAddr in slurm.conf)",
        )
    return routes_by_node


def _route(address: str) -> str:
    """Return the route to an address; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # sends nothing
            return f"{probe.getsockname()[0]} 0 {probe.getpeername()[0]} 0"
        except OSError:
            return ""


def node_failure_reason(job: Job, name: str) -> str:
    """Return why a running job can no longer use one of its nodes; empty if it can."""
    text = run("scontrol", "show", "node", "--oneliner", name)
    state = re.search(r"(?<!\S)State=(\S+)", text)
    if state is None or not re.search(r"DOWN|FAIL|NOT_RESPONDING|\*", state[1]):
        is_kept = name in _expanded(job.fields["NodeList"])
        return "" if is_kept else f"Slurm has removed {name} from job {job.id}"
    reason = re.search(r"(?<!\S)Reason=(.*?)(?: \[|$)", text)
    return f"Slurm reports {name} as {state[1]}" + (f" ({reason[1].strip()})" if reason else "")


def describe_job(job_id: str) -> str:
    """Describe a job for users: its partition, its nodes, and the remaining time."""
    try:
        words = run("squeue", "--noheader", f"--jobs={job_id}", "--format=%P|%N|%L").strip()
    except StartFailed as error:
        return f"Slurm job {job_id}, time left unknown: {error.cause}"
    if words.count("|") != 2:
        return f"Slurm job {job_id}, which has ended"
    partition, nodes, time_left = words.split("|")
    return f"Slurm job {job_id}, partition {partition}, nodes {nodes}, time left {time_left}"


def cancel(job_id: str, name: str, *, is_own_job: bool) -> None:
    """Cancel a job, or only this cluster's steps in the job.

    Parameters
    ----------
    job_id
        The id of the job; empty if it is unknown.
    name
        The name of this cluster's steps, and of the job if it was submitted for this cluster.
    is_own_job
        Whether to cancel the whole job, because it was submitted for this cluster.

    Raises
    ------
    StartFailed
        Slurm does not answer.
    """
    _log.info("Cancelling Slurm job %s (%s, own job: %s)", job_id or "(no id)", name, is_own_job)
    if is_own_job:
        run("scancel", "--quiet", *([job_id] if job_id else [f"--name={name}"]))
        return
    listed = run("squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i|%j")
    steps = [line.split("|")[0].strip() for line in listed.splitlines() if line.endswith(name)]
    if steps:
        run("scancel", "--quiet", *steps)


def pause(seconds: float) -> float:
    """Sleep before the next poll of a job, and return how long to sleep the next time."""
    time.sleep(seconds)
    return min(5.0, seconds * 1.25)
