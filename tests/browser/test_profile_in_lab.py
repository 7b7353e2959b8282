"""The button that profiles the ranks in the middle of a cell, in a real JupyterLab."""

import re
from pathlib import Path

import pytest
import traces
from playwright.sync_api import expect

from .contrast import READABLE, contrast
from .material import TRAINS
from .pages import LONG_MS, THEMES


@pytest.mark.soak
def test_button_profiles_the_running_cell(training, pictures):
    """The line says what happens, then names the trace; the cell goes on."""
    page = training.lab.page
    line = page.locator(".jp-gw-Live-profileText").first
    button = page.get_by_role("button", name="Profile 5 s").first
    expect(button).to_be_enabled(timeout=LONG_MS)
    button.click()
    expect(line).to_contain_text("Profil", timeout=LONG_MS)
    expect(line).to_contain_text("ui.perfetto.dev", timeout=LONG_MS)
    training.expect_running(TRAINS)
    (path,) = re.findall(r"/\S+\.json\.gz", line.inner_text())
    trace = traces.read(Path(path))
    traces.check_format(trace)
    assert {one["pid"] for one in trace["traceEvents"] if one["name"] == "aten::addmm"} == {0, 1}
    for theme in THEMES:
        training.lab.set_theme(theme)
        line.scroll_into_view_if_needed()
        pictures.take(training.cells.nth(1), f"profile-{theme}")
        assert contrast(line) >= READABLE
        assert contrast(button) >= READABLE
