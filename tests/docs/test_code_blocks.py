"""Every code block of README.md and docs/ is executed here, or says why it is not.

A block that is not executed has ``<!-- not executed: REASON -->`` on the line above it.

All others run in a folder that has ``docs``, ``notebooks``, the snapshots ``vm.json``, ``vm1.json``
and ``vm2.json``, and the topology file ``topo.xml``. The Python blocks of a page are cells of one
notebook, where `wb` is the package and `cluster` has two ranks that have trained. Shell blocks run
in bash.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from code_blocks import Block, blocks, pages
from environments import ROOT
from levels import in_soak
from run_notebook import error_of, opened
from training_loops import MODEL, PLAIN

PYTHON = {"python", "ipython"}
SHELL = {"sh", "bash", "shell"}
DATA = {"json": json.loads, "yaml": yaml.safe_load}
NO_CODE = {"text"}

LONG = {
    "evidence-bundles",
    "explain",
    "export",
    "inspect-a-vm",
    "install",
    "measure-links",
    "overhead",
    "plan",
    "profile",
    "report-a-problem",
    "replay-and-sessions",
}
"""Pages whose blocks run for long, in `make soak` only."""
ALL = [block for page in pages() for block in blocks(page)]
EXECUTED = defaultdict(list)  # by page
for one in ALL:
    if one.reason is None and one.language in PYTHON | SHELL:
        EXECUTED[one.page].append(one)

# The exit status of a doctor that has found an error is 1.
PRELUDE = """set -euo pipefail
workbench() {
    local status=0
    command workbench "$@" || status=$?
    [ "$status" = 0 ] || [ "$status-${1:-}" = 1-doctor ]
}
"""
START_PAGE = """
for _name in [name for name in globals() if name not in _kept and not name.startswith("_")]:
    del globals()[_name]
import workbench as wb
cluster = %cluster start -n 2
"""
START_RANKS = """%%distributed
_kept = globals().get("_kept") or set(globals())
for _name in [name for name in globals() if name not in _kept and not name.startswith("_")]:
    del globals()[_name]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which blocks run."""
    folder = tmp_path_factory.mktemp("pages")
    examples = ROOT / "notebooks" / "examples"
    for name in ("docs", "notebooks"):
        (folder / name).symlink_to(ROOT / name)
    for name, example in {
        "vm.json": "vm1.json",
        "vm1.json": "vm1.json",
        "vm2.json": "vm2.json",
        "topo.xml": "vm1-topology.xml",
    }.items():
        shutil.copy(examples / example, folder / name)
    return folder


@pytest.fixture(scope="module")
def notebook(folder):
    """One notebook for all pages, with two ranks that are started again where a page stops them."""
    go = f"import os\nos.chdir({str(folder)!r})"
    with opened(go, "_kept = set(globals()) | {'_kept'}") as notebook:
        yield notebook


def start_page(notebook):
    """Clear what other pages have defined, and train."""
    for source in (START_PAGE, START_RANKS, f"%%distributed\n{MODEL}{PLAIN}"):
        assert not error_of(notebook.run(source))


def run_shell(block, folder):
    """Run a block in bash, with this environment's commands."""
    environment = dict(os.environ)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", PRELUDE + block.text], cwd=folder, env=environment, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{block} ended with status {done.returncode}:\n{done.stdout}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [in_soak(page) if page.stem in LONG else page for page in EXECUTED],
    ids=[str(page.relative_to(ROOT)) for page in EXECUTED],
)
def test_the_blocks_of_a_page_run(page, request):
    """In their order, without an error."""
    folder = request.getfixturevalue("folder")
    if any(block.language in PYTHON for block in EXECUTED[page]):
        notebook = request.getfixturevalue("notebook")
        start_page(notebook)
    for block in EXECUTED[page]:
        if block.language in SHELL:
            run_shell(block, folder)
        else:
            error = error_of(notebook.run(block.text))
            assert not error, f"{block} failed:\n{error}"


@pytest.mark.parametrize("block", ALL, ids=str)
def test_every_block_is_executed_or_says_why_not(block):
    """Each has a language; what is neither run nor parsed is marked with a reason."""
    if block.reason is not None:
        assert len(block.reason) > 3, f"{block}: the mark `not executed` has no reason"
    elif block.language in DATA:
        DATA[block.language](block.text)
    else:
        known = PYTHON | SHELL | NO_CODE
        assert block.language in known, (
            f"{block}: a block in {block.language or 'no language'} is not executed. Write "
            "<!-- not executed: REASON --> on the line above it"
        )


def test_marks_and_directives_are_recognized():
    """The mark is on the line above; a directive of MyST is no code, unless it has code."""
    text = """
<!-- not executed: needs two VMs -->
```sh
ssh vm1
```

<!-- not executed: too far above -->

```python
1
```

```{toctree}
index
```

- in a list:

  ```{code-block} python
  2
  ```
"""
    page = ROOT / "README.md"
    assert blocks(page, text) == [
        Block(page, 3, "sh", "ssh vm1\n", "needs two VMs"),
        Block(page, 9, "python", "1\n", None),
        Block(page, 19, "python", "2\n", None),
    ]


def test_a_failing_block_is_noticed(folder):
    """A shell block ends with its first failing command; a doctor that finds errors is none."""
    page = ROOT / "README.md"
    run_shell(Block(page, 1, "sh", "workbench doctor vm1.json vm2.json\n", None), folder)
    for text in ("false\ntrue\n", "workbench resources none.json\ntrue\n"):
        with pytest.raises(AssertionError, match=r"README\.md:1 ended with status"):
            run_shell(Block(page, 1, "sh", text, None), folder)


LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_relative_links_lead_to_files(name):
    """Sphinx checks those of docs/; these pages are read on the pages of the repository."""
    text = re.sub(r"```.*?```", "", (ROOT / name).read_text("utf-8"), flags=re.DOTALL)
    for found in LINK.finditer(text):
        target = found[1] or found[2]
        if not re.match(r"[a-z]+:|#", target):
            path = ROOT / target.partition("#")[0]
            assert path.exists(), f"{name}: the link to {target} leads nowhere"
