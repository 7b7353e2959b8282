"""Parse the output of ``scontrol show job``: the state of a Slurm job, and its nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_REASON_TEXTS = {
    "None": "just submitted",
    "Priority": "other jobs have a higher priority",
    "Resources": "it waits until enough nodes, cores or GPUs are free",
    "BeginTime": "its begin time has not come",
    "Dependency": "it waits for another job",
    "JobHeldUser": "it is held; release it with `scontrol release`",
    "JobHeldAdmin": "it is held by an administrator",
    "Reservation": "it waits for its reservation",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "PartitionConfig": "the partition does not have what was requested",
    "PartitionNodeLimit": "the partition does not allow so many nodes",
    "PartitionTimeLimit": "the partition does not allow so long a time",
    "BadConstraints": "no node has the requested features",
    "AccountNotAllowed": "the account may not use the partition",
    "QOSNotAllowed": "the QOS may not be used there",
}
_PERMANENT_REASONS = re.compile(
    r"Partition(Config|NodeLimit|TimeLimit)|BadConstraints|DependencyNeverSatisfied|"
    r"Invalid(Account|QOS)|(Account|QOS)NotAllowed|(Assoc|QOS)\w*PerJob\w*|\w*MaxWall\w*"
)
"""Reasons that persist as long as the request and the cluster's configuration do not change."""
_END_TEXTS = {
    "BOOT_FAIL": "did not start because a node could not be booted",
    "CANCELLED": "was cancelled (scancel)",
    "COMPLETED": "has ended",
    "DEADLINE": "has reached its deadline",
    "FAILED": "has failed",
    "NODE_FAIL": "has lost a node",
    "OUT_OF_MEMORY": "has exceeded its memory",
    "PREEMPTED": "was preempted by another job",
    "REVOKED": "was revoked",
    "TIMEOUT": "has reached its time limit",
}
_WAITING_STATES = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "RESIZING", "SUSPENDED"})


@dataclass(frozen=True)
class Share:
    """The resources of a job on some nodes: the numbers of CPUs and GPUs on each of them."""

    nodes: str
    cpus: int
    gpus: int


@dataclass(frozen=True)
class Job:
    """A Slurm job, parsed from the output of ``scontrol show job --details --oneliner``.

    Examples
    --------
    >>> job = Job("7", "JobId=7 JobState=PENDING Reason=Priority NumTasks=4")
    >>> job.reason()
    'pending: other jobs have a higher priority (Priority)'
    >>> job.number("NumTasks")
    4
    """

    id: str
    text: str

    @cached_property
    def fields(self) -> dict[str, str]:
        """The fields, by Slurm's names. A value that contains a space is cut off there."""
        return dict(re.findall(r"(?<!\S)([\w/:.]+)=(\S*)", self.text))

    @property
    def running(self) -> bool:
        """Whether the nodes of the job can be used."""
        return self.fields["JobState"] == "RUNNING"

    @property
    def waiting(self) -> bool:
        """Whether the job may still start, or continue."""
        return self.fields["JobState"] in _WAITING_STATES

    @property
    def impossible(self) -> bool:
        """Whether the job can never start."""
        return self.waiting and bool(_PERMANENT_REASONS.fullmatch(self.fields.get("Reason", "")))

    @property
    def shares(self) -> list[Share]:
        """The resources on each group of nodes. A group has a name such as ``n[1-2]``."""
        rows = re.findall(r"(?<!\S)Nodes=(\S+) CPU_IDs=(\S*) Mem=\S* GRES=(\S*)", self.text)
        return [
            Share(
                nodes, _count_ids(cpus), sum(map(int, re.findall(r"gpu(?::[^:(,]+)?:(\d+)", gres)))
            )
            for nodes, cpus, gres in rows
        ]

    def number(self, name: str) -> int | None:
        """Return the number at the beginning of a field; None if there is no number."""
        match = re.match(r"\d+", self.fields.get(name, ""))
        return int(match[0]) if match else None

    def reason(self) -> str:
        """Return why the job waits, as text with Slurm's name of the reason."""
        if self.fields["JobState"] != "PENDING":
            return f"its state is {self.fields['JobState']}"
        word = self.fields.get("Reason", "None").split(",")[0]
        text = _REASON_TEXTS.get(word, re.sub(r"(?<=[a-z])(?=[A-Z])", " ", word).lower())
        text = text if word == "None" else f"{text} ({word})"
        start = self.fields.get("StartTime", "Unknown")
        expected = f"; expected to start at {start}" if start[:1].isdigit() else ""
        return f"pending: {text}{expected}"

    def end(self) -> str:
        """Return how the job has ended, as text; empty if it has not ended."""
        state = self.fields["JobState"]
        if self.running or self.waiting:
            return ""
        if state == "COMPLETING":  # Slurm does not show the state before this one
            limit_s, used_s = (
                _parse_duration_s(self.fields.get(name, "")) for name in ("TimeLimit", "RunTime")
            )
            state = "TIMEOUT" if limit_s is not None and (used_s or 0) >= limit_s else "CANCELLED"
        text = _END_TEXTS.get(state, f"is {state}")
        if state == "TIMEOUT":
            text += f" of {self.fields.get('TimeLimit', 'unknown length')}"
        return f"Slurm job {self.id} {text}"


def _parse_duration_s(time_text: str) -> int | None:
    """Return the seconds of a duration such as ``1-02:00:00``; None for ``UNLIMITED``.

    Examples
    --------
    >>> _parse_duration_s("1-02:00:00")
    93600
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", time_text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _count_ids(id_ranges: str) -> int:
    """Return how many ids a text such as ``0-2,5`` contains.

    Examples
    --------
    >>> _count_ids("0-2,5")
    4
    """
    spans = [part.split("-") for part in id_ranges.split(",") if part]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)
