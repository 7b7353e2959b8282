"""The notebook that finds three planted problems, by the tools alone."""

import re

import nbformat
import pytest
from tutorials import executed

from workbench.demo import NOTEBOOK, write_page
from workbench.testbed import why_not

READING = NOTEBOOK.with_name("03-reading-timings.ipynb")


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return the text of the page's last section, by problem."""
    if why_not() is not None:
        pytest.skip(str(why_not()))
    result = write_page(executed(READING), tmp_path_factory.mktemp("reading") / "reading.html")
    found = re.findall(r"(?m)^the (\w+) problem: (.*)$", result.summary)
    assert len(found) == 3, result.summary
    return dict(found)


@pytest.mark.soak
@pytest.mark.timing
def test_the_slow_loader_is_found(said):
    """Eight items of 4 ms: the next batch takes as long."""
    taken = re.match(r"data loading\. the next batch takes ([\d.]+) ms", said["first"])
    assert taken
    assert 32 <= float(taken[1]) < 64


@pytest.mark.soak
@pytest.mark.timing
def test_the_slow_rank_is_found(said):
    """It is rank 1's forward, and the size of its delay is right."""
    late = re.match(
        r"waiting for rank 1\. slow compute, .*: its forward takes ([\d.]+) ms longer",
        said["second"],
    )
    assert late
    assert 36 <= float(late[1]) <= 44


@pytest.mark.soak
@pytest.mark.timing
def test_the_slow_link_is_found(said):
    """No rank is late; the fabric gave more when it was calibrated."""
    assert re.match(r"communication slower than the fabric|a slow link", said["third"])


def test_the_notebook_is_committed_without_outputs():
    """All outputs are made by whoever runs it."""
    page = nbformat.read(READING, as_version=4)
    code = [cell for cell in page.cells if cell.cell_type == "code"]
    assert not [cell for cell in code if cell.outputs or cell.execution_count]
