"""Add the parts about VMs: hardware, utilization, kernel log, NCCL RAS and findings."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from workbench.cluster.agent import Agent
from workbench.cluster.evidence.bundle import Bundle
from workbench.doctor import describe, diagnose
from workbench.errors import SnapshotError
from workbench.resources import Snapshot, Unknown, take_snapshot
from workbench.resources.counters import Sampler
from workbench.resources.kernel_log import read_kernel_log
from workbench.resources.nccl_ras import read_ras

_log = logging.getLogger(__name__)

# the questions that agents answer
SNAPSHOT = "snapshot"
SAMPLE = "sample"
LOG = "kernel log"
RAS = "NCCL RAS"
PACKAGE_LOG = "log"
_QUESTIONS = (SAMPLE, SNAPSHOT, LOG, RAS, PACKAGE_LOG)
_MAX_ANSWER_S = 5.0
_SAMPLE_INTERVAL_S = 0.6
"""Interval between the two samples from which rates are computed.

It exceeds the age up to which agents return the same sample again."""
_PENDING = Unknown("it was still being collected when this file was written")

Answers = Mapping[str, Any]
"""JSON values or `Unknown`, by question."""


def pending(agents: Sequence[Agent]) -> dict[str, Answers]:
    """Return what the kernel knows about each VM without asking it: its first snapshot."""
    rest = dict.fromkeys((SAMPLE, LOG, RAS, PACKAGE_LOG), _PENDING)
    return {agent.name: {SNAPSHOT: agent.facts.snapshot, **rest} for agent in agents}


def ask(agents: Sequence[Agent], limit_s: float = _MAX_ANSWER_S) -> dict[str, Answers]:
    """Ask all agents concurrently, and return their answers by VM.

    If a VM does not answer, use the snapshot that its agent took at its start.

    Parameters
    ----------
    agents
        The agents of all VMs. Lost agents are not asked.
    limit_s
        Maximum time for the answers, in seconds. The second samples may take half as long again.
    """
    live_agents = [agent for agent in agents if not agent.lost]
    questions_by_agent = {
        agent: {kind: agent.post(kind) for kind in _QUESTIONS} for agent in live_agents
    }
    deadline = time.monotonic() + limit_s
    answered = {
        agent: {kind: agent.answer(question, deadline) for kind, question in questions.items()}
        for agent, questions in questions_by_agent.items()
    }
    sampled_agents = [
        agent for agent in live_agents if not isinstance(answered[agent][SAMPLE], Unknown)
    ]
    time.sleep(_SAMPLE_INTERVAL_S if sampled_agents else 0.0)
    second_questions = {agent: agent.post(SAMPLE) for agent in sampled_agents}
    deadline = time.monotonic() + limit_s / 2
    for agent, question in second_questions.items():
        if not isinstance(sample := agent.answer(question, deadline), Unknown):
            answered[agent][SAMPLE] = sample
    _log.debug("%d of %d agents were asked for evidence", len(live_agents), len(agents))
    return {agent.name: _answers(agent, answered.get(agent, {})) for agent in agents}


def _answers(agent: Agent, answered: dict[str, Any]) -> Answers:
    """Return the answers of a VM. If it is lost, each missing answer has the reason."""
    if isinstance(answered.get(SNAPSHOT), Unknown):
        del answered[SNAPSHOT]
    lost = dict.fromkeys((SAMPLE, LOG, RAS, PACKAGE_LOG), Unknown(agent.lost))
    return {SNAPSHOT: agent.facts.snapshot, **lost, **answered}


def this_vm() -> Answers:
    """Return the answers, as an agent gives them, about the machine of this process."""
    with Sampler() as sampler:
        sampler.sample()
        time.sleep(_SAMPLE_INTERVAL_S)
        sample = sampler.sample().to_plain()
    log = read_kernel_log()
    ras = read_ras()
    return {
        SNAPSHOT: take_snapshot().to_plain(),
        SAMPLE: sample,
        LOG: log if isinstance(log, Unknown) else asdict(log),
        PACKAGE_LOG: Unknown("a run does not store it; %cluster bundle has it while ranks run"),
        RAS: ras if isinstance(ras, Unknown) else asdict(ras),
    }


def add_vms(bundle: Bundle, vms: Mapping[str, Answers]) -> None:
    """Add the answers of each VM, and the doctor's findings about its snapshot."""
    folders: set[str] = set()
    for name, answers in vms.items():
        folder = f"vms/{re.sub(r'[^A-Za-z0-9.-]+', '_', name).strip('.') or 'vm'}"
        while folder in folders:
            folder += "_"
        folders.add(folder)
        bundle.add_json(f"{folder}/snapshot.json", answers[SNAPSHOT], f"{name}: hardware, settings")
        description = f"{name}: GPU state, NIC counters, processes now"
        bundle.add_json(f"{folder}/sample.json", answers[SAMPLE], description)
        bundle.add(f"{folder}/kernel_log.txt", _log_text(answers[LOG]), f"{name}: kernel log lines")
        description = f"{name}: NCCL's report on its communicators"
        bundle.add_json(f"{folder}/nccl_ras.json", answers[RAS], description)
        description = f"{name}: configuration problems"
        bundle.add(f"{folder}/doctor.txt", _findings(answers[SNAPSHOT]), description)
        description = f"{name}: what the agent and its ranks have logged"
        bundle.add(
            f"{folder}/workbench_log.txt", _package_log_text(answers[PACKAGE_LOG]), description
        )


def _package_log_text(texts: Any) -> str | Unknown:
    if isinstance(texts, Unknown):
        return texts
    heads = {pid: f"== process {pid}" if pid else "== agent" for pid in texts}
    return "".join(f"{heads[pid]}\n{text}" for pid, text in texts.items())


def _log_text(log: Any) -> str | Unknown:
    if isinstance(log, Unknown):
        return log
    head = (
        f"{log['source']}: {log['read']:,} lines read, the newest relevant ones follow (OOM, Xid, "
        "links, hardware errors); times in seconds since the boot.\n"
    )
    return head + ("\n".join(log["lines"]) or "none") + "\n"


def _findings(plain: Any) -> str | Unknown:
    if isinstance(plain, Unknown):
        return plain
    try:
        snapshot = Snapshot.from_plain(plain)
    except SnapshotError as error:
        return Unknown(str(error))
    return describe(snapshot, diagnose(snapshot), width=100) + "\n"
