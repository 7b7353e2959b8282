"""`.ci/language` rejects names and phrases that a reader has to read twice."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[1] / ".ci/language"
GOOD = '''"""Reads files."""
def read(path, limit):  # Most callers read all.
    """Return the rows of a file."""
    first, last = path.split(limit)
    first, last = last, first
    return [row for row in (first, last)]
'''


def check(folder, source):
    """The exit status and the output for a folder with one file."""
    (folder / "module.py").write_text(source)
    return subprocess.run(
        [sys.executable, CHECK, folder], capture_output=True, text=True, check=False
    )


def test_a_file_without_problems(tmp_path):
    """Names that say what they are, and a swap of variables, are accepted."""
    result = check(tmp_path, GOOD)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def read(given): pass", "module.py:1: 'given' does not say what the value is"),
        ("def read():\n    return [one for one in ()]", "module.py:2: 'one' does not say"),
        ("def read():\n    a, b = 1, 2", "module.py:2: one assignment a line"),
        ("# The cure is simple.", "module.py:1: 'cure': say fix"),
        ('"""Let nobody wait."""', "module.py:1: 'Let nobody': begin with the verb"),
        ("class A: pass\nclass A: pass", "class A exists also in"),
    ],
)
def test_a_problem_is_named_with_its_line(tmp_path, source, problem):
    """The exit status is 1."""
    result = check(tmp_path, source)
    assert result.returncode == 1
    assert problem in result.stdout
