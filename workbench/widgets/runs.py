"""Runs on disk, one run, and two held against each other, as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError
from workbench.safefiles import format_bytes
from workbench.widgets.table import Table

if TYPE_CHECKING:
    from IPython.core.formatters import DisplayFormatter

    from workbench.timings.compare import Comparison, Difference
    from workbench.timings.run import Run

VERBS = ("list", "open", "compare")
_LIST_HEAD = ("name", "started", "cluster", "ranks", "iterations", "size", "state")
_NOT_KNOWN = "\u2013 (not known)"


def runs_view(verb: str, names: Sequence[str]) -> Any:
    """Return what ``%timings list``, ``open NAME`` or ``compare NAME [NAME]`` shows.

    Raises
    ------
    UsageError
        There are more or fewer names than the verb takes.
    """
    from workbench.timings.run import list_runs, open_run

    if len(names) not in {"list": (0,), "open": (1,), "compare": (1, 2)}[verb]:
        raise UsageError(
            f"%timings {' '.join((verb, *names))}: {len(names)} names given. Write %timings list, "
            "%timings open NAME, or %timings compare NAME with a second name or the cluster's run."
        )
    if verb == "list":
        return RunList(list_runs())
    first = open_run(names[0])
    if verb == "open":
        return first
    if len(names) == 2:
        return first.compare(open_run(names[1]))
    from workbench.cluster import registry

    return first.compare(registry.required().timings)


def register(formatter: DisplayFormatter) -> None:
    """Have notebooks show runs and comparisons, without loading what makes them."""
    for module, name, table in (
        ("workbench.timings.run", "Run", run_table),
        ("workbench.timings.compare", "Comparison", comparison_table),
    ):
        formatter.formatters["text/html"].for_type_by_name(module, name, _html(table))
        formatter.formatters["text/plain"].for_type_by_name(module, name, _text(table))


def _html(table: Callable[[Any], Table]) -> Callable[[Any], str]:
    return lambda shown: table(shown)._repr_html_()


def _text(table: Callable[[Any], Table]) -> Callable[[Any, Any, bool], None]:
    return lambda shown, printer, _cycle: printer.text(repr(table(shown)))


class RunList(Table):
    """The runs that are kept; `runs` are the runs themselves."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        title = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
        super().__init__(title, _LIST_HEAD, [_list_row(run) for run in runs])


def _list_row(run: Run) -> tuple[str, ...]:
    started = run.started
    return (
        run.name,
        _NOT_KNOWN if started is None else f"{started:%Y-%m-%d %H:%M:%S}",
        run.cluster,
        str(len(run.ranks)) if run.ranks else _NOT_KNOWN,
        f"{run.iterations:,}",
        format_bytes(run.size_bytes),
        run.state,
    )


def run_table(run: Run) -> Table:
    """Return what a run was, its key figures, and what of it cannot be read."""
    from workbench.timings.summary import notes

    summary = run.summary()
    vms = sorted(set(run.places().values()))
    title = f"{run.name}: cluster {run.cluster}, {run.state}, {run.iterations:,} iterations"
    if vms:
        title += f" on {len(run.ranks)} ranks ({', '.join(vms)})"
    slow = summary.slowest_rank
    figures = [
        ("iteration", _milliseconds(summary.iteration_us)),
        *((name, _milliseconds(value)) for name, value in summary.phases_us.items()),
        ("communication", _milliseconds(summary.communication_us)),
        ("exposed share", _share(summary.exposed_share)),
        ("bus bandwidth", _number(summary.busbw_gbps, "Gbit/s")),
        ("late throughout", "no rank" if slow is None else f"rank {slow}"),
    ]
    means = (
        f"Means over {summary.iterations:,} iterations and {summary.ranks} ranks; the phases add "
        "up to the iteration."
    )
    said = [means, *notes(summary), *run.problems] if summary.iterations else run.problems
    return Table(title, ("figure", "value"), figures, said)


def comparison_table(comparison: Comparison) -> Table:
    """Return a row per figure: both runs, and their difference where it is clear."""
    from workbench.timings.summary import warm_note

    a, b = comparison.names
    title = (
        f"a: {a} ({comparison.iterations[0]:,} iterations, {comparison.ranks[0]} ranks)   "
        f"b: {b} ({comparison.iterations[1]:,} iterations, {comparison.ranks[1]} ranks)"
    )
    note = "Means over iterations and ranks, with standard deviation and 95 % interval."
    head = ("figure", "a", "spread", "b", "spread", "b - a", "\u00b1", "share", "")
    left_out = [
        f"{name}: {warm_note(count)}"
        for name, count in zip("ab", comparison.left_out, strict=True)
        if count
    ]
    rows = [_compared(one) for one in comparison.differences]
    return Table(title, head, rows, [note, *left_out])


def _compared(one: Difference) -> tuple[str, ...]:
    values = (one.a, one.a_spread, one.b, one.b_spread, one.difference, one.uncertainty)
    factor, unit, decimals = _UNITS.get(one.figure.rpartition("_")[2], (1.0, "", 2))
    name = one.figure.rpartition("_")[0] if unit else one.figure
    share = _share(one.difference / one.a, "+") if one.a else "\u2013"
    return (
        f"{name} {unit}".rstrip(),
        *(f"{value * factor:,.{decimals}f}" for value in values),
        share,
        "clear" if one.clear else "within the spread",
    )


_UNITS = {"us": (1e-3, "ms", 3), "gbps": (1.0, "Gbit/s", 2)}


def _milliseconds(value_us: float) -> str:
    return _number(value_us / 1e3, "ms")


def _number(value: float, unit: str) -> str:
    return _NOT_KNOWN if math.isnan(value) else f"{value:,.2f} {unit}"


def _share(value: float, sign: str = "") -> str:
    return _NOT_KNOWN if math.isnan(value) else f"{value * 100:{sign}.1f} %"
