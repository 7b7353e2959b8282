"""Execute the notebooks of `notebooks/` into `docs/tutorials/`, each once per state of the code.

A build of the documentation executes those whose result is missing or out of date. Tests of a
notebook read what `executed` returns, which executes the notebook only if no build has done so.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat

from workbench.demo import execute
from workbench.testbed import why_not

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
TUTORIALS = ROOT / "docs" / "tutorials"
_STATE = "executed_state"
"""Key of a notebook's metadata: the digest of what its outputs were made from."""


def executed(notebook: Path) -> Any:
    """Return the notebook with its outputs, as a node of nbformat.

    Outputs that are up to date are read. Otherwise the notebook is executed, and kept for the next
    reader unless other tests run at the same time: they would change the times that it shows.
    """
    kept, state = TUTORIALS / notebook.name, _state(notebook)
    if kept.is_file():
        page = nbformat.read(kept, as_version=4)
        if page.metadata.get(_STATE) == state:
            return page
    page = execute(notebook)
    page.metadata[_STATE] = state
    if "PYTEST_XDIST_WORKER" not in os.environ:
        nbformat.write(page, kept)
    return page


def _state(notebook: Path) -> str:
    """Return a digest of the notebook, of the files next to it, and of the package's code."""
    digest = hashlib.sha256()
    code = (ROOT / "workbench").rglob("*.py")
    examples = (NOTEBOOKS / "examples").iterdir()
    for file in (notebook, *sorted(examples), *sorted(code)):
        digest.update(f"{file.relative_to(ROOT)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _build(_app: Sphinx) -> None:
    """Write all tutorials before Sphinx looks for its sources."""
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        missing = why_not() if "workbench.testbed" in notebook.read_text("utf-8") else None
        if missing is None:
            print(f"    {notebook.name}", flush=True)  # noqa: T201 - it takes a while
            executed(notebook)
        else:
            _write_without_outputs(notebook, missing)


def _write_without_outputs(notebook: Path, reason: str) -> None:
    page = nbformat.read(notebook, as_version=4)
    note = f":::{{note}}\nThis notebook was not executed in this build: {reason}\n:::"
    page.cells.insert(1, nbformat.v4.new_markdown_cell(note))
    nbformat.write(page, TUTORIALS / notebook.name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("builder-inited", _build)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
