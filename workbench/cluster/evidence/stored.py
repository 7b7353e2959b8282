"""Collect the evidence bundle of a recorded run from its folder and the current machine."""

from __future__ import annotations

from pathlib import Path

from workbench.cluster.evidence import timings, vms
from workbench.cluster.evidence.bundle import Bundle
from workbench.errors import RunError, UsageError
from workbench.redaction import Redactor
from workbench.resources.unknown import Unknown
from workbench.timings.folder import evidence_files
from workbench.timings.run import Run, list_runs, open_run
from workbench.timings.runs import FolderLike

_NOT_STORED = "a run does not store it; %cluster bundle has it while the cluster runs"
_LIVE_PARTS = ("stacks.txt", "ranks.json", "error.txt", "output.txt", "rank_logs.txt", "source.py")
_THIS_MACHINE = "this-machine-now"


def write_stored(name: str | None = None, out: FolderLike | None = None) -> Path:
    """Write the bundle of a recorded run, and return its path.

    Parameters
    ----------
    name
        As for `open_run`; the newest run by default.
    out
        The file to write; by default ``evidence-RUN.zip`` in the working directory.

    Raises
    ------
    RunError
        The run does not exist.
    UsageError
        The file cannot be written.
    """
    run = _newest_run() if name is None else open_run(name)
    bundle = run_bundle(run)
    path = Path(f"evidence-{run.name}.zip" if out is None else out).expanduser().absolute()
    try:
        bundle.write(path)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror or error}). Name another file with "
            "`workbench bundle --out FILE`."
        ) from error
    return path


def run_bundle(run: Run) -> Bundle:
    """Return the bundle of a run. Parts that a run does not store are marked as missing."""
    earlier = [path.name for path in evidence_files(run.path)]
    facts = {"cluster": run.cluster, "run": run.name, "bundles_of_its_cells": earlier}
    bundle = Bundle(f"Made on demand of the recorded run {run.name}.", Redactor(), facts)
    bundle.add_json("run.json", run.facts, "the recorded facts about the run and its ranks")
    verdict = run.stored_verdict
    stored = Unknown("none is stored") if verdict is None else verdict.to_dict()
    bundle.add_json("verdict.json", stored, "the verdict of the last training cell")
    timings.add_iterations(bundle, run)
    timings.add_collectives(bundle, run)
    counts = timings.recorded_counts(run)
    bundle.add_json(
        "collectives.json",
        {str(rank): {"recorded": rank_counts} for rank, rank_counts in counts.items()}
        or Unknown("no iteration was recorded"),
        "collectives of each rank: counts",
    )
    for part in _LIVE_PARTS:
        bundle.mark_missing(part, _NOT_STORED)
    unknown_then = Unknown("the run has no value of that time")
    answers: dict[str, vms.Answers] = {
        name: {
            vms.SNAPSHOT: snapshot.to_plain(),
            vms.SAMPLE: unknown_then,
            vms.LOG: unknown_then,
            vms.RAS: unknown_then,
        }
        for name, snapshot in run.snapshot().items()
    }
    vms.add_vms(bundle, answers | {_THIS_MACHINE: vms.this_vm()})
    problems = "\n".join(run.problems) or Unknown("everything could be read")
    bundle.add("problems.txt", problems, "what could not be read of the run")
    return bundle


def _newest_run() -> Run:
    runs = list_runs()
    if not runs:
        raise RunError(
            "workbench bundle: no run is recorded. Train on a cluster first, or name the folder "
            "of a run."
        )
    return runs[0]
