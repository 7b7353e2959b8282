"""The idle time of pipeline stages: too few microbatches, or a stage slower than the others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

from workbench.advisor.evidence import Evidence
from workbench.ranks import phrase
from workbench.timings.stages import Pipeline, StageFigures, newest
from workbench.timings.verdict import Cause

UNBALANCED = 0.1
"""A stage is slower than the others from this excess over their mean on."""
_NAME = "pipeline bubble"
_UNKNOWN_CURE = (
    "check which rank sends late: timings.collectives() has each message with its peer and times"
)


def pipeline_causes(evidence: Evidence) -> Iterator[Cause]:
    """Yield the idle time of stages, as a cause for each pipeline."""
    summary = evidence.summary
    if not summary.messages_us > 0:
        return
    pipelines, stages = newest(evidence.timings, evidence.rows)
    for pipeline, some in groupby(stages, key=lambda one: one.pipeline):
        own = list(some)
        if len(own) == len(pipeline.ranks):
            yield _bubble(evidence, pipeline, own)
    if pipelines.unknown:
        text = (
            f"training waits {summary.messages_us / 1e3:.2f} ms per iteration in sends and "
            f"receives. {' '.join(pipelines.unknown)}".rstrip(".")
        )
        saving, varies = summary.messages_us, evidence.each("messages")
        yield evidence.cause(
            "waiting for messages", text, _UNKNOWN_CURE, saving, bound=True, varies=varies
        )


def _bubble(evidence: Evidence, pipeline: Pipeline, stages: list[StageFigures]) -> Cause:
    """Return the idle time of a pipeline's stages, with what balancing and more batches save.

    With the busy times b of n stages and m microbatches, an iteration takes the sum of b / m, and
    m - 1 times the longest b / m. Balanced it is the mean of b, n + m - 1 times over m.
    """
    turns, others = pipeline.microbatches * pipeline.chunks, len(stages) - 1
    busy = [one.busy_us for one in stages]
    mean, longest = sum(busy) / len(busy), max(busy)
    slow = longest > mean * (1 + UNBALANCED)
    idle = sum(one.idle_us for one in stages) / len(stages)
    saving, cures = 0.0, []
    if slow:
        slowest = stages[busy.index(longest)]
        balanced = (longest - mean) * ((turns - 1) / turns if turns else 1)
        saving += balanced
        cures.append(
            f"move layers from stage {slowest.stage} (rank {slowest.rank}) to others "
            f"({balanced / 1e3:.2f} ms)"
        )
    if turns:
        more = mean * others / turns / 2
        saving += more
        cures.append(f"twice as many microbatches ({more / 1e3:.2f} ms)")
    else:
        saving = idle
        cures.append("more microbatches")
    if pipeline.chunks < 2:
        cures.append("an interleaved schedule, with several stages on each rank")
    return evidence.cause(
        _NAME,
        _described(pipeline, stages, slow=slow),
        "; ".join(cures),
        min(saving, idle),
        bound=not turns,
        varies=evidence.each("messages"),
    )


def _described(pipeline: Pipeline, stages: list[StageFigures], *, slow: bool) -> str:
    name = f" {pipeline.group}" if pipeline.group else ""
    shares = ", ".join(
        f"stage {one.stage} (rank {one.rank}) {one.idle_us / one.iteration_us:.0%}"
        for one in stages
    )
    text = f"in the pipeline{name} of {phrase(pipeline.ranks)}, stages wait for messages: {shares}"
    if math.isnan(pipeline.ideal_share):
        text += "; the number of microbatches is not known, as stages send different numbers"
    else:
        what = f"{pipeline.microbatches} microbatches"
        if pipeline.chunks > 1:
            what += f" and {pipeline.chunks} stages on each rank"
        elif len(stages) == 2:  # an interleaved schedule looks the same
            what += ", if each message forward is one"
        text += f"; equally fast stages are idle for {pipeline.ideal_share:.0%} with {what}"
    if slow:
        busy = ", ".join(f"{one.busy_us / 1e3:.2f}" for one in stages)
        text += f"; they compute {busy} ms per iteration"
    return text
