"""How notebooks show scaling studies and their comparisons."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from workbench.advisor.scaling_point import Ratio, ScalingPoint, allowed_text
from workbench.advisor.scaling_record import ScalingStudy
from workbench.errors import UsageError
from workbench.widgets.phases import EXPOSED, FORWARD, OVERLAPPED, PhaseStyle
from workbench.widgets.static_figure import INK
from workbench.widgets.table import Table

if TYPE_CHECKING:
    from workbench.advisor.scaling_record import StudyComparison

_ROW_PX = 74
_MIN_PX = 130
_THICK = 0.24
"""Thickness of a bar, in rows, like `_THIN` and `_OFFSET`."""
_THIN = 0.06
_OFFSET = 0.27
"""Distance between the bars of one row."""
_NOTE_CHARACTERS = 95
_DASH = "\u2013"
_NOTE = (
    "Nominal and calibrated: solid without overlap, pale with full overlap of communication and "
    "backward. Thin line: 95 % interval of the measured efficiency."
)


def study_figure(*studies: ScalingStudy) -> Any:
    """Draw the efficiency of studies by size: measured, calibrated and nominal.

    Parameters
    ----------
    *studies
        One or more; the rows are sorted by the number of ranks. The smallest size of a study has
        no row unless it is the only size, because the other sizes are compared with it.

    Each size of a study has three bars. An unknown efficiency has no bar.

    Raises
    ------
    UsageError
        No study was given.
    """
    from workbench.widgets.plotly_figure import new_figure

    if not studies:
        raise UsageError("study_figure: no study given. Give one or more scaling studies.")
    size_rows = sorted(
        ((point, study) for study in studies for point in study.points[1:] or study.points),
        key=lambda size_row: size_row[0].ranks,
    )
    names = [_row_name(point, study, several=len(studies) > 1) for point, study in size_rows]
    figure = new_figure("Efficiency by the number of ranks: measured, calibrated and nominal")
    figure.update_layout(barmode="overlay")
    ratios = [study.efficiency(point) for point, study in size_rows]
    bars = [(row - _OFFSET, 0.0, ratio.value) for row, ratio in enumerate(ratios)]
    _add_bars(figure, "measured", OVERLAPPED, bars)
    for name, style, offset in (("calibrated", FORWARD, 0.0), ("nominal", EXPOSED, _OFFSET)):
        # `pair` is the efficiency without overlap, and with full overlap.
        allowed = [(row, pair) for row, (point, _) in enumerate(size_rows)
                   if (pair := getattr(point, name)) is not None]  # fmt: skip
        _add_bars(figure, name, style, [(row + offset, 0.0, low) for row, (low, _) in allowed])
        pale = [(row + offset, low, high) for row, (low, high) in allowed if high > low]
        _add_bars(figure, name, style, pale, opacity=0.35, showlegend=False)
    intervals = [(row - _OFFSET, ratio.low, ratio.high) for row, ratio in enumerate(ratios)
                 if ratio.high > ratio.low]  # fmt: skip
    spread = PhaseStyle("", "", INK)
    _add_bars(figure, "95 % interval", spread, intervals, thick=_THIN, showlegend=False)
    figure.apply_style(
        height=_MIN_PX + _ROW_PX * len(size_rows), notes=tuple(wrap(_NOTE, _NOTE_CHARACTERS))
    )
    figure.update_xaxes(title_text="efficiency (%)", rangemode="tozero")
    figure.update_yaxes(
        tickvals=list(range(len(size_rows))), ticktext=names,
        range=[len(size_rows) - 0.5, -0.5], zeroline=False, showgrid=False,
    )  # fmt: skip
    figure._values = _table("Efficiency", size_rows, several=len(studies) > 1)
    return figure


def _row_name(point: ScalingPoint, study: ScalingStudy, *, several: bool) -> str:
    plural = "s" if point.ranks > 1 else ""
    ranks = f"{point.ranks} rank{plural}"
    return f"{ranks}, {study.label}" if several else ranks


def _add_bars(
    figure: Any,
    name: str,
    style: PhaseStyle,
    bars: list[tuple[float, float, float]],
    *,
    thick: float = _THICK,
    **options: Any,
) -> None:
    """Add bars, if there are any.

    Each bar is a tuple: its row, and the efficiencies (1 is ideal) at which it begins and ends.
    """
    if bars:
        figure.add_bar(
            name=name, orientation="h", y=[row for row, _, _ in bars],
            base=[100 * begin for _, begin, _ in bars],
            x=[100 * (end - begin) for _, begin, end in bars],
            width=[thick] * len(bars), customdata=[100 * end for _, _, end in bars],
            marker={"color": style.color, "line": {"color": style.edge, "width": 1}},
            hovertemplate=name + ": %{customdata:.1f} %<extra></extra>", **options,
        )  # fmt: skip


def _table(
    title: str,
    size_rows: list[tuple[ScalingPoint, ScalingStudy]],
    *,
    several: bool,
    notes: Any = (),
) -> Table:
    units = {study.unit for _, study in size_rows}
    unit = units.pop() if len(units) == 1 else "per second"
    head = ("ranks", "iteration ms", "95 % interval", unit, "efficiency", "95 % interval",
            "calibrated", "nominal")  # fmt: skip
    rows = []
    for point, study in size_rows:
        pairs = (point.calibrated, point.nominal)
        efficiency = study.efficiency(point)
        number = f"{point.per_second:,.1f}"
        rows.append(
            (
                *((study.label,) if several else ()),
                str(point.ranks),
                f"{point.iteration_us / 1e3:,.2f}",
                f"{point.low_us / 1e3:,.2f} to {point.high_us / 1e3:,.2f}",
                number if unit != "per second" else f"{number} {study.unit}",
                f"{efficiency.value:.1%}",
                _interval(efficiency),
                *("unknown" if pair is None else allowed_text(pair) for pair in pairs),
            )
        )
    return Table(title, (*(("study",) if several else ()), *head), rows, notes)


def _interval(ratio: Ratio) -> str:
    return f"{ratio.low:.1%} to {ratio.high:.1%}" if ratio.high > ratio.low else _DASH


def study_html(study: ScalingStudy) -> str:
    """Return a study as a table and a picture."""
    failed = [f"ranks = {failure.ranks}: failed: {failure.reason}" for failure in study.failed]
    size_rows = [(point, study) for point in study.points]
    table = _table(study.summary, size_rows, several=False, notes=[*failed, *study.notes])
    return f"{table._repr_html_()}{_picture(study)}"


def comparison_html(comparison: StudyComparison) -> str:
    """Return a comparison as a table, sentences and a picture."""
    rows = []
    for size in comparison.sizes:
        loss = size.loss
        rows.append(
            (
                str(size.ranks),
                f"{size.iteration_us / 1e3:,.2f}",
                f"{size.other_us / 1e3:,.2f}",
                f"{size.ratio:.3f}",
                f"{size.low:.3f} to {size.high:.3f}",
                f"{loss.value:.1%}",
                f"{loss.low:.1%} to {loss.high:.1%}",
                "yes" if size.clear else "no",
            )
        )
    label, other_label = (study.label for study in comparison.studies)
    head = ("ranks", f"{label}, ms", f"{other_label}, ms", "ratio", "95 % interval",
            "throughput lost", "95 % interval", "more than noise")  # fmt: skip
    notes = [*comparison.sentences]
    table = Table(f"{other_label} compared with {label}", head, rows, notes)
    return f"{table._repr_html_()}{_picture(*comparison.studies)}"


def _picture(*studies: ScalingStudy) -> str:
    from workbench.widgets.static_figure import static_html

    figure = study_figure(*studies)
    return static_html(figure, figure._title, figure._values)
