"""The timings as a table and as a line of text: what a saved notebook says."""

from __future__ import annotations

import math
from html import escape

from workbench.resources import Unknown
from workbench.timings.summary import UNHEARD, warm_note
from workbench.widgets.grid import Grid, mean, rank_means, warm
from workbench.widgets.phases import EXPOSED, IN_TIME, OVERLAPPED
from workbench.widgets.source import Reading

MOST_RANKS = 16
"""Rows of the table; of more ranks it says how many it leaves out."""

MOST_COLLECTIVES = 10
"""Rows of the table of collectives."""

DASH = "\u2013"

_STYLE = (
    "color:inherit;border-collapse:collapse;font-size:12px;"
    "font-variant-numeric:tabular-nums;margin:8px 0 0 0"
)
_CELL = "padding:2px 8px;text-align:right"


def summary_line(reading: Reading) -> str:
    """One line of the key figures, for front ends that show only text."""
    summary = reading.summary
    if reading.window.rows == 0:
        return f"Timings: {reading.status.message}"
    return (
        f"Timings: iteration {_figure(summary.iteration)}, "
        f"{_figure(summary.iterations_per_s, 1)} it/s, "
        f"{_figure(summary.iteration_us, 2, 1e-3)} ms; "
        f"exposed {_figure(summary.exposed_us, 2, 1e-3)} ms "
        f"({_figure(summary.exposed_share, 0, 100)} %); "
        f"busbw {_figure(summary.busbw_gbps, 2)} Gbit/s. {reading.status.message}"
    )


def summary_table(reading: Reading) -> str:
    """An HTML table of the means over the iterations shown: a row per rank.

    Times in milliseconds. Empty before the first iteration.
    """
    places = reading.status.ranks
    window, left_out = warm(reading.window)
    grid = Grid(window, [place.rank for place in places])
    if len(grid) == 0:
        return ""
    names = ["iteration_us", *(phase.column for phase in IN_TIME)]
    names += [OVERLAPPED.column, "wait_us", "busbw_gbps"]
    means = rank_means(grid, names)
    rows = [
        _row(f"{place.rank}", place.vm, [means[name][at] for name in names], names)
        for at, place in enumerate(places[:MOST_RANKS])
    ]
    everyone = [float(mean(means[name])) for name in names]
    rows.append(_row("all", "", everyone, names))
    beyond = len(places) - MOST_RANKS
    more = f", {beyond} more ranks left out" if beyond > 0 else ""
    caption = (
        f"Mean of iterations {grid.iterations[0]:,} to {grid.iterations[-1]:,}{more}. "
        "Overlapped communication is hidden behind compute and no part of the iteration."
    )
    caption = escape(" ".join([caption, *table_notes(reading, left_out)]))
    return (
        f'<table style="{_STYLE}"><caption style="caption-side:bottom;text-align:left;'
        f'padding-top:4px;opacity:.75">{caption}</caption>{_head()}{"".join(rows)}</table>'
    )


def table_notes(reading: Reading, left_out: int) -> list[str]:
    """Return what a reader of the means must know: what they leave out, what is not in them."""
    others = [note for note in reading.summary.notes if note.startswith(UNHEARD)]
    return [*filter(None, [warm_note(left_out)]), *others]


def collectives_table(reading: Reading) -> str:
    """An HTML table of the worst collectives of the newest iterations; empty without any."""
    found = reading.details.collectives
    if isinstance(found, Unknown) or not found:
        return ""
    heads = ("collective", "kind", "bytes", "mean ms", "busbw Gbit/s", "of exposed")
    head = "".join(f'<th scope="col" style="{_CELL}">{text}</th>' for text in heads)
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL};text-align:left">{escape(one.name)}</th>'
        + "".join(
            f'<td style="{_CELL}">{escape(text)}</td>'
            for text in (
                one.kind,
                f"{one.bytes:,}",
                f"{one.mean_us / 1e3:,.2f}",
                _figure(one.busbw_gbps, 2),
                f"{one.exposed_share:.0%}",
            )
        )
        + "</tr>"
        for one in found[:MOST_COLLECTIVES]
    )
    details = reading.details
    shown = min(len(found), MOST_COLLECTIVES)
    caption = (
        f"The worst {shown} of {details.names} collectives, iterations "
        f"{details.collectives_since:,} to {details.last_iteration:,}."
    )
    return (
        f'<table style="{_STYLE}"><caption style="caption-side:bottom;text-align:left;'
        f'padding-top:4px;opacity:.75">{caption}</caption><tr>{head}</tr>{rows}</table>'
    )


def _head() -> str:
    labels = ["rank", "VM", "iteration ms", *(phase.label for phase in IN_TIME)]
    labels += [OVERLAPPED.label, "waiting", "busbw Gbit/s"]
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
    if isinstance(value, Unknown):
        return f"{DASH} ({value.reason})"
    return f"{value * factor:,.{decimals}f}"
