"""Panel, live view and running clusters, checked by axe-core in themes and forced colours."""

import re
from pathlib import Path

import axe_playwright_python
import pytest
from playwright.sync_api import expect

from .material import ENDLESS, training_cells, write_notebook
from .pages import THEMES
from .test_machines_in_lab import FILE

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()

TAB = ".jp-gw-LiveTab"
CLUSTERS = "#running-clusters"
PANEL, VIEW = "#gradient-workbench-panel", ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-gw-Live"

RUN = """
selector => axe.run({ include: [selector] }, { iframes: false }).then(({ violations, passes }) => ({
  rules: passes.length,
  found: violations.flatMap(({ id, nodes }) => nodes.map(
    ({ html, failureSummary }) => `${id}: ${html.slice(0, 200)}: ${failureSummary}`
  ))
}))
"""

# Controls that Tab leaves out, unless arrow keys reach them from another one of their group.
LEFT_OUT = """
selector => [...document.querySelector(selector).querySelectorAll(
    'button, jp-button, select, input, summary')]
  .filter(node => node.checkVisibility() && !node.disabled && node.tabIndex < 0
    && !node.closest('.jp-Toolbar, .jp-gw-Topology')?.querySelector('[tabindex="0"]'))
  .map(node => node.outerHTML.slice(0, 200))
"""


@pytest.fixture(scope="module")
def notebook(new_lab, server):
    path = write_notebook(server, "accessible.ipynb", *training_cells(ENDLESS))
    notebook = new_lab(server).open_notebook(path)
    notebook.run_all()
    notebook.lab.panel.open()
    notebook.lab.panel.open_file(FILE)
    notebook.expect_running(2)
    yield notebook
    server.shut_down_kernels_of(path)


def check(page, *parts):
    """Fail with what axe-core finds in parts of a page."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE)
    for part in parts:
        result = page.evaluate(RUN, part)
        assert result["rules"] > 5, f"{part}: axe-core has checked nothing"
        assert not result["found"], "\n".join(result["found"])


def show(notebook, theme, *, forced):
    page = notebook.lab.page
    page.emulate_media(forced_colors="active" if forced else "none")
    notebook.lab.set_theme(theme)
    notebook.view.show()
    notebook.view.wait_for_frames()
    return page


@pytest.mark.parametrize(
    ("theme", "forced"), [*((theme, False) for theme in THEMES), (THEMES[0], True)]
)
def test_no_violations(notebook, screenshots, theme, forced):
    """Panel with cards, form and topology; live view that runs, with an explanation open."""
    page = show(notebook, theme, forced=forced)
    view = notebook.view
    view.wait_for_iterations(1)
    check(page, PANEL, VIEW)
    view.explain.click()
    expect(view.causes.first).to_be_visible()
    check(page, VIEW)
    name = "forced" if forced else theme.split()[-1].lower()
    view.node.screenshot(path=screenshots / f"accessible-view-{name}.png")
    notebook.lab.panel.node.screenshot(path=screenshots / f"accessible-panel-{name}.png")
    view.explanation.get_by_role("button", name="Close").click()


@pytest.mark.parametrize(
    ("theme", "forced"), [*((theme, False) for theme in THEMES), (THEMES[0], True)]
)
def test_no_violations_in_the_tab_and_the_running_clusters(notebook, screenshots, theme, forced):
    """The live view in its tab, and the section of clusters that run."""
    page = show(notebook, theme, forced=forced)
    notebook.lab.run_command("workbench:open-live-view", path=notebook.path)
    page.locator(".jp-SideBar li[data-id='jp-running-sessions']").click()
    tab = page.locator(TAB)
    expect(tab.locator(".jp-gw-Live-iteration .jp-gw-Live-value")).to_have_text(re.compile(r"\d"))
    clusters = page.get_by_role("region", name="Clusters Section")
    expect(clusters.locator(".jp-RunningSessions-item")).to_have_count(1)
    clusters.evaluate("(node, id) => { node.id = id; }", CLUSTERS[1:])
    check(page, TAB, CLUSTERS)
    name = "forced" if forced else theme.split()[-1].lower()
    page.screenshot(path=screenshots / f"accessible-tab-{name}.png")
    page.locator(".lm-TabBar-tab", has_text="Live: accessible.ipynb").locator(
        ".lm-TabBar-tabCloseIcon"
    ).click()
    expect(tab).to_have_count(0)
    notebook.lab.panel.open()


@pytest.mark.parametrize(
    ("theme", "forced"), [*((theme, False) for theme in THEMES), (THEMES[0], True)]
)
def test_no_violations_in_the_start_form(lab, server, screenshots, theme, forced):
    """The form that starts a cluster, with all of its options."""
    notebook = lab.open_notebook(write_notebook(server, "form.ipynb", "%load_ext workbench"))
    lab.panel.open()
    notebook.run_all()
    expect(lab.panel.start).to_be_enabled()
    lab.page.emulate_media(forced_colors="active" if forced else "none")
    lab.set_theme(theme)
    for options in lab.panel.node.locator(".jp-gw-Form-more:not([open]) > summary").all():
        options.click()
    check(lab.page, PANEL)
    name = "forced" if forced else theme.split()[-1].lower()
    lab.panel.node.screenshot(path=screenshots / f"accessible-form-{name}.png")
    server.shut_down_kernels_of("form.ipynb")


def test_every_control_is_reached_by_keyboard(notebook):
    """No control is left out of the order of Tab."""
    page = show(notebook, THEMES[0], forced=False)
    assert page.evaluate(LEFT_OUT, PANEL) == []
    assert page.evaluate(LEFT_OUT, VIEW) == []


@pytest.mark.parametrize("theme", THEMES[:2])
def test_no_violations_after_the_end(notebook, theme):
    """The live view of a training that has ended, with its verdict."""
    notebook.lab.run_command("notebook:interrupt-kernel")
    expect(notebook.lab.panel.status).to_contain_text("ready", timeout=60_000)
    page = show(notebook, theme, forced=False)
    expect(notebook.view.verdict).not_to_have_text("")
    check(page, VIEW, PANEL)
