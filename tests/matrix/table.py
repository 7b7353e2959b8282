"""The result of each row, and the table that is published."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """# What was run where

Written by `make matrix`, which makes each environment, installs the wheel in it and runs the
checks. It is not part of CI.

"""
EXPLAINED = """
## What is run

"""


@dataclass(frozen=True)
class Outcome:
    """Result of one check: whether it passed, and what was seen or went wrong."""

    check: str
    passed: bool
    seen: str


@dataclass(frozen=True)
class Result:
    """What one row has shown.

    Attributes
    ----------
    row
        Its name.
    versions
        Of Python and of packages, as installed in the environment.
    outcomes
        One for each check, in the order in which they were run.
    not_run
        What cannot be run in this environment, and why.
    commit, date, machine
        Of the run.
    """

    row: str
    versions: dict[str, str]
    outcomes: list[Outcome]
    not_run: str = ""
    commit: str = ""
    date: str = ""
    machine: str = ""
    failed: bool = field(init=False)

    def __post_init__(self) -> None:
        passed = bool(self.outcomes) and all(outcome.passed for outcome in self.outcomes)
        object.__setattr__(self, "failed", not passed)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=2))

    @staticmethod
    def load(path: Path) -> Result:
        """Read what `save` has written."""
        data = json.loads(path.read_text())
        data.pop("failed")
        outcomes = [Outcome(**outcome) for outcome in data.pop("outcomes")]
        return Result(outcomes=outcomes, **data)


def markdown(results: list[Result], explained: dict[str, str], rows: list[str]) -> str:
    """Return the page: when and where it was made, a table, and what each check does.

    Parameters
    ----------
    results
        One for each row, in the order of the table.
    explained
        What each check does, by name.
    rows
        Names of all rows; those without a result are listed as not run.
    """
    missing = [name for name in rows if name not in {result.row for result in results}]
    failed = [result for result in results if result.failed]
    text = HEAD
    for title in ("date", "commit", "machine"):
        values = sorted({getattr(result, title) for result in results})
        text += f"- {title.capitalize()}: {', '.join(values)}\n"
    text += f"- {len(results)} environments, of which {len(failed)} failed; "
    text += f"{len(missing)} more not run\n\n"
    text += "| environment | versions | works | does not work | not run |\n|---|---|---|---|---|\n"
    for result in results:
        cells = [
            f"**{result.row}**" + (" (failed)" if result.failed else ""),
            ", ".join(f"{name} {version}" for name, version in result.versions.items()),
            _outcomes(result, passed=True),
            _outcomes(result, passed=False) or ("nothing was run" if result.failed else ""),
            result.not_run,
        ]
        text += "| " + " | ".join(map(_cell, cells)) + " |\n"
    text += "".join(f"| **{_cell(name)}** (not run) |  |  |  | everything |\n" for name in missing)
    used = [outcome.check for result in results for outcome in result.outcomes]
    lines = [f"- **{name}**: {what}\n" for name, what in explained.items() if name in used]
    return text + EXPLAINED + "".join(lines)


def _outcomes(result: Result, *, passed: bool) -> str:
    return "; ".join(
        f"{outcome.check}: {outcome.seen}"
        for outcome in result.outcomes
        if outcome.passed == passed
    )


def _cell(text: str) -> str:
    """Return text that does not end the cell or the line of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
