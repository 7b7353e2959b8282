"""Collect the evidence bundle of a running cluster: first from the kernel, then from the VMs."""

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

_SOURCE_MISSING = (
    "not included: the run does not store cells, and code can contain secrets. error.txt and "
    "stacks.txt quote the lines concerned"
)
_LOG_CHARACTERS = 1 << 17


@dataclass(frozen=True)
class FailureContext:
    """The state of the cluster that the kernel recorded when it decided to make a bundle.

    Attributes
    ----------
    reason
        A sentence that says why the bundle is made.
    states, earlier
        As in `ranks.add_ranks`.
    lost
        Why a rank could no longer answer, by rank.
    run, error
        The cell, and its error; None if no cell runs, and if the cell has not failed.
    at_s
        When this was recorded, in seconds since the epoch.
    """

    reason: str
    states: Mapping[int, SeenState]
    earlier: Mapping[int, SeenState]
    lost: Mapping[int, str]
    run: CellRun | None = None
    error: CellError | None = None
    at_s: float = field(default_factory=time.time)


def initial_bundle(
    state: ClusterState, processes: ClusterProcesses, context: FailureContext
) -> Bundle:
    """Return a bundle with all that this kernel knows, without asking any VM."""
    run = context.run
    error = context.error
    facts = {
        "at_s": context.at_s,
        "cluster": state.name,
        "cell": None if run is None else run.number,
    }
    bundle = Bundle(context.reason, _redactor(processes), facts)
    bundle.add_json(
        "cluster.json", _cluster_facts(state, processes), "the cluster, its state and VMs"
    )
    ranks.add_ranks(bundle, processes, context.states, context.earlier, context.lost)
    if error is not None:
        # Use the errors of the run: they include ranks that were only released from a wait, and
        # show where these ranks waited. Copy the errors, because the cell's thread adds more.
        errors = () if run is None else tuple(run.errors.items())
        errors_by_rank = {rank: rank_error for rank, rank_error in errors if rank >= 0}
        ranks.add_errors(bundle, errors_by_rank, str(error.args[0]))
    else:
        bundle.mark_missing("error.txt", "no cell had failed when this was written")
    if run is not None:
        ranks.add_output(bundle, run.output.recent_text)
    else:
        bundle.mark_missing("output.txt", "no cell runs")
    bundle.mark_missing("source.py", _SOURCE_MISSING)
    bundle.add_end(
        "workbench_log.txt", logs.recent(), "what this kernel has logged", _LOG_CHARACTERS
    )
    timings.add_iterations(bundle, state.timings)
    bundle.mark_missing("collectives.csv", "they were still being read when this file was written")
    bundle.add_json(
        "collectives.json",
        _collective_counts(state, processes, context),
        "collectives of each rank: counts",
    )
    vms.add_vms(bundle, vms.pending(processes.agents.all))
    return bundle


def complete(bundle: Bundle, state: ClusterState, processes: ClusterProcesses) -> None:
    """Add what takes longer: the answers of the VMs, and records that have arrived since.

    Replace the parts about VMs and iterations of `initial_bundle`.
    """
    vms.add_vms(bundle, vms.ask(processes.agents.all))
    timings.add_iterations(bundle, state.timings)
    timings.add_collectives(bundle, state.timings)


def _cluster_facts(state: ClusterState, processes: ClusterProcesses) -> dict[str, Any]:
    """Return the facts about the cluster, without addresses, keys and environments."""
    options = processes.agents.options
    engines = processes.engines
    run_timings = state.timings
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
        "run": None if run_timings.path is None else run_timings.path.name,
        "recording": run_timings.recording,
        "storage_errors": run_timings.storage_errors,
        "dropped_records": run_timings.dropped,
    }


def _collective_counts(
    state: ClusterState, processes: ClusterProcesses, context: FailureContext
) -> dict[str, dict[str, Any]]:
    """Return each rank's current collective, and how many it has started and recorded."""
    recorded = timings.recorded_counts(state.timings)
    started_of_ended = {} if context.run is None else context.run.monitor.started
    return {
        str(info.rank): {
            "in_the_cell": ranks.collectives_of(
                context.states.get(info.rank), started_of_ended.get(info.rank)
            ),
            "recorded": recorded.get(info.rank, timings.unknown_counts()),
        }
        for info in processes.engines.ranks
    }


def _redactor(processes: ClusterProcesses) -> Redactor:
    """Return a redactor that knows the secrets of the hosts, the VMs and the connection."""
    hosts = processes.agents.options.hosts or ()
    secrets = []
    for agent in processes.agents.all:
        secrets += agent.facts.secrets
    connection = processes.engines.to_saved()["connection"]
    secrets += [str(value) for name, value in connection.items() if "key" in name]
    return Redactor([host.environment for host in hosts], secrets)
