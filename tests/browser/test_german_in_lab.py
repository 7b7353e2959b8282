"""The panel and the live view in a JupyterLab that is set to German."""

import re
import shutil

import pytest
from playwright.sync_api import expect

from .conftest import NOTEBOOKS
from .material import training_cells, write_notebook
from .server import LabServer

pytestmark = pytest.mark.soak  # a Lab of its own


@pytest.fixture(scope="module")
def german(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("german")
    root = shutil.copytree(NOTEBOOKS, folder / "notebooks")
    server = LabServer(folder, root, language="de_DE")
    yield server
    server.stop()


def test_panel_and_live_view(new_lab, german, pictures):
    """Both are in German, with their placeholders filled; what the kernel says stays English."""
    path = write_notebook(german, "training.ipynb", *training_cells(300))
    lab = new_lab(german)
    notebook = lab.open_notebook(path)
    lab.panel.open()
    expect(lab.panel.node.get_by_role("heading", name="Ressourcen")).to_be_visible()
    expect(lab.panel.node.get_by_role("button", name="Datei öffnen…")).to_be_visible()
    expect(lab.panel.device("Speicher")).to_be_visible()
    notebook.run_all()
    view = notebook.view
    view.show()
    expect(view.node).to_have_attribute("aria-label", "Zeiten des Trainings")
    expect(view.node.get_by_role("button", name="Erklären")).to_be_visible()
    expect(view.node.get_by_text("Phasen, ms", exact=True)).to_be_visible()
    expect(view.title).to_have_text(re.compile(r"^Iteration [\d.,]+ · neueste$"))
    expect(lab.panel.node.get_by_text(re.compile("^2 Ranks"))).to_be_visible()
    pictures.take(lab.page, "german")
    german.shut_down_kernels_of(path)
    assert lab.complaints == []
