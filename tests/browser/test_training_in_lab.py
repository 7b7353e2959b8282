"""The live view and the panel show a training while its cell runs."""

import re

import pytest
from levels import in_soak
from playwright.sync_api import expect
from timers import eventually

from .contrast import READABLE, contrast
from .pages import THEMES, in_every_size

VIEW_TEXTS = (
    ".jp-gw-Live-keyFigures .jp-gw-Live-value",
    ".jp-gw-Live-keyFigures .jp-gw-Live-label",
    ".jp-gw-Live-keyFigures .jp-gw-Live-unit",
    ".jp-gw-Live-title",
    ".jp-gw-Live-legendItem",
    ".jp-gw-Live-table td",
    ".jp-gw-Live-table th",
    ".jp-gw-Live-state",
    ".jp-gw-Live-button:enabled",
    ".jp-gw-Live-select",
    ".jp-gw-Live-sort",
    ".jp-gw-Live-collectives .jp-gw-Live-value",
    ".jp-gw-Live-causeName",
    ".jp-gw-Live-saving",
    ".jp-gw-Live-evidence",
    ".jp-gw-Live-change",
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


@pytest.fixture
def view(training):
    """The view of a training that runs, as it follows it."""
    view = training.view
    view.show()
    view.wait_for_iterations(1)
    yield view
    if view.follow.is_enabled():
        view.follow.click()


def test_pause_and_follow(view):
    """A paused view does not change in any chart or figure; it continues when followed again."""
    view.pause.click()
    expect(view.state).to_contain_text("paused")
    view.wait_for_frames()
    still, pixels = view.iteration, view.pixels()
    view.wait_for_frames()
    assert (view.iteration, view.pixels()) == (still, pixels)
    view.follow.click()
    view.wait_for_iterations(1)
    expect(view.pause).to_have_text("Pause")
    view.wait_until_redrawn(pixels)


def test_brush_and_reset(view):
    """A brush marks iterations: all is of them, as the kernel says; a double click follows."""
    view.wait_for_iterations(50)
    expect(view.follow).to_be_disabled()
    view.brush(0.2, 0.5)
    expect(view.follow).to_be_enabled()
    # The kernel answers in mid-cell, on a subshell.
    expect(view.notice).to_have_text(re.compile(r"^Iterations .* are selected: .* describe them\."))
    first, last = view.stretch
    expect(view.title).to_have_text(f"Mean of iterations {first:,} to {last:,}")
    expect(view.node.locator(".jp-gw-Live-worst")).to_contain_text(f"to {last:,}")
    view.wait_for_frames()
    marked = view.pixels()
    view.wait_for_frames(60)
    assert view.pixels() == marked
    view.charts.first.locator(".u-over").dblclick()
    expect(view.follow).to_be_disabled()
    view.wait_for_iterations(1)
    view.wait_until_redrawn(marked)


def test_hover(view):
    """The iteration under the pointer is read out in figures, and the charts share a cursor."""
    view.pause.click()
    expect(view.state).to_contain_text("paused")
    view.wait_for_frames()
    newest = view.title.inner_text()
    view.hover(0.25)
    expect(view.title).not_to_have_text(newest)
    early = int(re.sub(r"\D", "", view.title.inner_text()))
    view.hover(0.75)
    expect(view.title).not_to_have_text(re.compile(rf"Iteration {early:,}\b"))
    assert int(re.sub(r"\D", "", view.title.inner_text())) > early
    exposed = view.readout.locator("tr").filter(has_text="exposed").locator("td").first
    assert float(exposed.inner_text()) >= 0

    def cursors():
        """Where the cursor of each chart is, as a share of the chart's width."""
        return view.charts.locator(".u-cursor-x").evaluate_all(
            """all => all.map(cursor => {
                 const [cursorAt, chart] = [cursor, cursor.parentElement]
                   .map(node => node.getBoundingClientRect());
                 return (cursorAt.left - chart.left) / chart.width;
               })"""
        )

    assert eventually(lambda: cursors() == pytest.approx([0.75] * len(cursors()), abs=0.01)), (
        cursors()
    )
    assert len(cursors()) == 5  # three of times, and two of progress: samples per second, the loss


def test_keyboard(view):
    """Arrow keys read iterations in the charts, escape goes back to the latest."""
    view.pause.click()
    expect(view.state).to_contain_text("paused")
    view.wait_for_frames()
    newest = view.title.inner_text()
    view.node.get_by_role("group", name="Timings over iterations").focus()
    view.node.page.keyboard.press("Home")
    expect(view.title).not_to_have_text(newest)
    first = view.title.inner_text()
    view.node.page.keyboard.press("ArrowRight")
    expect(view.title).not_to_have_text(first)
    view.node.page.keyboard.press("Escape")
    expect(view.follow).to_be_disabled()


def test_a_mark_by_keyboard(view):
    """Plus marks iterations around the cursor, escape leaves them, from wherever the focus is."""
    view.wait_for_iterations(5)
    view.node.get_by_role("group", name="Timings over iterations").focus()
    view.node.page.keyboard.press("+")
    expect(view.notice).to_contain_text("Iterations")
    view.node.get_by_role("button", name="Clear").focus()
    view.node.page.keyboard.press("Escape")
    expect(view.follow).to_be_disabled()


def test_the_progress_of_the_training(view):
    """Samples per second and the logged loss are small charts with their newest value."""
    progress = view.node.locator(".jp-gw-Live-progress > section:not([hidden])")
    expect(progress).to_have_count(2)
    expect(progress.nth(0)).to_contain_text(re.compile(r"Total throughput, samples/s.*\d"))
    expect(progress.nth(1)).to_contain_text(re.compile(r"loss, mean and range of ranks.*\d"))
    view.node.get_by_role("combobox", name="Rank").select_option(index=1)
    expect(progress.nth(1)).to_have_text(re.compile(r"^loss[\d.]+$"))
    view.node.get_by_role("combobox", name="Rank").select_option(index=0)


def test_the_worst_collectives(view):
    """The table sorts by keyboard, and says by what it is sorted."""
    names = view.collectives.get_by_role("rowheader")
    expect(names).to_have_count(4)  # two layers, each a weight and a bias
    size = view.collectives.get_by_role("columnheader", name="size")
    size.get_by_role("button").focus()
    view.node.page.keyboard.press("Enter")
    expect(size).to_have_attribute("aria-sort", "descending")
    expect(names.first).to_contain_text("weight")
    view.node.page.keyboard.press("Enter")
    expect(size).to_have_attribute("aria-sort", "ascending")
    expect(names.first).to_contain_text("bias")


def test_named_for_screen_readers(view):
    """Every part of the view has a role and a name in the accessibility tree."""
    tree = view.node.aria_snapshot()
    for part in (
        r'region "Timings of the training"',
        r'group "Timings over iterations. Arrow keys',
        r'img "Iteration [\d,]+ took [\d.,]+ ms, of which',
        r'table "Collectives"',
        r'columnheader "Of exposed"',
        r'button "Pause"',
        r'button "Follow"',
        r'combobox "Rank"',
        r'combobox "Iterations"',
        r'heading "Worst collectives"',
        r'table "Phases"',
        r'table "Figures"',
        r'status "Training."',
    ):
        assert re.search(part, tree), f"{part} is not in\n{tree}"
    unnamed = re.findall(r"- (?:button|combobox|img|table|group|region)(?! [\"/])", tree)
    assert unnamed == []


def test_explain_while_it_trains(view):
    """The kernel names the causes in mid-cell; the button works by keyboard and says what it is."""
    view.explain.focus()
    view.node.page.keyboard.press("Enter")
    expect(view.causes.first).to_contain_text("Change")
    expect(view.explain).to_have_attribute("aria-expanded", "true")
    expect(view.verdict).to_have_text("")  # the cell has not ended
    expect(view.explanation).to_contain_text(re.compile(r"iterations [\d,]+ to [\d,]+"))
    view.explanation.get_by_role("button", name="Close").click()
    expect(view.explanation).to_be_hidden()
    expect(view.explain).to_be_focused()


@in_every_size
def test_readable(training, view, pictures, theme, width):
    """Text of the view and of the panel has enough contrast in every theme."""
    training.lab.page.set_viewport_size({"width": width, "height": 1000})
    training.lab.set_theme(theme)
    view.show()
    view.wait_for_iterations(1)
    view.explain.click()
    expect(view.causes.first).to_be_visible()
    name = f"{theme.removeprefix('JupyterLab ').lower().replace(' ', '-')}-{width}"
    pictures.take(training.lab.page, f"page-{name}")
    pictures.take(view.node, f"live-view-{name}")
    pictures.take(training.lab.panel.node, f"panel-{name}")
    for node, selectors in ((view.node, VIEW_TEXTS), (training.lab.panel.node, PANEL_TEXTS)):
        measured = {one: contrast(node.locator(f"{one}:visible").first) for one in selectors}
        assert {one: ratio for one, ratio in measured.items() if ratio < READABLE} == {}


def test_reload_in_mid_cell(training, lab):
    """After a reload the view has its last state, and continues before the cell ends.

    The page is another one than that of the other tests: JupyterLab does not update outputs any
    more, in a page that was reloaded, that come from before.
    """
    training.save()
    saved = training.view.iteration
    notebook = lab.open_notebook(training.path)
    lab.panel.open()
    notebook.reload()
    view = notebook.view
    view.show()
    view.wait_for_iterations(saved + 20 - view.iteration)
    # A kernel hears a page that was reloaded at the cell's end only: the page answers.
    view.brush(0.2, 0.5)
    expect(view.notice).to_contain_text("from this page")
    assert len(view.stretch) == 2
    # JupyterLab itself forgets the mark of the cell that runs; the panel does not.
    expect(lab.panel.status).to_contain_text("running")
    assert lab.complaints == []


@pytest.mark.parametrize("theme", [THEMES[0], in_soak(THEMES[1])])
def test_the_verdict_after_the_end(ended_training, pictures, theme):
    """Once the cell has ended its verdict is a line of the view, and in the saved output."""
    ended_training.lab.set_theme(theme)
    view = ended_training.view
    view.show()
    text = r"^Verdict: .* per iteration \(iterations .*\), .* communication; "
    expect(view.verdict).to_have_text(re.compile(text))
    assert contrast(view.verdict) >= READABLE
    view.explain.click()
    expect(view.causes.first).to_be_visible()
    pictures.take(view.node, f"verdict-{theme.split()[-1].lower()}")

    def saved():
        outputs = [one.get("data", {}) for cell in ended_training.outputs() for one in cell]
        return any("Verdict: " in "".join(one.get("text/html", "")) for one in outputs)

    assert eventually(saved)
