"""`python -m tests.matrix [ROW ...]`: runs all rows or those named, and writes the table.

A row's result is kept in build/matrix/results, so that rows can be run one after another; the
table says which have not been run. `--clean` removes downloads and results first.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import replace

from .environments import BUILD, ROOT, CheckFailed, Environment
from .rows import CHECKS, ROWS, Check, Row
from .table import Outcome, Result, markdown

PAGE = ROOT / "docs/proof/matrix.md"
RESULTS = BUILD / "results"


def main() -> int:
    """Return 1 if a row failed, whether it was run now or before."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("rows", nargs="*", help="names of rows, or the start of their names")
    parser.add_argument("--clean", action="store_true")
    arguments = parser.parse_args()
    if arguments.clean:
        shutil.rmtree(BUILD, ignore_errors=True)
    else:
        shutil.rmtree(BUILD / "dist", ignore_errors=True)
    chosen = [row for row in ROWS if matches(row, arguments.rows)]
    if not chosen:
        names = ", ".join(row.name for row in ROWS)
        sys.exit(f"{' '.join(arguments.rows)}: no such row. The rows are: {names}.")
    for row in chosen:
        result = run_row(row)
        result.save(RESULTS / f"{row.name}.json")
        write_page()
        print(f"{'FAILED' if result.failed else 'passed'}  {row.name}", flush=True)
    saved = write_page()
    return 1 if any(result.failed for result in saved) else 0


def matches(row: Row, names: list[str]) -> bool:
    """Whether a row is among those named; all are where none is named."""
    return not names or any(row.name.startswith(name) for name in names)


def run_row(row: Row) -> Result:
    """Make the environment of a row, run its checks, and remove it."""
    started = Result(
        row.name, {}, [], row.not_run, _git("rev-parse", "--short", "HEAD") + _changed(),
        f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}", machine(),
    )  # fmt: skip
    folder = BUILD / "environments" / "".join(filter(str.isalnum, row.name))
    try:
        with Environment(
            folder, row.python, row.requirements, with_torch=row.with_torch, oldest=row.oldest
        ) as environment:
            versions = environment.versions()
            outcomes = [run_check(environment, name, CHECKS[name]) for name in row.checks]
    except CheckFailed as error:
        outcome = Outcome("environment", passed=False, seen=str(error))
        return replace(started, versions={"Python": row.python}, outcomes=[outcome])
    return replace(started, versions=versions, outcomes=outcomes)


def run_check(environment: Environment, name: str, check: Check) -> Outcome:
    """Run one check; what it raises is its outcome, and the next one is run."""
    print(f"  {name}", flush=True)
    try:
        seen = check(environment)
    except CheckFailed as error:
        print(f"    failed: {error}", flush=True)
        return Outcome(name, passed=False, seen=str(error))
    except Exception as error:  # noqa: BLE001 - a check that breaks has not passed
        print(f"    failed: {error!r}", flush=True)
        return Outcome(name, passed=False, seen=f"{type(error).__name__}: {error}"[:300])
    print(f"    {seen}", flush=True)
    return Outcome(name, passed=True, seen=seen)


def write_page() -> list[Result]:
    """Write the table of all rows that were run; return their results."""
    paths = [RESULTS / f"{row.name}.json" for row in ROWS]
    results = [Result.load(path) for path in paths if path.exists()]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    explained = {name: (check.__doc__ or "").strip() for name, check in CHECKS.items()}
    names = [row.name for row in ROWS]
    PAGE.write_text(markdown(results, explained, names))
    return results


def machine() -> str:
    """The machine of the run, without its name."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = platform.freedesktop_os_release()["PRETTY_NAME"]
    cores = len(os.sched_getaffinity(0))
    return f"{system}, {platform.machine()}, {cores} cores, {gib:.0f} GiB, no GPU"


def _changed() -> str:
    return " with changes" if _git("status", "--porcelain", "workbench", "pyproject.toml") else ""


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
