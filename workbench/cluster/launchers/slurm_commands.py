"""Slurm's commands: submit a job, read its state and its nodes, and cancel it."""

from __future__ import annotations

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

_COMMAND_S = 20.0
"""Longer than the commands themselves wait for a controller that does not answer."""
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
"""Variables that say how Slurm is reached; the others describe the step of this process."""
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
    """Return the environment for Slurm's commands: without the variables of this job's step."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or name in _KEPT
    }


def run(*command: str, given: str = "", request: Mapping[str, Any] | None = None) -> str:
    """Run one of Slurm's commands, and return its output.

    Parameters
    ----------
    given
        Its standard input.
    request
        What was requested, for errors.

    Raises
    ------
    StartFailed
        There is no such command, or it failed.
    """
    try:
        # in a session of its own: an interrupt of the kernel must not end it half-way
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_S,
            env=environment(),
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        raise StartFailed(
            f"Slurm's command {command[0]} cannot be run on this machine ({error.strerror})",
            cure="start the kernel where Slurm is installed: on a login node, or in a job",
        ) from error
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode("utf-8", "replace")
        raise _failure(command[0], said or "connect failure", request) from error
    if done.returncode:
        raise _failure(command[0], done.stderr or done.stdout, request)
    return done.stdout


def _failure(command: str, said: str, request: Mapping[str, Any] | None) -> StartFailed:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else "no output"
    names = ("partition", "account", "qos", "constraint", "time", "gpus_per_task")
    known: dict[str, Any] = {name: (request or {}).get(name) for name in names}
    for pattern, cause, cure in _CAUSES:
        if re.search(pattern, said, re.IGNORECASE):
            known["partitions"] = _partitions() if "{partitions}" in cure else ""
            return StartFailed(f"{cause.format(**known)} ({last})", cure=cure.format(**known))
    return StartFailed(f"{command} failed ({last})", cure="correct the request, or ask your admin")


def _partitions() -> str:
    try:
        return ", ".join(dict.fromkeys(run("sinfo", "--noheader", "--format=%R").split()))
    except StartFailed:
        return "unknown, because sinfo failed"


def submit(name: str, n: int, request: Mapping[str, Any]) -> str:
    """Submit a job that waits in its allocation until no agent is there; return its id.

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
    more = shlex.split(request.get("sbatch") or "")
    ours = [f"--job-name={name}", "--output=/dev/null", "--no-requeue", "--no-kill", "--parsable"]
    given = ("sbatch", f"--ntasks={n}", *options, *more, *ours)
    return run(*given, given=_HOLDER, request=request).strip().split(";")[0]


def find(job_id: str) -> Job | None:
    """Return a job; None if Slurm does not know it any more.

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

    Each node has a task, and each further task goes to the node that has the fewest, if it fits.
    """
    per_node = job.number("NtasksPerN:B:S:C")
    cpus_per_task = job.number("CPUs/Task") or 1
    fits: dict[str, int] = {}
    gpus: dict[str, int] = {}
    for share in job.shares:
        limits = [per_node or share.cpus // cpus_per_task]
        limits += [share.gpus // gpus_per_task] if gpus_per_task else []
        names = _expanded(share.nodes)
        fits |= dict.fromkeys(names, min(limits))
        gpus |= dict.fromkeys(names, share.gpus)
    slots = dict.fromkeys(fits or _expanded(job.fields["NodeList"]), 1)
    while sum(slots.values()) < (job.number("NumTasks") or 0):
        free = [name for name in slots if slots[name] < fits.get(name, 1)] or list(slots)
        slots[min(free, key=lambda name: slots[name])] += 1
    return tuple(Host(name, count) for name, count in slots.items()), gpus


def _expanded(names: str) -> list[str]:
    return run("scontrol", "show", "hostnames", names).split() if "[" in names else names.split(",")


def routes(names: list[str]) -> dict[str, str]:
    """Return, for each node, this machine's address and the node's as ssh writes them.

    Empty for a node that is this machine, and where no route is known.

    Raises
    ------
    StartFailed
        There are other nodes, and a route to none of them.
    """
    text = run("scontrol", "show", "node", "--oneliner", ",".join(names))
    here = socket.gethostname().split(".")[0]
    found = dict.fromkeys(names, "")
    addresses = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(?<!\S)(\w+)=(\S*)", line))
        if fields.get("NodeHostName", "").split(".")[0] != here and "NodeName" in fields:
            address = addresses[fields["NodeName"]] = fields.get("NodeAddr") or fields["NodeName"]
            found[fields["NodeName"]] = _route(address)
    if addresses and not any(found.values()):
        others = ", ".join(f"{name} ({address})" for name, address in addresses.items())
        raise StartFailed(
            f"this machine has no IPv4 route to any other node of the job: {others}",
            cure="start the notebook on a machine that reaches the nodes over IPv4, or give them "
            "such an address (NodeAddr in slurm.conf)",
        )
    return found


def _route(address: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # sends nothing
            return f"{probe.getsockname()[0]} 0 {probe.getpeername()[0]} 0"
        except OSError:
            return ""


def node_trouble(job: Job, name: str) -> str:
    """Return why a running job cannot use one of its nodes any more; empty while it can."""
    text = run("scontrol", "show", "node", "--oneliner", name)
    state = re.search(r"(?<!\S)State=(\S+)", text)
    if state is None or not re.search(r"DOWN|FAIL|NOT_RESPONDING|\*", state[1]):
        kept = name in _expanded(job.fields["NodeList"])
        return "" if kept else f"Slurm has removed {name} from job {job.id}"
    why = re.search(r"(?<!\S)Reason=(.*?)(?: \[|$)", text)
    return f"Slurm reports {name} as {state[1]}" + (f" ({why[1].strip()})" if why else "")


def left(job_id: str) -> str:
    """Return the partition, the nodes and the time that is left of a job, as a text for users."""
    try:
        words = run("squeue", "--noheader", f"--jobs={job_id}", "--format=%P|%N|%L").strip()
    except StartFailed as error:
        return f"Slurm job {job_id}, time left unknown: {error.cause}"
    if words.count("|") != 2:
        return f"Slurm job {job_id}, which has ended"
    partition, nodes, rest = words.split("|")
    return f"Slurm job {job_id}, partition {partition}, nodes {nodes}, time left {rest}"


def cancel(job_id: str, name: str, *, own: bool) -> None:
    """Cancel a job of this name, or its steps of this name if the job is not our `own`.

    Raises
    ------
    StartFailed
        Slurm does not answer.
    """
    if own:
        run("scancel", "--quiet", *([job_id] if job_id else [f"--name={name}"]))
        return
    listed = run("squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i|%j")
    steps = [line.split("|")[0].strip() for line in listed.splitlines() if line.endswith(name)]
    if steps:
        run("scancel", "--quiet", *steps)


def pause(seconds: float) -> float:
    """Wait before the next poll of a job, and return how long to wait the next time."""
    time.sleep(seconds)
    return min(5.0, seconds * 1.25)
