"""Tables of recorded runs, of one run, and of the comparison of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError
from workbench.safefiles import format_bytes
from workbench.widgets.table import Table, show_as_table

if TYPE_CHECKING:
    from IPython.core.formatters import DisplayFormatter

    from workbench.timings.compare import Comparison, FigureDifference
    from workbench.timings.run import Run

SUBCOMMANDS = ("list", "open", "compare", "replay")
_LIST_HEAD = ("name", "started", "cluster", "ranks", "iterations", "size", "state", "verdict")
_UNKNOWN_TEXT = "\u2013 (unknown)"


def runs_view(subcommand: str, names: Sequence[str], speed: float | None = None) -> Any:
    """Return the view of ``%timings list``, ``open``, ``compare`` or ``replay``.

    Parameters
    ----------
    subcommand
        One of `SUBCOMMANDS`.
    names
        The names of the runs.
    speed
        The speed of a replay, 1 by default.

    Raises
    ------
    UsageError
        The number of names does not fit the subcommand.
    """
    from workbench.timings.run import list_runs, open_run

    if (
        len(names)
        not in {"list": (0,), "open": (1,), "compare": (1, 2), "replay": (1,)}[subcommand]
    ):
        raise UsageError(
            f"%timings {' '.join((subcommand, *names))}: {_count(len(names), 'name')} given. Write "
            "%timings list, %timings open NAME, %timings replay NAME, or %timings compare NAME "
            "with a second name or the cluster's run."
        )
    if subcommand == "list":
        return RunList(list_runs())
    if subcommand == "replay":
        from workbench.widgets.replay_view import replay_view

        return replay_view(names[0], speed)
    first = open_run(names[0])
    if subcommand == "open":
        return first
    if len(names) == 2:
        return first.compare(open_run(names[1]))
    from workbench.cluster import registry

    return first.compare(registry.required().timings)


def register(formatter: DisplayFormatter) -> None:
    """Register how notebooks show runs and comparisons, without importing their modules."""
    show_as_table(formatter, "workbench.timings.run", "Run", run_table)
    show_as_table(formatter, "workbench.timings.compare", "Comparison", comparison_table)


class RunList(Table):
    """The recorded runs as a table; `runs` contains them."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        title = _count(len(runs), "run")
        super().__init__(title, _LIST_HEAD, [_list_row(run) for run in runs])


def _count(number: int, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> _count(1, "rank"), _count(2048, "rank")
    ('1 rank', '2,048 ranks')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _list_row(run: Run) -> tuple[str, ...]:
    started = run.started
    verdict = run.stored_verdict
    return (
        run.name,
        _UNKNOWN_TEXT if started is None else f"{started:%Y-%m-%d %H:%M:%S}",
        run.cluster,
        str(len(run.ranks)) if run.ranks else _UNKNOWN_TEXT,
        f"{run.iterations:,}",
        format_bytes(run.size_bytes),
        run.state,
        "\u2013 (none stored)" if verdict is None else verdict.headline,
    )


def run_table(run: Run) -> Table:
    """Return the key figures of a run, and notes on data that cannot be read."""
    from workbench.timings.summary import notes

    summary = run.summary()
    vms = sorted(set(run.vm_names().values()))
    title = f"{run.name}: cluster {run.cluster}, {run.state}, {_count(run.iterations, 'iteration')}"
    if vms:
        title += f" on {_count(len(run.ranks), 'rank')} ({', '.join(vms)})"
    slowest_rank = summary.slowest_rank
    figures = [
        ("iteration", _milliseconds(summary.iteration_us)),
        *((name, _milliseconds(value)) for name, value in summary.phases_us.items()),
        ("communication", _milliseconds(summary.communication_us)),
        ("exposed share", _share(summary.exposed_share)),
        ("bus bandwidth", _number(summary.busbw_gbps, "Gbit/s")),
        ("rank late throughout", "no rank" if slowest_rank is None else f"rank {slowest_rank}"),
    ]
    means = (
        f"Means over {_count(summary.iterations, 'iteration')} and "
        f"{_count(summary.ranks, 'rank')}; the sum of the phases is the iteration."
    )
    verdict = run.stored_verdict
    remarks = [] if verdict is None else [f"Verdict: {verdict.text}."]
    remarks += [means, *notes(summary)] if summary.iterations else []
    remarks += run.problems
    return Table(title, ("figure", "value"), figures, remarks)


def comparison_table(comparison: Comparison) -> Table:
    """Return a row per figure with both runs and their difference."""
    a, b = comparison.names
    iterations = comparison.iterations
    ranks = comparison.ranks
    title = "   ".join(
        f"{key}: {name} ({_count(iterations[index], 'iteration')}, {_count(ranks[index], 'rank')})"
        for index, (key, name) in enumerate((("a", a), ("b", b)))
    )
    scope = "Means over iterations and ranks, with standard deviation and 95 % interval."
    head = ("figure", "a", "spread", "b", "spread", "b - a", "\u00b1", "share", "")
    left_out = [
        f"{name}: {note}"
        for name, notes in zip("ab", comparison.notes, strict=True)
        for note in notes
    ]
    rows = [_compared(difference) for difference in comparison.differences]
    return Table(title, head, rows, [scope, *left_out])


def _compared(difference: FigureDifference) -> tuple[str, ...]:
    """Return the row of a figure."""
    values = (
        difference.a,
        difference.a_spread,
        difference.b,
        difference.b_spread,
        difference.difference,
        difference.uncertainty,
    )
    stem, _, suffix = difference.figure.rpartition("_")
    factor, unit, decimals = _UNITS.get(suffix, (1.0, "", 2))
    name = stem if unit else difference.figure
    share = _share(difference.difference / difference.a, "+") if difference.a else "\u2013"
    return (
        f"{name} {unit}".rstrip(),
        *(f"{value * factor:,.{decimals}f}" for value in values),
        share,
        "clear" if difference.clear else "within the spread",
    )


_UNITS = {"us": (1e-3, "ms", 3), "gbps": (1.0, "Gbit/s", 2)}
"""The factor, the unit and the decimals with which a figure is shown, by the suffix of its name."""


def _milliseconds(value_us: float) -> str:
    return _number(value_us / 1e3, "ms")


def _number(value: float, unit: str) -> str:
    return _UNKNOWN_TEXT if math.isnan(value) else f"{value:,.2f} {unit}"


def _share(value: float, sign: str = "") -> str:
    """Return a share as a percentage; `sign` is a format code, such as ``"+"``."""
    return _UNKNOWN_TEXT if math.isnan(value) else f"{value * 100:{sign}.1f} %"
