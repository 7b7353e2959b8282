"""Every Python test belongs to exactly one of ``make test`` and ``make soak``.

The tests of ``make check`` are also some of ``make test``. All tests that pytest has collected are
examined, so the whole suite is examined when the whole suite runs.
"""

import re
from pathlib import Path

import pytest
from slow_tests import SLOW_FOLDERS

ROOT = Path(__file__).parents[1]
COMMANDS = {"check": "Makefile", "test": ".ci/python-tests", "soak": ".ci/soak"}
"""Where the pytest commands of each level are."""


@pytest.fixture
def runs(request):
    """Return a function: how many commands of each level run a test with some markers."""
    registered = [re.split("[:(]", line)[0] for line in request.config.getini("markers")]
    texts = {level: (ROOT / file).read_text() for level, file in COMMANDS.items()}
    # of a shell and of Python; each mentions this marker, as `make soak` runs what others leave out
    pattern = r'-m"?,? "([^"]*\bsoak\b[^"]*)"'
    expressions = {level: re.findall(pattern, text) for level, text in texts.items()}

    def count(markers):
        values = {name: name in markers for name in registered}
        return {
            level: sum(eval(text, {}, values) for text in of_level)
            for level, of_level in expressions.items()
        }

    return count


def test_every_test_runs_in_exactly_one_level(runs, collected_markers):
    levels = {test: runs(markers) for test, markers in collected_markers.items()}
    assert [test for test, count in levels.items() if count["test"] + count["soak"] != 1] == []
    assert [test for test, count in levels.items() if count["check"] > count["test"]] == []


@pytest.mark.parametrize(
    ("markers", "level"),
    [
        ((), "check"),
        (("slow",), "test"),
        (("browser",), "test"),
        (("timing",), "test"),
        (("soak",), "soak"),
        (("soak", "slow", "timing"), "soak"),
    ],
)
def test_the_first_level_that_runs_a_test(runs, markers, level):
    assert next(name for name, count in runs(markers).items() if count) == level


@pytest.mark.parametrize("folder", SLOW_FOLDERS)
def test_slow_folders_have_tests(folder):
    """A folder that was renamed would become part of ``make check``."""
    assert list((ROOT / "tests" / folder).rglob("test_*.py"))


def test_the_parts_of_make_soak_end_within_90_minutes():
    """Each part has its limit as the argument after its name."""
    parts = re.findall(
        r'^(?:part|tests) "[^"]+" (\d+)', (ROOT / COMMANDS["soak"]).read_text(), re.MULTILINE
    )
    assert len(parts) == 4
    assert sum(map(int, parts)) <= 90 * 60
