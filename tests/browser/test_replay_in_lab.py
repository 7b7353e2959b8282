"""A recorded session in a real JupyterLab: in the notebook's live view and in the sidebar."""

import re

from playwright.sync_api import expect

from .conftest import NOTEBOOKS
from .material import write_notebook
from .pages import LiveView

SESSION = NOTEBOOKS.parent / "docs" / "sessions" / "hgx-8gpu.gwsession"


def test_a_session_plays_in_the_view_and_the_panel(lab, server, light_kernel, pictures):
    """Both show the simulated host and say so; it pauses and ends with buttons."""
    cells = ("%load_ext workbench", f"%timings replay '{SESSION}' --speed 0.5")
    path = write_notebook(server, "replay.ipynb", *cells)
    notebook = lab.open_notebook(server.connect(path, light_kernel))
    lab.panel.open()
    notebook.run_all()
    view = LiveView(notebook)
    view.show()
    expect(lab.panel.status).to_contain_text("simulated")
    expect(lab.panel.ranks).to_have_count(8)
    card = lab.panel.card("hgx-1 (simulated)")
    expect(card).to_be_visible()
    if card.get_attribute("open") is None:
        card.locator("summary").first.click()
    drawing = card.get_by_role("group", name=re.compile("^Topology"))
    expect(drawing.get_by_role("button", name=re.compile("^GPU"))).to_have_count(8)
    expect(notebook.node.get_by_text("hgx-8gpu (simulated)").first).to_be_visible()
    pause = notebook.node.get_by_role("button", name=re.compile("Pause$")).first
    pictures.take(lab.page, "replay-playing")
    pause.click()
    play = notebook.node.get_by_role("button", name=re.compile("Play$"))
    expect(play).to_be_visible()
    expect(
        notebook.node.get_by_text(re.compile(r"\d\d:\d\d of 0\d:\d\d, paused")).first
    ).to_be_visible()
    pictures.take(lab.page, "replay-paused")
    notebook.node.get_by_role("button", name=re.compile("Close$")).click()
    expect(play).to_be_disabled()
    expect(card).to_have_count(0)
