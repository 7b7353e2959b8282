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

_PHASE_ROW = (-0.42, -0.08)
"""Top and bottom of the bars of phases; the row of a rank extends from -0.5 to 0.5."""
_COLLECTIVE_ROWS = (-0.02, 0.42)
"""Top and bottom of the bars of collectives in the row of a rank."""
_RANK_PX = 74
_MIN_PX = 240
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
    submitted them. If only the submission and the end are known, as for DDP's buckets, a
    collective is one bar in another shade.

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
    # One iteration is too few to align the ranks.
    nearby_rows = select_rows(timings, (number - 50, number + 50))
    alignment = align(timings, nearby_rows, None)
    (drawn_iteration,) = iter_iterations(timings, rows)
    begins = alignment.begins(rows)
    figure = _chart(number, rows, drawn_iteration, (begins - begins.min()) / 1e6)
    vms = timings.vm_names()
    names = [_name(rank, vms.get(rank)) for rank in rows["rank"].tolist()]
    figure.apply_style(height=_MIN_PX + _RANK_PX * (len(rows) - 1), notes=_notes(alignment))
    figure.update_xaxes(title_text=f"time in iteration {number} (ms)")
    figure.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=names, range=[len(rows) - 0.5, -0.5],
        showgrid=False, zeroline=False,
    )  # fmt: skip
    return figure


def _chart(number: int, rows: Rows, iteration: Iteration, rank_begins_ms: Any) -> Any:
    """Return a figure with the bars of all phases and collectives."""
    from workbench.widgets.plotly_figure import new_figure

    figure = new_figure(f"Iteration {number}, a row per rank")
    for phase, bars in _phases(rows, rank_begins_ms).items():
        _add(figure, phase.label, phase.color, phase.edge, bars)
    queued, running, unsplit = _collectives(iteration, rank_begins_ms)
    _add(figure, "queued", OVERLAPPED.color, OVERLAPPED.edge, queued, opacity=0.35)
    _add(figure, "collective", OVERLAPPED.color, OVERLAPPED.edge, running)
    if unsplit:
        _add(figure, "queued or transferred", OVERLAPPED.color, OVERLAPPED.edge, unsplit, 0.65)
    figure.update_layout(barmode="overlay", bargap=0)
    return figure


def _newest(timings: TimingsSource) -> int:
    """Return the newest iteration that the most ranks have reported."""
    rows = select_rows(timings, None)
    iterations, counts = np.unique(rows["iteration"], return_counts=True)
    return int(iterations[counts == counts.max()][-1])


def _phases(rows: Rows, rank_begins_ms: Any) -> dict[Any, list[_Bar]]:
    """Return the bars of each phase; each rank's first bar begins at `rank_begins_ms`."""
    table = columns(rows)
    top, bottom = _PHASE_ROW
    bars: dict[Any, list[_Bar]] = {}
    begins_ms = rank_begins_ms.copy()
    for phase in IN_TIME:
        durations_ms = np.nan_to_num(table[phase.column]) / 1e3
        bars[phase] = [
            _Bar(
                row + (top + bottom) / 2, bottom - top, begins_ms[row], durations_ms[row],
                f"rank {rank}: {phase.label} {durations_ms[row]:.3f} ms<br>{_STACKED}",
            )
            for row, rank in enumerate(rows["rank"].tolist())
            if durations_ms[row] > 0
        ]  # fmt: skip
        begins_ms += durations_ms
    return bars


def _collectives(
    iteration: Iteration, rank_begins_ms: Any
) -> tuple[list[_Bar], list[_Bar], list[_Bar]]:
    """Return the bars of queued, running and unsplit collectives.

    A collective without a recorded response, such as DDP's, is unsplit: only its total time is
    known.
    """
    queued = []
    running = []
    unsplit = []
    top, bottom = _COLLECTIVE_ROWS
    for row, rank in enumerate(iteration.rows["rank"].tolist()):
        collectives = iteration.collectives.get(rank, [])
        lanes = _lanes(collectives)
        thickness = (bottom - top) / max([3, *(lane + 1 for lane in lanes)])
        for collective, lane in zip(collectives, lanes, strict=True):
            y = row + top + (lane + 0.5) * thickness
            text = f"rank {rank}: {_text(collective)}"
            begin, end = (
                rank_begins_ms[row] + ns / 1e6
                for ns in (collective.submitted_ns, collective.finished_ns)
            )
            if collective.responded_ns is None:
                unsplit.append(_Bar(y, 0.86 * thickness, begin, end - begin, text))
                continue
            responded = rank_begins_ms[row] + collective.responded_ns / 1e6
            queued.append(_Bar(y, 0.86 * thickness, begin, responded - begin, text))
            running.append(_Bar(y, 0.86 * thickness, responded, end - responded, text))
    return queued, running, unsplit


def _lanes(collectives: list[Collective]) -> list[int]:
    """Return a lane for each collective, so that concurrent collectives do not share a lane."""
    lanes_free_at_ns: list[int] = []
    lanes = []
    for collective in collectives:
        lane = next(
            (
                index
                for index, free_ns in enumerate(lanes_free_at_ns)
                if free_ns <= collective.submitted_ns
            ),
            len(lanes_free_at_ns),
        )
        lanes_free_at_ns[lane : lane + 1] = [collective.finished_ns]
        lanes.append(lane)
    return lanes


def _text(collective: Collective) -> str:
    """Return the text that is shown when the pointer is on a collective."""
    duration_ms = (collective.finished_ns - collective.submitted_ns) / 1e6
    lines = [
        collective.label,
        f"{collective.size_bytes:,} bytes in {duration_ms:.3f} ms",
    ]
    if collective.algbw_gbps is not None:
        lines.append(f"algbw {collective.algbw_gbps:.3g} Gbit/s, including queueing")
    if (
        collective.responded_ns is None
        or collective.began_ns is None
        or collective.ended_ns is None
    ):
        lines.append("its transfer is not known")
    else:
        lines += [
            f"queued {(collective.responded_ns - collective.submitted_ns) / 1e6:.3f} ms",
            f"{collective.library} {(collective.ended_ns - collective.began_ns) / 1e6:.3f} ms",
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


def _notes(alignment: Alignment) -> tuple[str, ...]:
    max_error_us = max(alignment.uncertainty_ns.values()) / 1e3
    uncertainty = f", ± {max_error_us:,.0f} µs" if 0 < max_error_us < float("inf") else ""
    return (
        "Phases are stacked in their usual order: only their sums are known.",
        f"Clocks: {alignment.method}{uncertainty}.",
    )
