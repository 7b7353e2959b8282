"""Asking all VMs of a cluster at once what they have and what they use."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from workbench.cluster.agent import Agent
from workbench.resources import Snapshot, Unknown
from workbench.resources.usage import Sample

_SNAPSHOT_S = 15.0
_SAMPLE_S = 5.0
"""NVML alone needs some of it for the first sample, where the driver is not kept loaded."""


def snapshots(agents: Sequence[Agent]) -> dict[str, Snapshot]:
    """Return what each VM that answers has now, by its name."""
    answers = _asked(agents, "snapshot", _SNAPSHOT_S)
    return {
        name: Snapshot.from_plain(plain)
        for name, plain in answers.items()
        if not isinstance(plain, Unknown)
    }


def samples(agents: Sequence[Agent]) -> dict[str, Sample | Unknown]:
    """Return what is used of each VM now, by its name, or why that is not known."""
    return {
        name: plain if isinstance(plain, Unknown) else Sample.from_plain(plain)
        for name, plain in _asked(agents, "sample", _SAMPLE_S).items()
    }


def _asked(agents: Sequence[Agent], kind: str, limit_s: float) -> dict[str, Any]:
    questions = [agent.post(kind) for agent in agents]
    deadline = time.monotonic() + limit_s
    return {
        agent.name: agent.answer(question, deadline)
        for agent, question in zip(agents, questions, strict=True)
    }
