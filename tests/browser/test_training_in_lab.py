"""What is seen of a training while its cell runs: the live view, and the panel beside it."""

import re

import pytest
from playwright.sync_api import expect

from .contrast import READABLE, contrast
from .material import ENDLESS, training_cells, write_notebook
from .pages import THEMES

TRAINS = 2
"""The cell that trains."""

VIEW_TEXTS = (
    ".gw-live-key .gw-live-value",
    ".gw-live-key .gw-live-label",
    ".gw-live-key .gw-live-unit",
    ".gw-live-title",
    ".gw-live-key-item",
    ".gw-live-table td",
    ".gw-live-table th",
    ".gw-live-state",
    ".gw-live-button:enabled",
    ".gw-live-select",
)

PANEL_TEXTS = (
    "h2",
    ".jp-gw-Heading",
    ".jp-gw-Heading-detail",
    ".jp-gw-State",
    ".jp-gw-Status-detail",
    ".jp-gw-Button:enabled",
    ".jp-gw-Ranks th",
    ".jp-gw-Ranks td",
    ".jp-gw-Card-line",
    ".jp-gw-Device-name",
    ".jp-gw-Device-size",
    ".jp-gw-Figure-number",
    ".jp-gw-Figure-unit",
)


@pytest.fixture(scope="module")
def notebook(new_lab, server):
    path = write_notebook(server, "training.ipynb", *training_cells(ENDLESS))
    notebook = new_lab(server).open_notebook(path)
    notebook.run_all()
    notebook.lab.panel.open()
    notebook.expect_running(TRAINS)
    yield notebook
    server.shut_down_kernels_of(path)


@pytest.fixture
def view(notebook):
    """The view of a training that runs, as it follows it."""
    view = notebook.view
    view.show()
    view.wait_for_iterations(1)
    yield view
    if view.follow.is_enabled():
        view.follow.click()


def test_pause_and_follow(view):
    """A paused view stands still, in every chart and figure; followed it goes on."""
    view.pause.click()
    expect(view.state).to_contain_text("paused")
    view.wait_for_frames()
    still, pixels = view.iteration, view.pixels()
    view.wait_for_frames()
    assert (view.iteration, view.pixels()) == (still, pixels)
    view.follow.click()
    view.wait_for_iterations(1)
    expect(view.pause).to_have_text("pause")
    assert view.pixels() != pixels


def test_zoom_and_reset(view):
    """A brush shows these iterations while figures go on; a double click follows again."""
    view.wait_for_iterations(50)
    expect(view.follow).to_be_disabled()
    view.brush(0.2, 0.5)
    expect(view.follow).to_be_enabled()
    view.wait_for_frames()
    zoomed = view.pixels()
    view.wait_for_iterations(5)
    assert view.pixels() == zoomed
    view.charts.first.locator(".u-over").dblclick()
    expect(view.follow).to_be_disabled()
    view.wait_for_iterations(1)
    assert view.pixels() != zoomed


def test_hover(view):
    """The iteration under the pointer is read out in figures, and the charts share a cursor."""
    view.pause.click()
    view.hover(0.25)
    expect(view.title).not_to_contain_text("latest")
    early = int(re.sub(r"\D", "", view.title.inner_text()))
    view.hover(0.75)
    expect(view.title).not_to_have_text(re.compile(rf"iteration {early:,}\b"))
    assert int(re.sub(r"\D", "", view.title.inner_text())) > early
    exposed = view.readout.locator("tr").filter(has_text="exposed").locator("td").first
    assert float(exposed.inner_text()) >= 0
    cursors = view.charts.locator(".u-cursor-x").evaluate_all(
        "all => all.map(cursor => cursor.style.transform)"
    )
    assert len(cursors) == 3
    assert len(set(cursors)) == 1


def test_keyboard(view):
    """Arrow keys read iterations in the charts, escape goes back to the latest."""
    view.pause.click()
    view.node.get_by_role("group", name="Timings over iterations").focus()
    view.node.page.keyboard.press("Home")
    expect(view.title).not_to_contain_text("latest")
    first = view.title.inner_text()
    view.node.page.keyboard.press("ArrowRight")
    expect(view.title).not_to_have_text(first)
    view.node.page.keyboard.press("Escape")
    expect(view.follow).to_be_disabled()


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [1280, 1920])
def test_readable(notebook, view, screenshots, theme, width):
    """Text of the view and of the panel stands out from what is behind it in every theme."""
    notebook.lab.page.set_viewport_size({"width": width, "height": 1000})
    notebook.lab.set_theme(theme)
    view.show()
    view.wait_for_iterations(1)
    name = f"{theme.removeprefix('JupyterLab ').lower().replace(' ', '-')}-{width}.png"
    notebook.lab.page.screenshot(path=screenshots / f"page-{name}")
    view.node.screenshot(path=screenshots / f"live-view-{name}")
    notebook.lab.panel.node.screenshot(path=screenshots / f"panel-{name}")
    for node, selectors in ((view.node, VIEW_TEXTS), (notebook.lab.panel.node, PANEL_TEXTS)):
        measured = {one: contrast(node.locator(f"{one}:visible").first) for one in selectors}
        assert {one: ratio for one, ratio in measured.items() if ratio < READABLE} == {}


def test_reload_in_mid_cell(notebook, view):
    """After a reload the view is there with its last state, and goes on before the cell ends."""
    notebook.save()
    saved = view.iteration
    notebook.lab.page.reload()
    view.show()
    view.wait_for_iterations(saved + 20 - view.iteration)
    # JupyterLab itself forgets the mark of the cell that runs; the panel does not.
    expect(notebook.lab.panel.status).to_contain_text("running")
    assert notebook.lab.complaints == []
