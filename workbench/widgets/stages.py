"""The stages of pipelines in the live view."""

from __future__ import annotations

import math

from workbench.ranks import phrase
from workbench.resources import Unknown
from workbench.timings import Timings, stages
from workbench.widgets.source import StageEntry, TimingsReading
from workbench.widgets.table import Table

_NOT_COUNTED = Unknown("the number of microbatches is not known: stages send different numbers")


def stage_entries(timings: Timings, first: int, last: int) -> tuple[StageEntry, ...] | Unknown:
    """Return the stages in some iterations, or why they are unknown; empty without pipelines."""
    pipelines, pipeline_stages = stages.newest(timings, timings.between(first, last))
    entries = tuple(
        StageEntry(
            stage.pipeline.group or phrase(stage.pipeline.ranks),
            stage.stage,
            stage.rank,
            stage.idle_us,
            stage.idle_us / stage.iteration_us,
            _NOT_COUNTED if math.isnan(stage.pipeline.ideal_share) else stage.pipeline.ideal_share,
        )
        for stage in pipeline_stages
    )
    return entries or (Unknown(" ".join(pipelines.unknown)) if pipelines.unknown else ())


def stages_table(reading: TimingsReading) -> str:
    """Return an HTML table of the stages, or why they are unknown; empty without pipelines."""
    stages_or_reason = reading.details.stages
    if isinstance(stages_or_reason, Unknown):
        return Table(f"Pipeline stages: {stages_or_reason.reason}", (), ())._repr_html_()
    rows = [
        (
            stage.group,
            f"{stage.stage}",
            f"{stage.rank}",
            f"{stage.idle_us / 1e3:,.2f}",
            f"{stage.idle_share:.0%}",
            "unknown" if isinstance(stage.ideal_share, Unknown) else f"{stage.ideal_share:.0%}",
        )
        for stage in stages_or_reason
    ]
    head = ("pipeline", "stage", "rank", "idle ms", "of iteration", "if balanced")
    title = "Pipeline stages, with their waits for messages"
    return Table(title, head, rows)._repr_html_() if rows else ""
