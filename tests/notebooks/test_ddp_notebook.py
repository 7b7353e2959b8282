"""The notebook that repeats the quickstart with DistributedDataParallel."""

import re

import nbformat
import pytest
from tutorials import executed

from workbench.demo import NOTEBOOK, write_page

DDP = NOTEBOOK.with_name("05-ddp.ipynb")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The executed notebook, as text."""
    result = write_page(executed(DDP), tmp_path_factory.mktemp("ddp") / "ddp.html")
    html = result.html.read_text()
    return re.sub(r"<[^>]*>", "", html)


@pytest.mark.soak
def test_both_learn_to_read_digits(page):
    """DDP and Horovod reach over 90 %."""
    found = [float(text) for text in re.findall(r"\[ranks 0-1\] test accuracy ([\d.]+)%", page)]
    assert len(found) == 2
    assert min(found) > 90


@pytest.mark.soak
def test_it_goes_on_after_a_failure(page):
    """The error of one rank is shown, and the model is used again."""
    assert "[rank 1] ValueError: a bad batch" in page
    assert "[rank 0] freed from a collective" in page
    assert "[ranks 0-1] 2 ranks have averaged their gradients again" in page


@pytest.mark.soak
def test_both_runs_are_compared(page):
    """Their figures are shown, and the buckets of DDP."""
    assert "bucket 0" in page
    for name in ("DDP", "Horovod"):
        assert re.search(rf"{name}: an iteration takes [\d.]+ ms; for [\d.]+ ms of it", page)


def test_the_notebook_is_committed_without_outputs():
    """All outputs are made by whoever runs it."""
    page = nbformat.read(DDP, as_version=4)
    assert not [cell for cell in page.cells if cell.get("outputs")]
