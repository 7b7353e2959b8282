"""The summary of a run as plain text, for terminals."""

from __future__ import annotations

import math

from workbench.widgets.grid import Array, Grid, rank_means, warm
from workbench.widgets.source import Reading
from workbench.widgets.tables import table_notes

_COLUMNS = {
    "iteration": "iteration_us",
    "data": "data_us",
    "forward": "forward_us",
    "backward": "backward_us",
    "exposed": "exposed_us",
    "optimizer": "optimizer_us",
    "other": "other_us",
    "communication": "communication_us",
    "overlapped": "overlapped_us",
    "waiting": "wait_us",
    "busbw": "busbw_gbps",
}
_DASH = "\u2013"


def summary_text(reading: Reading) -> str:
    """Return a row per rank: means over the iterations held, in ms; busbw in Gbit/s."""
    ranks = [place.rank for place in reading.status.ranks]
    window, left_out = warm(reading.window)
    grid = Grid(window, ranks)
    if not len(grid):
        return reading.status.message
    columns = list(rank_means(grid, list(_COLUMNS.values())).values())
    rows = [[f"rank {rank}", *_cells(columns, place)] for place, rank in enumerate(ranks)]
    lines = [["ms", *_COLUMNS], *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    table = "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)
    first, last = grid.iterations[0], grid.iterations[-1]
    what = f"Mean of iterations {first:,} to {last:,}; busbw in Gbit/s."
    return "\n".join([table, what, *table_notes(reading, left_out)])


def _cells(columns: list[Array], place: int) -> list[str]:
    cells = []
    for name, column in zip(_COLUMNS.values(), columns, strict=True):
        value = float(column[place])
        scaled = value / 1e3 if name.endswith("_us") else value
        cells.append(_DASH if math.isnan(value) else f"{scaled:.2f}")
    return cells
