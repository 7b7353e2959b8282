"""``%timings off``, ``on`` and ``overhead``: switch recording, and measure its cost."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError
from workbench.widgets.table import Table, show_as_table

if TYPE_CHECKING:
    from IPython.core.formatters import DisplayFormatter

    from workbench.cluster import Cluster
    from workbench.timings.overhead import Added, Overhead

_HEAD = ("ms per iteration", "with recording", "without", "added", "95 % interval")


def register(formatter: DisplayFormatter) -> None:
    """Register how notebooks show the cost of recording, without importing `Overhead`."""
    show_as_table(formatter, "workbench.timings.overhead", "Overhead", overhead_table)


def overhead_table(overhead: Overhead) -> Table:
    """Return a table of the cost of recording, with a row per kind of time."""
    without_us = overhead.iteration_us
    means_us = without_us + overhead.wall.mean_us, without_us
    rows = (
        _row("duration", means_us, overhead.wall),
        _row("CPU time of a rank", overhead.cpu_us, overhead.cpu),
        _row("of this, its main thread", overhead.main_thread_us, overhead.main_thread),
    )
    return Table(overhead.title, _HEAD, rows, overhead.notes)


def _row(name: str, means_us: tuple[float, float], added: Added) -> tuple[str, ...]:
    times = (f"{us / 1e3:,.3f}" for us in means_us)
    mean, low, high = (f"{us / 1e3:+,.3f}" for us in (added.mean_us, added.low_us, added.high_us))
    return name, *times, mean, f"{low} to {high}"


def check(line: str, args: Any, cell: str | None, recording_subcommands: Collection[str]) -> None:
    """Raise `UsageError` if an argument of the line belongs to another subcommand of ``%timings``.

    `recording_subcommands` are the subcommands of this module, which accept no names.
    """
    subcommand = args.view
    measures = subcommand == "overhead"
    if cell is not None and not measures:
        raise UsageError(
            f"%%timings {line}: only overhead has a cell. Remove the cell, or write "
            "%%timings overhead."
        )
    if not measures and (args.pairs is not None or args.timeout is not None):
        raise UsageError(f"%timings {line}: --pairs and --timeout are for overhead. Remove them.")
    if args.speed is not None and subcommand != "replay":
        raise UsageError(f"%timings {line}: --speed is for replay. Remove it.")
    if subcommand in recording_subcommands and args.names:
        raise UsageError(f"%timings {line}: {subcommand} accepts no argument. Remove it.")


def switch_or_measure(cluster: Cluster, args: Any, cell: str | None) -> Overhead | None:
    """Switch recording on or off, or measure and return its cost."""
    if args.view == "overhead":
        options = {"pairs": args.pairs, "timeout": args.timeout}
        return cluster.measure_overhead(
            cell, **{option: value for option, value in options.items() if value is not None}
        )
    cluster.recording = args.view == "on"
    sys.stdout.write(
        "Recording is on from the next cell.\n"
        if cluster.recording
        else "Recording is off from the next cell. Switch it on with %timings on.\n"
    )
    return None
