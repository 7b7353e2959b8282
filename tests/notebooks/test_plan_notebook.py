"""The notebook that plans a training before it runs."""

import re

import nbformat
import pytest
from tutorials import executed

from workbench.demo import NOTEBOOK, write_page

PLAN = NOTEBOOK.with_name("06-plan-before-you-train.ipynb")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The executed notebook, as text."""
    result = write_page(executed(PLAN), tmp_path_factory.mktemp("plan") / "plan.html")
    html = result.html.read_text()
    return re.sub(r"<[^>]*>", " ", html)


@pytest.mark.soak
def test_worked_examples(page):
    """BERT-Large, ImageNet-1K and GPT-3."""
    for words in ("870 ms", "725 h (30.2 days)", "ImageNet-1K: 40,000 iter", "GPT-3: 700 GB"):
        assert words in page


@pytest.mark.soak
def test_a_model_is_measured_and_placed(page):
    """Its activations, its operations, and the share of a GPU that holds it."""
    assert "per sample, measured," in page
    assert re.search(r"smallest share of the GPU: (A100-40C|MIG 7g\.40gb|A100-7-40C)", page)


@pytest.mark.soak
def test_the_calibrated_fabric_is_next_to_the_nominal_one(page):
    """Both columns of the last table have numbers."""
    assert "calibrated_s" in page
    last = page[page.rindex("calibrated_s") :]
    assert "NaN" not in last[:2000]


def test_the_notebook_is_committed_without_outputs():
    """All outputs are made by whoever runs it."""
    notebook = nbformat.read(PLAN, as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")]
