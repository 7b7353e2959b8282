"""Comparisons of figures with the truth, and the page that shows them."""

import csv
import os
import platform
import subprocess
import time
from dataclasses import dataclass

import numpy as np

from tests.truth.kinds import KINDS, NOT_CHECKED, Kind

HEAD = (
    *("figure", "where it is shown", "compared with", "comparisons"),
    *("median", "95 %", "worst", "bounds", "result"),
)
HIGH = 0.95
"""The quantile of the differences that the second bound limits."""
LOADED = (
    "- Other work: the machine had more than one busy process per core, so that a result **not "
    "met** may be due to it, and has to be repeated on a quiet machine"
)
DIFFERENT = object()
"""What is planted in the place of a figure that can only be equal or different."""


@dataclass(frozen=True)
class Row:
    """The comparisons of one kind of figure; differences in the unit of the kind."""

    kind: Kind
    differences: tuple[float, ...]

    @property
    def median(self):
        """The median difference."""
        return float(np.median(self.differences))

    @property
    def high(self):
        """The difference that all but one in twenty do not exceed; one of those that were found."""
        return float(np.quantile(self.differences, HIGH, method="higher"))

    @property
    def met(self):
        """Whether there are comparisons, and they are within both bounds."""
        if not self.differences:
            return False
        if self.kind.unit == "same":
            return self.share <= self.kind.high
        return self.median <= self.kind.median and self.high <= self.kind.high

    @property
    def share(self):
        """Of figures that can only be equal, the share of those that are not."""
        return float(np.mean(self.differences))


class Table:
    """Collects comparisons by the name of their kind.

    Parameters
    ----------
    planted
        Every shown figure is made wrong by so many times its bound, which has to be found.
    """

    def __init__(self, planted=0.0):
        self._planted = planted
        self._differences = {}
        self._pairs = []
        self.failures = {}

    def add(self, name, shown, truth):
        """Compare figures with the truth, in pairs.

        Raises
        ------
        ValueError
            There are not as many figures as truths.
        """
        kind, shown, truth = KINDS[name], list(shown), list(truth)
        found = [
            difference(kind, self._wrong(kind, one), true)
            for one, true in zip(shown, truth, strict=True)
        ]
        self._differences.setdefault(name, []).extend(found)
        self._pairs += ((name, *pair) for pair in zip(shown, truth, strict=True))

    def write_pairs(self, path):
        """Write all figures next to their truths as CSV, to find the cause of a difference."""
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("figure", "shown", "truth"), *self._pairs])

    def fail(self, group, reason):
        """Note why a group of measurements ended early."""
        self.failures[group] = reason

    def rows(self):
        """Return a row for each kind, also for those without comparisons."""
        return [Row(kind, tuple(self._differences.get(name, ()))) for name, kind in KINDS.items()]

    def _wrong(self, kind, shown):
        if not self._planted:
            return shown
        if kind.unit == "same":
            return DIFFERENT
        error = self._planted * max(kind.high, kind.median)
        return shown * (1 + error) if kind.unit == "%" else shown + error


def difference(kind, shown, truth):
    """Return by how much a figure differs from the truth; infinite if it is unknown."""
    if kind.unit == "same":
        return float(shown != truth)
    if not (np.isfinite(shown) and np.isfinite(truth)):
        return float("inf")
    if kind.unit == "%":
        if truth == 0:
            return 0.0 if shown == 0 else float("inf")
        return float(abs(shown / truth - 1))
    return float(abs(shown - truth))


def machine():
    """Return a line about this machine."""
    cores = len(os.sched_getaffinity(0))
    system = f"{platform.machine()}, {cores} cores, Linux {platform.release()}"
    return f"{system}, Python {platform.python_version()}"


def commit():
    """Return the short name of the commit, with a note on changes that are not in it."""
    name = _git("rev-parse", "--short", "HEAD") or "unknown"
    return f"{name} with changes" if _git("status", "--porcelain", "--", "workbench") else name


def _git(*arguments):
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def page(table, loads, took_s):
    """Return the page as Markdown; `loads` are the load averages before and after."""
    rows = [row for row in table.rows() if row.differences]
    missing = [row.kind for row in table.rows() if not row.differences]
    met = sum(row.met for row in rows)
    lines = [
        "# Figures against independent measurements",
        "",
        "Each kind of figure was compared with something that is not this project's code, in the",
        "same run. `make truth` measures all of this again, and writes this page.",
        "",
        f"- Date: {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, commit {commit()}",
        f"- Machine: {machine()}",
        f"- Load average: {loads[0]:.1f} before, {loads[1]:.1f} after",
        f"- Duration: {took_s / 60:.0f} minutes",
        *([LOADED] if max(loads) > len(os.sched_getaffinity(0)) else []),
        f"- Result: {met} of {len(rows)} kinds of figures are within their bounds",
        "",
        "A difference is that of one figure from its truth; of *same*, the share of the figures",
        "that are not the same. The bounds limit the median and the 95th percentile. Other work on",
        "the machine makes differences of clocks and rates larger: processes then wait for a core,",
        "also between two readings that are compared.",
        "",
        f"| {' | '.join(HEAD)} |",
        "|---|---|---|--:|--:|--:|--:|---|---|",
        *map(_line, rows),
        "",
        "## Not checked",
        "",
        "| figure | reason |",
        "|---|---|",
        *(f"| {what} | {why} |" for what, why in NOT_CHECKED.items()),
        *(f"| {kind.name} | {_reason(table, kind)} |" for kind in missing),
    ]
    return "\n".join(lines) + "\n"


def _line(row):
    kind = row.kind
    worst = max(row.differences)
    if kind.unit == "same":
        texts = ("", "", f"{row.share:.0%} differ" if row.share else "all the same")
        bounds = f"at most {kind.high:.0%} differ" if kind.high else "all the same"
    else:
        texts = tuple(_number(kind, value) for value in (row.median, row.high, worst))
        bounds = f"{_number(kind, kind.median)}, {_number(kind, kind.high)}"
    result = "met" if row.met else "**not met**"
    cells = (kind.name, kind.shown, kind.against, str(len(row.differences)), *texts, bounds, result)
    return f"| {' | '.join(cells)} |"


def _number(kind, value):
    if not np.isfinite(value):
        return "unknown"
    if kind.unit == "%":
        return f"{value:.2%}".replace("%", " %")
    return f"{value:.3g} {kind.unit}"


def _reason(table, kind):
    return table.failures.get(kind.group, "not measured in this run")
