"""The timings as tables: HTML for saved notebooks, text for terminals."""

from __future__ import annotations

import math
from html import escape

from workbench.resources import Unknown
from workbench.schema.figures import FIGURES
from workbench.timings.derive import EXPOSED_PARTS
from workbench.timings.figures import iterations_text
from workbench.timings.summary import UNHEARD
from workbench.widgets.grid import Array, Grid, rank_means, typical
from workbench.widgets.phases import EXPOSED, IN_TIME, OVERLAPPED
from workbench.widgets.source import KeyFigures, TimingsReading

MAX_RANKS = 16
"""Limit of the rows of the table; the caption says how many ranks are left out."""

MAX_COLLECTIVES = 10
"""Limit of the rows of the table of collectives."""

DASH = "\u2013"

_STYLE = (
    "color:inherit;border-collapse:collapse;font-size:12px;"
    "font-variant-numeric:tabular-nums;margin:8px 0 0 0"
)
_CELL = "padding:2px 8px;text-align:right"
_TEXT_FIGURES = tuple(
    name for name in FIGURES if name not in {"copy_us", "exposed_share", "algbw_gbps"}
)
"""The columns of the table in a terminal."""


def summary_line(reading: TimingsReading) -> str:
    """Return the key figures as one line, for front ends that show only text."""
    if reading.window.rows == 0:
        return f"Timings: {reading.status.message}"
    return f"Timings: {figures_line(reading.summary)}. {reading.status.message}"


def figures_line(summary: KeyFigures) -> str:
    """Return the key figures as one line, without the parts of the exposed time if unknown."""
    parts = ""
    if not isinstance(summary.transfer_us, Unknown):
        parts = (
            f": waiting {_figure(summary.waiting_us, 2, 1e-3)}, queueing "
            f"{_figure(summary.queued_us, 2, 1e-3)}, transfer "
            f"{_figure(summary.transfer_us, 2, 1e-3)} ms"
        )
    scope = ""
    first = summary.first_iteration
    last = summary.last_iteration
    if not (isinstance(first, Unknown) or isinstance(last, Unknown)):
        scope = f"{iterations_text(int(first), int(last))}: "
    return (
        f"{scope}{_figure(summary.iterations_per_s, 1)} it/s, "
        f"{_figure(summary.iteration_us, 2, 1e-3)} ms; "
        f"exposed {_figure(summary.exposed_us, 2, 1e-3)} ms "
        f"({_figure(summary.exposed_share, 0, 100)} %{parts}); "
        f"busbw {_figure(summary.busbw_gbps, 2)} Gbit/s"
    )


def summary_table(reading: TimingsReading) -> str:
    """Return an HTML table with the means of the shown iterations, a row per rank.

    Times are in milliseconds. The table is empty before the first iteration.
    """
    rank_places = reading.status.ranks
    window, left_out_notes = typical(reading.window)
    grid = Grid(window, [rank_place.rank for rank_place in rank_places])
    if len(grid) == 0:
        return ""
    names = ["iteration_us", *(phase.column for phase in IN_TIME)]
    names += [OVERLAPPED.column, *EXPOSED_PARTS, "busbw_gbps"]
    means, all_ranks = rank_means(grid, names, MAX_RANKS)
    rows = [
        _row(f"{rank_place.rank}", rank_place.vm, [means[name][index] for name in names], names)
        for index, rank_place in enumerate(rank_places[:MAX_RANKS])
    ]
    rows.append(_row("all", "", [all_ranks[name] for name in names], names))
    omitted_ranks = len(rank_places) - MAX_RANKS
    omission = f", {omitted_ranks} more ranks not shown" if omitted_ranks > 0 else ""
    caption = (
        f"Mean of {iterations_text(grid.iterations[0], grid.iterations[-1])}{omission}; "
        "times in ms. "
        "Overlapped communication is hidden behind compute and does not lengthen the iteration. "
        "Exposed communication is waiting for the last rank, queueing and transfer, divided as in "
        "the iterations in which they are known."
    )
    caption = escape(" ".join([caption, *_notes(reading, left_out_notes)]))
    return _table(caption, _head(), "".join(rows))


def summary_text(reading: TimingsReading) -> str:
    """Return a row per rank with means over the stored iterations, in ms and Gbit/s."""
    ranks = [rank_place.rank for rank_place in reading.status.ranks]
    window, left_out_notes = typical(reading.window)
    grid = Grid(window, ranks)
    if not len(grid):
        return reading.status.message
    means, _ = rank_means(grid, list(_TEXT_FIGURES))
    columns = list(means.values())
    rows = [[f"rank {rank}", *_text_cells(columns, index)] for index, rank in enumerate(ranks)]
    lines = [["", *(FIGURES[name].label for name in _TEXT_FIGURES)], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    table = "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)
    scope = iterations_text(grid.iterations[0], grid.iterations[-1])
    caption = f"Mean of {scope}; times in ms, busbw in Gbit/s."
    return "\n".join([table, caption, *_notes(reading, left_out_notes)])


def _notes(reading: TimingsReading, left_out_notes: list[str]) -> list[str]:
    """Return the notes on the means: left-out iterations, missing communication, progress."""
    remarks = [note for note in reading.summary.notes if note.startswith(UNHEARD)]
    if isinstance(progress := reading.summary.progress, str):
        remarks.insert(0, f"{progress[0].upper()}{progress[1:]}.")
    return [*left_out_notes, *filter(None, [reading.status.unrecorded]), *remarks]


def collectives_table(reading: TimingsReading) -> str:
    """Return an HTML table of the most expensive collectives of the newest iterations."""
    collectives = reading.details.collectives
    if isinstance(collectives, Unknown) or not collectives:
        return ""
    heads = (
        "collective", "kind", "group", "bytes", "mean ms", "queued ms", "transfer ms",
        "busbw Gbit/s", "share of exposed",
    )  # fmt: skip
    head = "".join(f'<th scope="col" style="{_CELL}">{text}</th>' for text in heads)
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL};text-align:left">{escape(collective.name)}</th>'
        + "".join(
            f'<td style="{_CELL}">{escape(text)}</td>'
            for text in (
                collective.kind
                if collective.peer < 0
                else f"{collective.kind}, with rank {collective.peer}",
                collective.group or "all",
                f"{collective.bytes:,}",
                f"{collective.mean_us / 1e3:,.2f}",
                _figure(collective.queued_us, 2, 1e-3),
                _figure(collective.transfer_us, 2, 1e-3),
                _figure(collective.busbw_gbps, 2),
                f"{collective.exposed_share:.0%}",
            )
        )
        + "</tr>"
        for collective in collectives[:MAX_COLLECTIVES]
    )
    details = reading.details
    shown = min(len(collectives), MAX_COLLECTIVES)
    caption = (
        f"The {shown} most expensive of {details.names} collectives, iterations "
        f"{details.collectives_since:,} to {details.last_iteration:,}."
    )
    return _table(caption, f"<tr>{head}</tr>", rows)


def _table(caption: str, head: str, rows: str) -> str:
    return (
        f'<table style="{_STYLE}"><caption style="caption-side:bottom;text-align:left;'
        f'padding-top:4px;opacity:.75;max-width:100ch">{caption}</caption>{head}{rows}</table>'
    )


def _head() -> str:
    labels = ["rank", "VM", "iteration", *(phase.label for phase in IN_TIME)]
    labels += [OVERLAPPED.label, *(FIGURES[name].label for name in EXPOSED_PARTS), "busbw Gbit/s"]
    cells = "".join(f'<th scope="col" style="{_CELL}">{label}</th>' for label in labels)
    return f"<tr>{cells}</tr>"


def _row(rank: str, vm: str, values: list[float], names: list[str]) -> str:
    head = f'<th scope="row" style="{_CELL}">{rank}</th><td style="{_CELL}">{escape(vm)}</td>'
    cells = [_cell(value, name) for value, name in zip(values, names, strict=True)]
    return f"<tr>{head}{''.join(cells)}</tr>"


def _cell(value: float, name: str) -> str:
    if math.isnan(value):
        reason = "not recorded in these iterations"
        return f'<td style="{_CELL};opacity:.6" title="{reason}">{DASH}</td>'
    weight = ";font-weight:bold" if name == EXPOSED.column else ""
    scaled = value / 1e3 if name.endswith("_us") else value
    return f'<td style="{_CELL}{weight}">{scaled:,.2f}</td>'


def _figure(value: float | Unknown, decimals: int = 0, factor: float = 1) -> str:
    """Return a key figure times `factor` as text, or a dash with the reason if it is unknown."""
    if isinstance(value, Unknown):
        return f"{DASH} ({value.reason})"
    return f"{value * factor:,.{decimals}f}"


def _text_cells(columns: list[Array], index: int) -> list[str]:
    """Return the cells of the rank at an index: times in ms, other figures in their units."""
    cells = []
    for name, column in zip(_TEXT_FIGURES, columns, strict=True):
        value = float(column[index])
        scaled = value / 1e3 if name.endswith("_us") else value
        cells.append(DASH if math.isnan(value) else f"{scaled:.2f}")
    return cells
