"""Panel, live view and running clusters, checked by axe-core in themes and forced colours."""

import re
from pathlib import Path

import axe_playwright_python
import pytest
from levels import in_soak
from playwright.sync_api import expect

from .conftest import FILE
from .material import write_notebook
from .pages import THEMES

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()

TAB = ".jp-gw-LiveTab"
CLUSTERS = "#running-clusters"
PANEL, VIEW = "#gradient-workbench-panel", ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-gw-Live"

# One run for all parts: most of its time goes into reading the page, whatever the parts.
RUN = """
parts => axe.run(
  { include: parts.map(part => [part]) }, { iframes: false, elementRef: true }
).then(({ violations, passes }) => ({
  rules: parts.map(part => passes.filter(({ nodes }) => nodes.some(
    ({ element }) => document.querySelector(part).contains(element)
  )).length),
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


in_every_look = pytest.mark.parametrize(
    ("theme", "forced"),
    [
        pytest.param(THEMES[0], False, id="light"),
        in_soak(THEMES[1], False, id="dark"),
        in_soak(THEMES[2], False, id="high-contrast"),
        pytest.param(THEMES[0], True, id="forced"),
    ],
)
"""Every theme, and forced colours."""


MOVING = """
parts => parts.flatMap(part => [...document.querySelectorAll(`${part}, ${part} *`)])
  .filter(node => {
    const { transitionDuration, animationName } = getComputedStyle(node);
    return animationName !== 'none' || parseFloat(transitionDuration) > 0.001;
  }).map(node => node.outerHTML.slice(0, 100))
"""


@pytest.fixture
def ordinary_colours(training):
    """Forced colours end with the test."""
    yield
    training.lab.page.emulate_media(forced_colors="none")


@pytest.fixture(scope="module")
def form_lab(new_lab, server, light_kernel):
    """A page with the form that starts a cluster, and all of its options."""
    path = write_notebook(server, "form.ipynb", "%load_ext workbench")
    lab = new_lab(server)
    notebook = lab.open_notebook(server.connect(path, light_kernel))
    lab.panel.open()
    notebook.run_all()
    expect(lab.panel.start).to_be_enabled()
    for options in lab.panel.node.locator(".jp-gw-Form-more:not([open]) > summary").all():
        options.click()
    return lab


def check(page, *parts):
    """Fail with what axe-core finds in parts of a page."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE)
    result = page.evaluate(RUN, parts)
    for part, rules in zip(parts, result["rules"], strict=True):
        assert rules > 5, f"{part}: axe-core has checked nothing"
    assert not result["found"], "\n".join(result["found"])


def show(training, theme, *, forced=False):
    page = training.lab.page
    page.emulate_media(forced_colors="active" if forced else "none")
    training.lab.set_theme(theme)
    training.view.show()
    training.view.wait_for_frames()
    return page


@in_every_look
def test_no_violations_in_the_start_form(form_lab, pictures, theme, forced):
    """The form that starts a cluster, with all of its options."""
    form_lab.page.emulate_media(forced_colors="active" if forced else "none")
    form_lab.set_theme(theme)
    check(form_lab.page, PANEL)
    pictures.take(form_lab.panel.node, f"accessible-form-{name(theme, forced)}")


@in_every_look
@pytest.mark.usefixtures("ordinary_colours")
def test_no_violations(training, pictures, theme, forced):
    """Panel with cards, form and topology; live view that runs, with an explanation open.

    Then the live view in its tab, and the section of clusters that run.
    """
    page = show(training, theme, forced=forced)
    view = training.view
    view.wait_for_iterations(1)
    view.explain.click()
    expect(view.causes.first).to_be_visible()
    check(page, PANEL, VIEW)
    pictures.take(view.node, f"accessible-view-{name(theme, forced)}")
    pictures.take(training.lab.panel.node, f"accessible-panel-{name(theme, forced)}")
    view.explanation.get_by_role("button", name="Close").click()
    expect(view.explanation).to_be_hidden()

    training.lab.run_command("workbench:open-live-view", path=training.path)
    page.locator(".jp-SideBar li[data-id='jp-running-sessions']").click()
    tab = page.locator(TAB)
    expect(tab.locator(".jp-gw-Live-iteration .jp-gw-Live-value")).to_have_text(re.compile(r"\d"))
    clusters = page.get_by_role("region", name="Clusters Section")
    expect(
        clusters.locator(".jp-RunningSessions-item").filter(has_text=training.path)
    ).to_have_count(1)
    clusters.evaluate("(node, id) => { node.id = id; }", CLUSTERS[1:])
    check(page, TAB, CLUSTERS)
    pictures.take(page, f"accessible-tab-{name(theme, forced)}")
    training.lab.close_live_tab(training.path)
    training.lab.panel.open()


def name(theme, forced):
    """A word for a look, for the names of pictures."""
    return "forced" if forced else theme.split()[-1].lower()


def test_every_control_is_reached_by_keyboard(training):
    """No control is left out of the order of Tab."""
    page = show(training, THEMES[0])
    assert page.evaluate(LEFT_OUT, PANEL) == []
    assert page.evaluate(LEFT_OUT, VIEW) == []


@pytest.mark.parametrize("theme", [THEMES[0], in_soak(THEMES[1])])
def test_no_violations_after_the_end(ended_training, theme):
    """The live view of a training that has ended, with its verdict."""
    ended_training.lab.panel.open_file(FILE)
    page = show(ended_training, theme)
    expect(ended_training.view.verdict).not_to_have_text("")
    check(page, VIEW, PANEL)
