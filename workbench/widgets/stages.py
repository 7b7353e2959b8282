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
    """Return the stages in some iterations, or why they are unknown; empty without messages."""
    pipelines, found = stages.newest(timings, timings.between(first, last))
    entries = tuple(
        StageEntry(
            one.pipeline.group or phrase(one.pipeline.ranks),
            one.stage,
            one.rank,
            one.idle_us,
            one.idle_us / one.iteration_us,
            _NOT_COUNTED if math.isnan(one.pipeline.ideal_share) else one.pipeline.ideal_share,
        )
        for one in found
    )
    return entries or (Unknown(" ".join(pipelines.unknown)) if pipelines.unknown else ())


def stages_table(reading: TimingsReading) -> str:
    """Return an HTML table of the stages, or why they are unknown; empty without messages."""
    found = reading.details.stages
    if isinstance(found, Unknown):
        return Table(f"Pipeline stages: {found.reason}", (), ())._repr_html_()
    rows = [
        (
            one.group,
            f"{one.stage}",
            f"{one.rank}",
            f"{one.idle_us / 1e3:,.2f}",
            f"{one.idle_share:.0%}",
            "unknown" if isinstance(one.ideal_share, Unknown) else f"{one.ideal_share:.0%}",
        )
        for one in found
    ]
    head = ("pipeline", "stage", "rank", "idle ms", "of iteration", "if balanced")
    title = "Pipeline stages, with their waits for messages"
    return Table(title, head, rows)._repr_html_() if rows else ""
