"""What a bundle has about VMs: hardware, current use, the kernel's log, NCCL RAS, and findings."""

from __future__ import annotations

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

SNAPSHOT, SAMPLE, LOG, RAS = "snapshot", "sample", "kernel log", "NCCL RAS"
PACKAGE_LOG = "log"
"""The questions to the agent of a VM."""
_LIMIT_S = 5.0
_RATE_S = 0.6
"""Interval between two samples, from which rates are computed; agents repeat younger ones."""
_PENDING = Unknown("it was still being collected when this file was written")

Answers = Mapping[str, Any]
"""Plain values or `Unknown`, by question."""


def pending(agents: Sequence[Agent]) -> dict[str, Answers]:
    """Return what is known of each VM without asking it: its snapshot from the start."""
    rest = dict.fromkeys((SAMPLE, LOG, RAS, PACKAGE_LOG), _PENDING)
    return {agent.name: {SNAPSHOT: agent.facts.snapshot, **rest} for agent in agents}


def ask(agents: Sequence[Agent], limit_s: float = _LIMIT_S) -> dict[str, Answers]:
    """Ask all agents at once, and return their answers by VM.

    Of a VM that does not answer, the snapshot is that of the start.
    """
    there = [agent for agent in agents if not agent.lost]
    asked = {
        agent: {k: agent.post(k) for k in (SAMPLE, SNAPSHOT, LOG, RAS, PACKAGE_LOG)}
        for agent in there
    }
    deadline = time.monotonic() + limit_s
    answered = {
        agent: {kind: agent.answer(one, deadline) for kind, one in questions.items()}
        for agent, questions in asked.items()
    }
    rated = [agent for agent in there if not isinstance(answered[agent][SAMPLE], Unknown)]
    time.sleep(_RATE_S if rated else 0.0)
    second = {agent: agent.post(SAMPLE) for agent in rated}
    deadline = time.monotonic() + limit_s / 2
    for agent, question in second.items():
        if not isinstance(sample := agent.answer(question, deadline), Unknown):
            answered[agent][SAMPLE] = sample
    return {agent.name: _answers(agent, answered.get(agent, {})) for agent in agents}


def _answers(agent: Agent, answered: dict[str, Any]) -> Answers:
    """Return the answers of a VM, with the reason why there are none if it is lost."""
    if isinstance(answered.get(SNAPSHOT), Unknown):
        del answered[SNAPSHOT]
    lost = dict.fromkeys((SAMPLE, LOG, RAS, PACKAGE_LOG), Unknown(agent.lost))
    return {SNAPSHOT: agent.facts.snapshot, **lost, **answered}


def this_vm() -> Answers:
    """Return the same about the machine that this process runs on."""
    with Sampler() as sampler:
        sampler.sample()
        time.sleep(_RATE_S)
        sample = sampler.sample().to_plain()
    log, ras = read_kernel_log(), read_ras()
    return {
        SNAPSHOT: take_snapshot().to_plain(),
        SAMPLE: sample,
        LOG: log if isinstance(log, Unknown) else asdict(log),
        PACKAGE_LOG: Unknown("a run does not store it; %cluster bundle has it while ranks run"),
        RAS: ras if isinstance(ras, Unknown) else asdict(ras),
    }


def add_vms(bundle: Bundle, vms: Mapping[str, Answers]) -> None:
    """Add the answers of VMs, and the findings of the doctor on their snapshots."""
    folders: set[str] = set()
    for name, answers in vms.items():
        folder = f"vms/{re.sub(r'[^A-Za-z0-9.-]+', '_', name).strip('.') or 'vm'}"
        while folder in folders:
            folder += "_"
        folders.add(folder)
        bundle.add_json(f"{folder}/snapshot.json", answers[SNAPSHOT], f"{name}: hardware, settings")
        about = f"{name}: GPU state, NIC counters, processes now"
        bundle.add_json(f"{folder}/sample.json", answers[SAMPLE], about)
        bundle.add(f"{folder}/kernel_log.txt", _log_text(answers[LOG]), f"{name}: kernel log lines")
        about = f"{name}: NCCL's report on its communicators"
        bundle.add_json(f"{folder}/nccl_ras.json", answers[RAS], about)
        about = f"{name}: configuration problems"
        bundle.add(f"{folder}/doctor.txt", _findings(answers[SNAPSHOT]), about)
        about = f"{name}: what the agent and its ranks have logged"
        bundle.add(f"{folder}/workbench_log.txt", _package_log_text(answers[PACKAGE_LOG]), about)


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
