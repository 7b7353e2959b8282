"""The button that profiles the ranks in the middle of a cell, in a real JupyterLab."""

import re
from pathlib import Path

import pytest
import traces
from playwright.sync_api import expect

from .contrast import READABLE, contrast
from .material import ENDLESS, training_cells, write_notebook
from .pages import LONG_MS, THEMES

TRAINS = 2
"""The cell that trains."""


@pytest.fixture(scope="module")
def notebook(new_lab, server):
    path = write_notebook(server, "profile.ipynb", *training_cells(ENDLESS))
    notebook = new_lab(server).open_notebook(path)
    notebook.run_all()
    notebook.expect_running(TRAINS)
    yield notebook
    server.shut_down_kernels_of(path)


def test_button_profiles_the_running_cell(notebook, screenshots):
    """The line says what happens, then names the trace; the cell goes on."""
    page = notebook.lab.page
    line = page.locator(".jp-gw-Live-profileText").first
    button = page.get_by_role("button", name="Profile 5 s").first
    expect(button).to_be_enabled(timeout=LONG_MS)
    button.click()
    expect(line).to_contain_text("Profil", timeout=60_000)
    expect(line).to_contain_text("ui.perfetto.dev", timeout=LONG_MS)
    notebook.expect_running(TRAINS)
    (path,) = re.findall(r"/\S+\.json\.gz", line.inner_text())
    trace = traces.read(Path(path))
    traces.check_format(trace)
    assert {one["pid"] for one in trace["traceEvents"] if one["name"] == "aten::addmm"} == {0, 1}
    for theme in THEMES:
        notebook.lab.set_theme(theme)
        line.scroll_into_view_if_needed()
        page.wait_for_timeout(300)  # for the picture
        notebook.cells.nth(1).screenshot(path=screenshots / f"profile-{theme}.png")
        assert contrast(line) >= READABLE
        assert contrast(button) >= READABLE
