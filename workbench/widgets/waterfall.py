"""One iteration on all ranks as a Gantt chart: phases, and every collective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workbench.timings.derive import columns
from workbench.timings.export.alignment import Alignment, align
from workbench.timings.export.walk import Collective, Iteration, chosen, walk
from workbench.timings.store import Rows
from workbench.widgets.figure_style import dress
from workbench.widgets.phases import IN_TIME, OVERLAPPED

if TYPE_CHECKING:
    from workbench.timings.export.alignment import ClocksLike
    from workbench.timings.export.door import Exports

_PHASE_ROW, _COLLECTIVE_ROWS = (-0.42, -0.08), (-0.02, 0.42)
"""Where they lie between a rank's -0.5 and 0.5."""
_RANK_PX, _LEAST_PX = 74, 240
_STACKED = "stacked: only the sum is known"


class _Bar(NamedTuple):
    """A bar from `begin_ms`, `width_ms` long, around the height `y`."""

    y: float
    thickness: float
    begin_ms: float
    width_ms: float
    text: str


def waterfall_figure(
    timings: Exports, iteration: int | None = None, clocks: ClocksLike | None = None
) -> Any:
    """Draw one iteration on all ranks: phases above, and collectives below, by time.

    Phases are stacked in their usual order, for only their sums are known;
    collectives lie at their true times, and the pale end of each is where it
    was first seen finished against where it was last seen unfinished.

    Parameters
    ----------
    timings
        Of a cluster, or of an earlier run.
    iteration
        Its number; the newest that all ranks have reported by default.
    clocks
        How ranks' clocks are aligned; see `Exports.to_trace`.

    Returns
    -------
    plotly.graph_objects.Figure
        Times in milliseconds after the first rank began.

    Raises
    ------
    UsageError
        There is no such iteration.
    """
    from workbench.widgets.study_figure import study_figure

    number = _newest(timings) if iteration is None else iteration
    rows = chosen(timings, (number, number))
    aligned = align(timings, _near(timings, number), clocks)
    (found,) = walk(timings, rows)
    begins = aligned.begins(rows)
    since_ms = (begins - begins.min()) / 1e6
    figure = study_figure(f"Iteration {number}, a row per rank")
    for phase, bars in _phases(rows, since_ms).items():
        _add(figure, phase.label, phase.color, phase.edge, bars)
    sure, unsure = _collectives(found, since_ms)
    _add(figure, "collective", OVERLAPPED.color, OVERLAPPED.edge, sure)
    _add(figure, "it ends within", OVERLAPPED.color, OVERLAPPED.edge, unsure, opacity=0.35)
    places = timings.places()
    names = [_name(rank, places.get(rank)) for rank in rows["rank"].tolist()]
    figure.update_layout(barmode="overlay", bargap=0)
    dress(figure, height=_LEAST_PX + _RANK_PX * (len(rows) - 1), notes=_notes(aligned))
    figure.update_xaxes(title_text=f"time in iteration {number} (ms)")
    figure.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=names, range=[len(rows) - 0.5, -0.5],
        showgrid=False, zeroline=False,
    )  # fmt: skip
    return figure


def _newest(timings: Exports) -> int:
    """Return the last iteration with as many ranks as any."""
    rows = chosen(timings, None)
    numbers, counts = np.unique(rows["iteration"], return_counts=True)
    return int(numbers[counts == counts.max()][-1])


def _near(timings: Exports, number: int) -> Rows:
    """Return rows around an iteration: alignment takes more than one."""
    return chosen(timings, (number - 50, number + 50))


def _phases(rows: Rows, since_ms: Any) -> dict[Any, list[_Bar]]:
    table = columns(rows)
    top, bottom = _PHASE_ROW
    bars: dict[Any, list[_Bar]] = {}
    at = since_ms.copy()
    for phase in IN_TIME:
        took = np.nan_to_num(table[phase.column]) / 1e3
        bars[phase] = [
            _Bar(
                place + (top + bottom) / 2, bottom - top, at[place], took[place],
                f"rank {rank}: {phase.label} {took[place]:.3f} ms<br>{_STACKED}",
            )
            for place, rank in enumerate(rows["rank"].tolist())
            if took[place] > 0
        ]  # fmt: skip
        at += took
    return bars


def _collectives(found: Iteration, since_ms: Any) -> tuple[list[_Bar], list[_Bar]]:
    """Return the bars of what was surely under way, and of the brackets in which it ended."""
    sure, unsure = [], []
    top, bottom = _COLLECTIVE_ROWS
    for place, rank in enumerate(found.rows["rank"].tolist()):
        every = found.collectives.get(rank, [])
        lanes = _lanes(every)
        thick = (bottom - top) / max([3, *(lane + 1 for lane in lanes)])
        for one, lane in zip(every, lanes, strict=True):
            y = place + top + (lane + 0.5) * thick
            text = f"rank {rank}: {_text(one)}"
            begin, seen, end = (
                since_ms[place] + ns / 1e6
                for ns in (one.submitted_ns, one.unfinished_ns, one.finished_ns)
            )
            sure.append(_Bar(y, 0.86 * thick, begin, seen - begin, text))
            unsure.append(_Bar(y, 0.86 * thick, seen, end - seen, text))
    return sure, unsure


def _lanes(every: list[Collective]) -> list[int]:
    """Return for each a row of its own among those under way at once."""
    free_at: list[int] = []
    lanes = []
    for one in every:
        lane = next((k for k, free in enumerate(free_at) if free <= one.submitted_ns), len(free_at))
        free_at[lane : lane + 1] = [one.finished_ns]
        lanes.append(lane)
    return lanes


def _text(one: Collective) -> str:
    lines = [
        one.label,
        f"{one.size_bytes:,} bytes in {(one.finished_ns - one.submitted_ns) / 1e6:.3f} ms",
        f"ended {one.unfinished_ns / 1e6:.3f} to {one.finished_ns / 1e6:.3f} ms",
    ]
    if one.algbw_gbps is not None:
        lines.insert(2, f"algbw {one.algbw_gbps:.3g} Gbit/s, queueing included")
    return "<br>".join(lines)


def _add(
    figure: Any, name: str, color: str, edge: str, bars: list[_Bar], opacity: float = 1.0
) -> None:
    """Add bars of one colour; nothing where there are none, so that the legend has no more."""
    import plotly.graph_objects as go

    if not bars:
        return
    figure.add_trace(
        go.Bar(
            name=name, orientation="h", opacity=opacity,
            y=[bar.y for bar in bars], width=[bar.thickness for bar in bars],
            base=[bar.begin_ms for bar in bars], x=[bar.width_ms for bar in bars],
            marker={"color": color, "line": {"color": edge, "width": 0.5}},
            hovertext=[bar.text for bar in bars], hovertemplate="%{hovertext}<extra></extra>",
        )
    )  # fmt: skip


def _name(rank: int, vm: str | None) -> str:
    return f"rank {rank}<br>{vm}" if vm else f"rank {rank}"


def _notes(aligned: Alignment) -> tuple[str, ...]:
    most = max(aligned.uncertainty_ns.values()) / 1e3
    sure = f", ± {most:,.0f} µs" if 0 < most < float("inf") else ""
    return (
        "Phases are stacked in their usual order: only their sums are known.",
        f"Clocks: {aligned.method}{sure}.",
    )
