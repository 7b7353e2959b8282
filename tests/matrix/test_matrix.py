"""The table of the matrix says what passed, what failed and why."""

import re
import sys

import pytest

from .__main__ import PAGE, matches, run_check, run_row
from .environments import CheckFailed, Environment
from .rows import CHECKS, ROWS, Row
from .table import Outcome, Result, markdown

PASSED = Result(
    "new Python", {"Python": "3.13.0"},
    [Outcome("import", passed=True, seen="34 names"), Outcome("demo", passed=True, seen="a | b")],
    not_run="panel: no browser", commit="abc1234", date="2026-01-02", machine="Debian, 2 cores",
)  # fmt: skip
BROKEN = Result(
    "old Python", {"Python": "3.10.1"},
    [Outcome("import", passed=True, seen="34 names"),
     Outcome("demo", passed=False, seen="exit status 1:\nno <torch>")],
    commit="abc1234", date="2026-01-02", machine="Debian, 2 cores",
)  # fmt: skip


ALL = ["new Python", "old Python", "later"]


def rows_of(text):
    """The cells of each row of the page's table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[1:]]


def test_the_table():
    """A row has its versions, what works, what does not and why, and what was not run."""
    text = markdown([PASSED, BROKEN], {"import": "All names.", "other": "Not run here."}, ALL)
    assert rows_of(text) == [
        ["**new Python**", "Python 3.13.0", "import: 34 names; demo: a \\| b", "",
         "panel: no browser"],
        ["**old Python** (failed)", "Python 3.10.1", "import: 34 names",
         "demo: exit status 1: no &lt;torch>", ""],
        ["**later** (not run)", "", "", "", "everything"],
    ]  # fmt: skip
    for fact in (
        "Date: 2026-01-02",
        "Commit: abc1234",
        "2 environments, of which 1 failed; 1 more not run",
    ):
        assert fact in text
    assert "**import**: All names." in text
    assert "Not run here" not in text


def test_a_row_without_outcomes_has_failed():
    """What was not run is not reported as working."""
    empty = Result("empty", {}, [])
    assert empty.failed
    assert rows_of(markdown([empty], {}, []))[0][3] == "nothing was run"


@pytest.mark.parametrize("result", [PASSED, BROKEN], ids=["passed", "failed"])
def test_a_result_is_read_as_it_was_saved(result, tmp_path):
    """Its outcomes decide whether it failed, not the file."""
    path = tmp_path / "folder/row.json"
    result.save(path)
    assert Result.load(path) == result
    path.write_text(path.read_text().replace('"passed": false', '"passed": true'))
    assert not Result.load(path).failed


def test_a_row_that_cannot_be_installed_has_failed():
    """No such Python on this machine: the row says so, and no check has passed."""
    result = run_row(Row("none", "3.2", ("import",)))
    assert result.failed
    assert result.outcomes == [
        Outcome("environment", passed=False, seen="Python 3.2 is not installed on this machine")
    ]


def test_a_command_that_fails_fails_its_check(tmp_path):
    """With the exit status and the end of what it said; the checks after it are run."""
    environment = Environment(tmp_path, "3.11")

    def check(environment):
        return environment.run(sys.executable, "-c", "import sys; sys.exit('it is broken')")

    def other(environment):
        return environment.run(sys.executable, "-c", "print('fine')").strip()

    failed = run_check(environment, "demo", check)
    assert failed == Outcome("demo", passed=False, seen="exit status 1: it is broken")
    assert run_check(environment, "demo", other) == Outcome("demo", passed=True, seen="fine")
    assert not run_check(environment, "demo", lambda environment: 1 / 0).passed
    with pytest.raises(CheckFailed, match="exit status 3"):
        environment.run(sys.executable, "-c", "raise SystemExit(3)")


def test_the_rows():
    """Each has a name of its own, says why it leaves something out, and runs known checks."""
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert set(row.checks) <= set(CHECKS)
        assert row.checks
        assert row.with_torch or row.not_run
        assert matches(row, [row.name])


def test_the_published_table_has_every_row():
    """The page in the repository lists each of them, as run or as not run."""
    published = {cells[0].split("**")[1] for cells in rows_of(PAGE.read_text())}
    assert published == {row.name for row in ROWS}
