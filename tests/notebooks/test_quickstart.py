"""The quickstart notebook, run as `make demo` runs it."""

import json
import re
import sys

import nbformat
import pytest
from tutorials import executed

from workbench.demo import NOTEBOOK, run_demo, write_page
from workbench.errors import CellError, UsageError


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return write_page(executed(NOTEBOOK), tmp_path_factory.mktemp("demo") / "quickstart.html")


def test_it_learns_to_read_digits(result):
    """Both ranks reach over 95 % on the held-out scans."""
    accuracy = float(re.search(r"\[ranks 0-1\] test accuracy ([\d.]+)%", result.summary)[1])
    assert accuracy > 95


def test_it_ends_in_the_cost_of_communication(result):
    """The summary has a row per rank, and says how long, how much exposed, how fast."""
    rows = re.findall(r"^ *rank ([01]) +((?:[\d.]+ +){12}[\d.]+)$", result.summary, re.MULTILINE)
    assert [rank for rank, _ in rows] == ["0", "1"]
    for _, figures in rows:
        iteration, *phases = [float(word) for word in figures.split()][:7]
        assert sum(phases) == pytest.approx(iteration, abs=0.04)
    assert "Mean of iterations 1 to 329" in result.summary
    assert re.search(r"An iteration takes [\d.]+ ms", result.summary)
    assert re.search(r"at [\d.]+ Gbit/s bus bandwidth, 1.20 MB in 6 tensors", result.summary)


def test_the_page_shows_the_last_state(result):
    """The converted notebook has the view's picture and its table, without a kernel."""
    page = result.html.read_text()
    assert "<svg" in page
    assert re.search(r"<th[^>]*>backward</th>", page)
    assert "Loading widget" not in page


def test_a_notebook_is_run(tmp_path):
    """Its page is written into a new folder; the summary is the text of the tagged cells."""
    cells = [nbformat.v4.new_code_cell(f"print({words!r})") for words in ("unseen", "learned")]
    cells[1].metadata["tags"] = ["train"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "small.ipynb")
    result = run_demo(tmp_path / "new" / "small.html", tmp_path / "small.ipynb")
    assert result.summary == "learned"
    assert result.html == tmp_path / "new" / "small.html"
    assert "unseen" in result.html.read_text()


def test_a_notebook_that_is_not_there(tmp_path):
    """A missing notebook is an error that says what to do."""
    with pytest.raises(UsageError, match="--notebook"):
        run_demo(tmp_path / "x.html", tmp_path / "none.ipynb")


def test_a_notebook_that_fails(tmp_path):
    """A failing cell is named with its error."""
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1/0")])
    nbformat.write(page, tmp_path / "bad.ipynb")
    with pytest.raises(CellError, match="ZeroDivisionError"):
        run_demo(tmp_path / "x.html", tmp_path / "bad.ipynb")


def test_a_kernel_whose_ports_are_taken_is_started_again(tmp_path, monkeypatch):
    """jupyter_client chooses ports that another process may take before the kernel does."""
    first = tmp_path / "first"
    program = f"""
import pathlib, runpy, sys
if not pathlib.Path({str(first)!r}).exists():
    pathlib.Path({str(first)!r}).touch()
    sys.exit("Address already in use")
runpy.run_module("ipykernel_launcher", run_name="__main__")
"""
    spec = {"argv": [sys.executable, "-c", program, "-f", "{connection_file}"], "display_name": "x"}
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    cell = nbformat.v4.new_code_cell("print('ran')")
    cell.metadata["tags"] = ["train"]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "small.ipynb")
    assert run_demo(tmp_path / "small.html", tmp_path / "small.ipynb").summary == "ran"
    assert first.exists()


def test_the_notebook_is_committed_without_outputs():
    """All outputs are made by whoever runs it."""
    page = nbformat.read(NOTEBOOK, as_version=4)
    assert not [cell for cell in page.cells if cell.get("outputs")]
