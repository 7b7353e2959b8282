"""The live view where JupyterLab has nothing of ours: a widget like any other."""

import shutil

import pytest
from playwright.sync_api import expect

from .material import ENDLESS, training_cells, write_notebook
from .server import LabServer

pytestmark = pytest.mark.soak  # a Lab of its own


@pytest.fixture
def plain_server(browser, tmp_path):
    (tmp_path / "notebooks").mkdir()
    server = LabServer(tmp_path, tmp_path / "notebooks", disabled=("gradient-workbench",))
    yield server
    server.stop()
    shutil.rmtree(tmp_path)


def test_the_widget_moves_while_a_cell_runs(new_lab, plain_server):
    """Without our renderer the same view is drawn by anywidget, and as lively."""
    path = write_notebook(plain_server, "training.ipynb", *training_cells(ENDLESS))
    lab = new_lab(plain_server)
    notebook = lab.open_notebook(path)
    notebook.run_all()
    notebook.expect_running(2)
    notebook.view.show()
    expect(lab.panel.tab).to_have_count(0)
    expect(notebook.node.locator(".jp-gw-Live-output")).to_have_count(0)
    before = notebook.view.pixels()
    notebook.view.wait_for_iterations(20)
    notebook.view.wait_until_redrawn(before)
    notebook.expect_running(2)
    assert lab.complaints == []
