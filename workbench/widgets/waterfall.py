"""One iteration on all ranks as a Gantt chart: phases and collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workbench.timings.derive import columns
from workbench.timings.export.alignment import Alignment, align
from workbench.timings.export.iterations import Collective, Iteration, iter_iterations, select_rows
from workbench.timings.store import Rows
from workbench.widgets.phases import IN_TIME, OVERLAPPED

if TYPE_CHECKING:
    from workbench.timings.source import TimingsSource

_PHASE_ROW, _COLLECTIVE_ROWS = (-0.42, -0.08), (-0.02, 0.42)
"""Vertical positions between a rank's -0.5 and 0.5."""
_RANK_PX, _LEAST_PX = 74, 240
_STACKED = "stacked: only the sum is known"


class _Bar(NamedTuple):
    """A bar that begins at `begin_ms`, is `width_ms` long, and is centred at height `y`."""

    y: float
    thickness: float
    begin_ms: float
    width_ms: float
    text: str


def waterfall_figure(timings: TimingsSource, iteration: int | None = None) -> Any:
    """Draw one iteration on all ranks over time: phases above, collectives below.

    Phases are stacked in their usual order, because only their sums are known. Collectives
    are drawn at their measured times: pale while they are queued, until all ranks have
    submitted them. Where only the submission and the end are known, as of DDP's buckets, a
    collective is one bar in a shade of its own.

    Parameters
    ----------
    iteration
        Number of the iteration; the newest that all ranks have reported by default.

    Returns
    -------
    plotly.graph_objects.Figure
        Times in milliseconds since the first rank began.

    Raises
    ------
    UsageError
        There is no such iteration.
    """
    number = _newest(timings) if iteration is None else iteration
    rows = select_rows(timings, (number, number))
    near = select_rows(timings, (number - 50, number + 50))  # one is not enough to align ranks
    aligned = align(timings, near, None)
    (found,) = iter_iterations(timings, rows)
    begins = aligned.begins(rows)
    figure = _chart(number, rows, found, (begins - begins.min()) / 1e6)
    vms = timings.vm_names()
    names = [_name(rank, vms.get(rank)) for rank in rows["rank"].tolist()]
    figure.apply_style(height=_LEAST_PX + _RANK_PX * (len(rows) - 1), notes=_notes(aligned))
    figure.update_xaxes(title_text=f"time in iteration {number} (ms)")
    figure.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=names, range=[len(rows) - 0.5, -0.5],
        showgrid=False, zeroline=False,
    )  # fmt: skip
    return figure


def _chart(number: int, rows: Rows, found: Iteration, since_ms: Any) -> Any:
    """Return a figure with the bars of all phases and collectives."""
    from workbench.widgets.plotly_figure import new_figure

    figure = new_figure(f"Iteration {number}, a row per rank")
    for phase, bars in _phases(rows, since_ms).items():
        _add(figure, phase.label, phase.color, phase.edge, bars)
    queued, running, unsplit = _collectives(found, since_ms)
    _add(figure, "queued", OVERLAPPED.color, OVERLAPPED.edge, queued, opacity=0.35)
    _add(figure, "collective", OVERLAPPED.color, OVERLAPPED.edge, running)
    if unsplit:
        _add(figure, "queued or transferred", OVERLAPPED.color, OVERLAPPED.edge, unsplit, 0.65)
    figure.update_layout(barmode="overlay", bargap=0)
    return figure


def _newest(timings: TimingsSource) -> int:
    """Return the newest iteration that the most ranks have reported."""
    rows = select_rows(timings, None)
    numbers, counts = np.unique(rows["iteration"], return_counts=True)
    return int(numbers[counts == counts.max()][-1])


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


def _collectives(found: Iteration, since_ms: Any) -> tuple[list[_Bar], list[_Bar], list[_Bar]]:
    """Return bars of the collectives while they are queued, while they run, and of unknown parts.

    Of a collective whose response is not recorded, such as DDP's, only the whole is known.
    """
    queued, running, unsplit = [], [], []
    top, bottom = _COLLECTIVE_ROWS
    for place, rank in enumerate(found.rows["rank"].tolist()):
        every = found.collectives.get(rank, [])
        lanes = _lanes(every)
        thick = (bottom - top) / max([3, *(lane + 1 for lane in lanes)])
        for one, lane in zip(every, lanes, strict=True):
            y = place + top + (lane + 0.5) * thick
            text = f"rank {rank}: {_text(one)}"
            begin, end = (since_ms[place] + ns / 1e6 for ns in (one.submitted_ns, one.finished_ns))
            if one.responded_ns is None:
                unsplit.append(_Bar(y, 0.86 * thick, begin, end - begin, text))
                continue
            responded = since_ms[place] + one.responded_ns / 1e6
            queued.append(_Bar(y, 0.86 * thick, begin, responded - begin, text))
            running.append(_Bar(y, 0.86 * thick, responded, end - responded, text))
    return queued, running, unsplit


def _lanes(every: list[Collective]) -> list[int]:
    """Return a lane for each collective, so that concurrent ones do not share a lane."""
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
    ]
    if one.algbw_gbps is not None:
        lines.append(f"algbw {one.algbw_gbps:.3g} Gbit/s, including queueing")
    if one.responded_ns is None or one.began_ns is None or one.ended_ns is None:
        lines.append("its transfer is not known")
    else:
        lines += [
            f"queued {(one.responded_ns - one.submitted_ns) / 1e6:.3f} ms",
            f"{one.library} {(one.ended_ns - one.began_ns) / 1e6:.3f} ms",
        ]
    return "<br>".join(lines)


def _add(
    figure: Any, name: str, color: str, edge: str, bars: list[_Bar], opacity: float = 1.0
) -> None:
    """Add bars of one colour; add no legend entry without bars."""
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
    error = f", ± {most:,.0f} µs" if 0 < most < float("inf") else ""
    return (
        "Phases are stacked in their usual order: only their sums are known.",
        f"Clocks: {aligned.method}{error}.",
    )
