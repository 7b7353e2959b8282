"""The examples in docstrings run, and show what they say."""

import subprocess
import sys
from pathlib import Path

import workbench

PACKAGE = Path(workbench.__file__).parent
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
RUN = """
import doctest, importlib, sys
options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
results = {name: doctest.testmod(importlib.import_module(name), optionflags=options)
           for name in sys.argv[1:]}
print("without examples:", [name for name, result in results.items() if not result.attempted])
print(sum(result.attempted for result in results.values()), "statements")
sys.exit(any(result.failed for result in results.values()))
"""


def test_examples(tmp_path):
    """They run in one new process, in an empty folder; modules that have >>> have examples."""
    process = subprocess.run(
        [sys.executable, "-c", RUN, *MODULES],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    *_, without, statements = process.stdout.splitlines()
    assert without == "without examples: []"
    assert int(statements.split()[0]) >= 60
