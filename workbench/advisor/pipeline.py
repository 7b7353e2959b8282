"""Find idle pipeline stages: too few microbatches, or a stage slower than the others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

from workbench.advisor.evidence import Evidence
from workbench.ranks import phrase
from workbench.timings.stages import Pipeline, StageFigures, newest
from workbench.timings.verdict import Cause

MIN_EXCESS = 0.1
"""Minimum relative excess over the mean of all stages for a stage to be slower than the others."""
_NAME = "pipeline bubble"
_UNKNOWN_FIX = (
    "check which rank sends late: timings.collectives() has each message with its peer and times"
)


def pipeline_causes(evidence: Evidence) -> Iterator[Cause]:
    """Yield the idle time of stages, as a cause for each pipeline."""
    summary = evidence.summary
    if not summary.messages_us > 0:
        return
    pipelines, stages = newest(evidence.timings, evidence.rows)
    for pipeline, group in groupby(stages, key=lambda stage: stage.pipeline):
        pipeline_stages = list(group)
        if len(pipeline_stages) == len(pipeline.ranks):
            yield _bubble(evidence, pipeline, pipeline_stages)
    if pipelines.unknown:
        text = (
            f"training waits {summary.messages_us / 1e3:.2f} ms per iteration in sends and "
            f"receives. {' '.join(pipelines.unknown)}".rstrip(".")
        )
        yield evidence.cause(
            "waiting for messages",
            text,
            _UNKNOWN_FIX,
            summary.messages_us,
            bound=True,
            times_us=evidence.per_iteration_us("messages"),
        )


def _bubble(evidence: Evidence, pipeline: Pipeline, stages: list[StageFigures]) -> Cause:
    """Return the idle time of a pipeline's stages, with the savings of balance and microbatches.

    With the busy times b of n stages and m microbatches, an iteration takes the sum of all b / m,
    plus m - 1 times the largest b / m. With balanced stages, it takes (n + m - 1) / m times the
    mean of b.
    """
    # Number of times that a rank runs a forward in an iteration.
    turns = pipeline.microbatches * pipeline.chunks
    others = len(stages) - 1
    busy = [stage.busy_us for stage in stages]
    mean = sum(busy) / len(busy)
    longest = max(busy)
    slow = longest > mean * (1 + MIN_EXCESS)
    idle = sum(stage.idle_us for stage in stages) / len(stages)
    saving = 0.0
    fixes = []
    if slow:
        slowest = stages[busy.index(longest)]
        balance_saving = (longest - mean) * ((turns - 1) / turns if turns else 1)
        saving += balance_saving
        fixes.append(
            f"move layers from stage {slowest.stage} (rank {slowest.rank}) to others "
            f"({balance_saving / 1e3:.2f} ms)"
        )
    if turns:
        microbatch_saving = mean * others / turns / 2
        saving += microbatch_saving
        fixes.append(f"twice as many microbatches ({microbatch_saving / 1e3:.2f} ms)")
    else:
        saving = idle
        fixes.append("more microbatches")
    if pipeline.chunks < 2:
        fixes.append("an interleaved schedule, with several stages on each rank")
    return evidence.cause(
        _NAME,
        _described(pipeline, stages, slow=slow),
        "; ".join(fixes),
        min(saving, idle),
        bound=not turns,
        times_us=evidence.per_iteration_us("messages"),
    )


def _described(pipeline: Pipeline, stages: list[StageFigures], *, slow: bool) -> str:
    """Describe the idle stages of a pipeline; `slow` adds the time that stages compute."""
    name = f" {pipeline.group}" if pipeline.group else ""
    shares = ", ".join(
        f"stage {stage.stage} (rank {stage.rank}) {stage.idle_us / stage.iteration_us:.0%}"
        for stage in stages
    )
    text = f"in the pipeline{name} of {phrase(pipeline.ranks)}, stages wait for messages: {shares}"
    if math.isnan(pipeline.ideal_share):
        text += "; the number of microbatches is not known, as stages send different numbers"
    else:
        schedule = f"{pipeline.microbatches} microbatches"
        if pipeline.chunks > 1:
            schedule += f" and {pipeline.chunks} stages on each rank"
        elif len(stages) == 2:  # an interleaved schedule looks the same
            schedule += ", if each message forward is one"
        text += f"; equally fast stages are idle for {pipeline.ideal_share:.0%} with {schedule}"
    if slow:
        busy = ", ".join(f"{stage.busy_us / 1e3:.2f}" for stage in stages)
        text += f"; they compute {busy} ms per iteration"
    return text
