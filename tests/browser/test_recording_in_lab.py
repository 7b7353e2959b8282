"""``%timings off`` and ``%timings overhead`` in JupyterLab: all text is seen, and readable."""

import pytest
from clusters import training
from playwright.sync_api import expect

from .contrast import READABLE, contrast
from .material import START_RANKS, write_notebook
from .pages import in_every_size

CELLS = (
    START_RANKS,
    f"%%distributed\n{training(40, 64)}",
    "%timings overhead --pairs 3",
    "%timings off",
    "%%distributed\ntrain(20)",
    "%timings",
    "%timings summary",
    "%explain",
    "%timings on",
)
OVERHEAD, SWITCH, VIEW, SUMMARY, EXPLAIN, SWITCH_ON = 2, 3, 5, 6, 7, 8
UNWRAPPED = """
(node, width) => {
  const lines = node.innerText.split('\\n');
  const text = document.createElement('span');
  Object.assign(text.style, { whiteSpace: 'pre', position: 'absolute', visibility: 'hidden' });
  node.append(text);
  const wide = lines.filter(line => { text.textContent = line; return text.offsetWidth > width });
  text.remove();
  return wide;
}
"""
"""The lines of a text that are wider than a width in pixels."""


@pytest.fixture(scope="module")
def notebook(new_lab, server, ranks_kernel):
    path = write_notebook(server, "recording.ipynb", *CELLS)
    notebook = new_lab(server).open_notebook(server.connect(path, ranks_kernel))
    notebook.wait_for_kernel()
    for cell in range(SWITCH_ON):
        notebook.run(cell)
        notebook.expect_ended(cell)
    notebook.lab.panel.open()
    yield notebook
    notebook.run(SWITCH_ON)
    notebook.expect_ended(SWITCH_ON)


@in_every_size
def test_all_text_is_seen(notebook, pictures, theme, width):
    """What is shown fits next to the panel, and has enough contrast."""
    page = notebook.lab.page
    page.set_viewport_size({"width": width, "height": 900})
    notebook.lab.set_theme(theme)
    unrecorded = dict.fromkeys((VIEW, SUMMARY, EXPLAIN), "last cell was not recorded")
    for cell, said in {OVERHEAD: "", SWITCH: "Recording is off", **unrecorded}.items():
        notebook.cells.nth(cell).scroll_into_view_if_needed()
        expect(notebook.output(cell)).to_contain_text(said)
        pictures.take(notebook.cells.nth(cell), f"recording-{cell}-{theme}-{width}")
    notebook.cells.nth(OVERHEAD).scroll_into_view_if_needed()
    said = notebook.output(OVERHEAD).locator("pre").first
    assert said.evaluate(UNWRAPPED, said.bounding_box()["width"]) == []
    table = notebook.output(OVERHEAD).locator("table")
    assert table.bounding_box()["width"] < notebook.output(OVERHEAD).bounding_box()["width"]
    cells = [*table.locator("td").all(), *table.locator("th").all()]
    assert len(cells) == 20
    assert min(map(contrast, cells)) >= READABLE
    rights = {round(cell.bounding_box()["x"] + cell.bounding_box()["width"]) for cell in cells}
    assert len(rights) == 5
    caption = notebook.output(SUMMARY).locator("caption")
    seen = notebook.output(SUMMARY).bounding_box()
    assert caption.bounding_box()["width"] < seen["width"]
    notebook.cells.nth(VIEW).scroll_into_view_if_needed()
    state = notebook.view.state
    expect(state).to_contain_text("Recording is off")
    assert state.evaluate("node => node.scrollWidth <= node.clientWidth")
    assert contrast(state) >= READABLE
