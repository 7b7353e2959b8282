"""A job of Slurm, as ``scontrol show job`` describes it: its state in words, and its nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_REASONS = {
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
_NEVER = re.compile(
    r"Partition(Config|NodeLimit|TimeLimit)|BadConstraints|DependencyNeverSatisfied|"
    r"Invalid(Account|QOS)|(Account|QOS)NotAllowed|(Assoc|QOS)\w*PerJob\w*|\w*MaxWall\w*"
)
"""Reasons that do not pass while the request and the cluster's configuration are the same."""
_ENDS = {
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
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "RESIZING", "SUSPENDED"})


@dataclass(frozen=True)
class Share:
    """What a job has on some nodes, each: `cpus` and `gpus` are numbers."""

    nodes: str
    cpus: int
    gpus: int


@dataclass(frozen=True)
class Job:
    """One job, as ``scontrol show job`` describes it."""

    id: str
    text: str

    @cached_property
    def fields(self) -> dict[str, str]:
        """The fields, by Slurm's names; those of values with spaces may be cut."""
        return dict(re.findall(r"(?<!\S)([\w/:.]+)=(\S*)", self.text))

    @property
    def running(self) -> bool:
        """Whether its nodes can be used."""
        return self.fields["JobState"] == "RUNNING"

    @property
    def waiting(self) -> bool:
        """Whether it may still start, or continue."""
        return self.fields["JobState"] in _WAITING

    @property
    def impossible(self) -> bool:
        """Whether it can never start."""
        return self.waiting and bool(_NEVER.fullmatch(self.fields.get("Reason", "")))

    @property
    def shares(self) -> list[Share]:
        """What it has on its nodes, whose names may be such as ``n[1-2]``."""
        rows = re.findall(r"(?<!\S)Nodes=(\S+) CPU_IDs=(\S*) Mem=\S* GRES=(\S*)", self.text)
        return [
            Share(nodes, _count(cpus), sum(map(int, re.findall(r"gpu(?::[^:(,]+)?:(\d+)", gres))))
            for nodes, cpus, gres in rows
        ]

    def number(self, name: str) -> int | None:
        """Return the number with which a field begins; None if it has none."""
        found = re.match(r"\d+", self.fields.get(name, ""))
        return int(found[0]) if found else None

    def reason(self) -> str:
        """Return why it waits, in words, with Slurm's own word."""
        if self.fields["JobState"] != "PENDING":
            return f"its state is {self.fields['JobState']}"
        word = self.fields.get("Reason", "None").split(",")[0]
        text = _REASONS.get(word, re.sub(r"(?<=[a-z])(?=[A-Z])", " ", word).lower())
        text = text if word == "None" else f"{text} ({word})"
        start = self.fields.get("StartTime", "Unknown")
        expected = f"; expected to start at {start}" if start[:1].isdigit() else ""
        return f"pending: {text}{expected}"

    def end(self) -> str:
        """Return how it ended; empty while it has not."""
        state = self.fields["JobState"]
        if self.running or self.waiting:
            return ""
        if state == "COMPLETING":  # the state before it is not shown
            limit, used = (_seconds(self.fields.get(x, "")) for x in ("TimeLimit", "RunTime"))
            state = "TIMEOUT" if limit is not None and (used or 0) >= limit else "CANCELLED"
        text = _ENDS.get(state, f"is {state}")
        if state == "TIMEOUT":
            text += f" of {self.fields.get('TimeLimit', 'unknown length')}"
        return f"Slurm job {self.id} {text}"


def _seconds(time_text: str) -> int | None:
    """Return the seconds in a time such as ``1-02:00:00``; None for ``UNLIMITED``."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", time_text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _count(numbers: str) -> int:
    """Return how many numbers there are in a text such as ``0-2,5``."""
    spans = [part.split("-") for part in numbers.split(",") if part]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)
