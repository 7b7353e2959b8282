"""Collects the evidence bundle of a live cluster from what the kernel knows, then from its VMs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench import logs
from workbench.cluster.cell_run import CellRun
from workbench.cluster.evidence import ranks, timings, vms
from workbench.cluster.evidence.bundle import Bundle
from workbench.cluster.evidence.states import SeenState
from workbench.cluster.processes import ClusterProcesses
from workbench.cluster.state import ClusterState
from workbench.errors import CellError
from workbench.redaction import Redactor
from workbench.wire.transport import transports_to_plain

_SOURCE = (
    "not included: the run does not store cells, and code can contain secrets. error.txt and "
    "stacks.txt quote the lines concerned"
)
_LOG_CHARACTERS = 1 << 17


@dataclass(frozen=True)
class Scene:
    """What the kernel noted when it decided to make a bundle.

    Attributes
    ----------
    reason
        Why: a sentence.
    states, earlier
        As in `ranks.add_ranks`.
    lost
        Why ranks could no longer answer, by rank.
    run, error
        The cell and its error; None without.
    """

    reason: str
    states: Mapping[int, SeenState]
    earlier: Mapping[int, SeenState]
    lost: Mapping[int, str]
    run: CellRun | None = None
    error: CellError | None = None
    at_s: float = field(default_factory=time.time)


def known(state: ClusterState, processes: ClusterProcesses, scene: Scene) -> Bundle:
    """Return a bundle with everything that this kernel knows, without asking any VM."""
    run, error = scene.run, scene.error
    facts = {"at_s": scene.at_s, "cluster": state.name, "cell": None if run is None else run.number}
    bundle = Bundle(scene.reason, _redactor(processes), facts)
    bundle.add_json("cluster.json", _cluster(state, processes), "the cluster, its state and VMs")
    ranks.add_ranks(bundle, processes, scene.states, scene.earlier, scene.lost)
    if error is not None:
        # those of the run include ranks that were only freed: where they waited
        # a copy: the cell's thread adds errors
        errors = () if run is None else tuple(run.errors.items())
        of_ranks = {rank: rank_error for rank, rank_error in errors if rank >= 0}
        ranks.add_errors(bundle, of_ranks, str(error.args[0]))
    else:
        bundle.miss("error.txt", "no cell had failed when this was written")
    if run is not None:
        ranks.add_output(bundle, run.output.recent_text)
    else:
        bundle.miss("output.txt", "no cell runs")
    bundle.miss("source.py", _SOURCE)
    bundle.add_end(
        "workbench_log.txt", logs.recent(), "what this kernel has logged", _LOG_CHARACTERS
    )
    timings.add_iterations(bundle, state.timings)
    bundle.miss("collectives.csv", "they were still being read when this file was written")
    bundle.add_json(
        "collectives.json", _counts(state, processes, scene), "collectives of each rank: counts"
    )
    vms.add_vms(bundle, vms.pending(processes.agents.all))
    return bundle


def complete(bundle: Bundle, state: ClusterState, processes: ClusterProcesses) -> None:
    """Add what takes longer: the answers of the VMs, and records that arrived meanwhile."""
    vms.add_vms(bundle, vms.ask(processes.agents.all))
    timings.add_iterations(bundle, state.timings)
    timings.add_collectives(bundle, state.timings)


def _cluster(state: ClusterState, processes: ClusterProcesses) -> dict[str, Any]:
    """Return what identifies the cluster, without addresses, keys and environments."""
    options, engines, own = processes.agents.options, processes.engines, state.timings
    now, message = state.state_now()
    return {
        "name": state.name,
        "state": now,
        "message": message,
        "ranks": state.n,
        "backend": options.backend,
        "launcher": options.launcher,
        "keep_s": options.keep_s,
        "hang_after_s": options.hang_after_s,
        "controller": engines.backend.controller,
        "ring_broken": engines.backend.ring_broken,
        "wanted_after_unfinished_change": engines.wanted,
        "transports": transports_to_plain(engines.backend.transports),
        "vms": [
            {
                "name": agent.name,
                "lost": agent.lost or None,
                "reconnecting": agent.reconnecting,
                "python": agent.hello.python,
                "workbench": agent.hello.version,
                "versions": agent.loaded.versions,
            }
            for agent in processes.agents.all
        ],
        "run": None if own.path is None else own.path.name,
        "recording": own.recording,
        "storage_errors": own.storage_errors,
        "dropped_records": own.dropped,
    }


def _counts(
    state: ClusterState, processes: ClusterProcesses, scene: Scene
) -> dict[str, dict[str, Any]]:
    """Return the collectives of each rank: the current one, how many were started and recorded."""
    recorded = timings.recorded_counts(state.timings)
    ended = {} if scene.run is None else scene.run.monitor.started
    return {
        str(info.rank): {
            "in_the_cell": ranks.collectives_of(scene.states.get(info.rank), ended.get(info.rank)),
            "recorded": recorded.get(info.rank, timings.unknown_counts()),
        }
        for info in processes.engines.ranks
    }


def _redactor(processes: ClusterProcesses) -> Redactor:
    hosts, secrets = processes.agents.options.hosts or (), []
    for agent in processes.agents.all:
        secrets += agent.facts.secrets
    connection = processes.engines.to_saved()["connection"]
    secrets += [str(value) for name, value in connection.items() if "key" in name]
    return Redactor([host.environment for host in hosts], secrets)
