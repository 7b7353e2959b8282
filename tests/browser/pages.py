"""JupyterLab as a person sees and uses it, as objects: the page, a notebook, its views."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from levels import in_soak
from playwright.sync_api import expect
from timers import FAR_S, PROCESS_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Locator, Page

    from .server import LabServer

THEMES = ("JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast")

USUAL_SIZES = {(THEMES[0], 1280), (THEMES[1], 1920)}
"""Those that `make test` uses."""

in_every_size = pytest.mark.parametrize(
    ("theme", "width"),
    [
        (pytest.param if (theme, width) in USUAL_SIZES else in_soak)(
            theme, width, id=f"{theme}-{width}"
        )
        for theme in THEMES
        for width in (1280, 1920)  # changes faster than the theme: it is cheaper
    ],
)
"""Every theme, on a small and on a large screen; `make test` has each size once."""

OURS = re.compile("workbench", re.IGNORECASE)

SLOWEST_MS = FAR_S * 1000
"""How long an expectation waits on a busy machine of two cores."""

LONG_MS = PROCESS_S * 1000
"""How long to wait for what takes several steps, such as a cell that starts ranks and trains."""


class Lab:
    """A page of JupyterLab. What it says on its console is kept in `complaints`."""

    def __init__(self, page: Page, server: LabServer, workspace: str) -> None:
        self.page = page
        self.server = server
        self.panel = Panel(self)
        self.complaints: list[str] = []
        self._base = f"{server.url}/lab/workspaces/{workspace}"
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(error.stack or str(error)))
        # "Leave the page?", asked where a notebook has unsaved changes: yes.
        page.on("dialog", lambda dialog: dialog.accept())

    def open(self) -> Lab:
        """Open it without a notebook."""
        self._goto(self._base)
        expect(self.page.locator(".jp-Launcher").first).to_be_visible()
        return self

    def open_notebook(self, path: str) -> Notebook:
        """Open it on a notebook, with that notebook's kernel where it wants one."""
        self._goto(f"{self._base}/tree/{path}")
        return Notebook(self, path)

    def expect_saved_card(self, *, is_open: bool) -> Any:
        """Wait, after the body, until JupyterLab has saved that a card is open or closed."""

        def saved(answer: Any) -> bool:
            if "/api/workspaces" not in answer.url or not answer.ok:
                return False
            data = json.loads(answer.request.post_data or "{}").get("data", {})
            return is_open in data.get("gradient-workbench:open", {}).values()

        return self.page.expect_response(saved)

    def open_notebook_without_kernel(self, path: str) -> Notebook:
        """Open a notebook for reading: no kernel is started for it."""
        self.open()
        self.run_command("docmanager:open", path=path, kernelPreference={"shouldStart": False})
        return Notebook(self, path)

    def run_command(self, command: str, **arguments: Any) -> None:
        """Ask for a command as the palette does, and do not wait until it is done."""
        self.page.evaluate(
            "([command, args]) => { void window.jupyterapp.commands.execute(command, args); }",
            [command, arguments],
        )

    def close_live_tab(self, path: str) -> None:
        """Close the tab with the live view of a notebook."""
        tab = self.page.locator(".lm-TabBar-tab", has_text=f"Live: {path}")
        tab.locator(".lm-TabBar-tabCloseIcon").click()
        expect(tab).to_have_count(0)

    def set_theme(self, theme: str) -> None:
        """Change the theme, and wait until its style sheet is applied."""
        body = self.page.locator("body")
        if body.get_attribute("data-jp-theme-name") == theme:
            return
        self.run_command("apputils:change-theme", theme=theme)
        expect(body).to_have_attribute("data-jp-theme-name", theme)
        expect(self.page.locator("#jp-main-dock-panel")).to_be_visible()
        expect(self.page.locator("#jupyterlab-splash")).to_have_count(0)

    def _goto(self, url: str) -> None:
        self.page.goto(f"{url}?token={self.server.token}")

    def _on_console(self, message: object) -> None:
        kind, text = message.type, f"{message.text} ({message.location.get('url')})"
        if kind == "error" and OURS.search(text):
            self.complaints.append(text)


class Panel:
    """The panel in the left sidebar."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.tab = lab.page.locator(".jp-SideBar li[data-id='gradient-workbench-panel']")
        self.node = lab.page.locator("#gradient-workbench-panel")
        self.status = self.node.locator(".jp-gw-Status")
        self.ranks = self.node.get_by_role("table", name="Ranks").locator("tbody tr")
        self.start = self.node.get_by_role("button", name="Start")
        self.stop = self.node.get_by_role("button", name="Stop")
        self.number = self.node.get_by_role("spinbutton", name="Ranks")

    def open(self) -> None:
        """Show it, as its command in the palette does."""
        expect(self.tab).to_have_count(1)  # its plugin is activated, and so the command exists
        self.lab.run_command("workbench:open-panel")
        expect(self.node).to_be_visible()

    def card(self, name: str) -> Locator:
        """The card of one machine, open or closed."""
        title = self.lab.page.locator(".jp-gw-Card-name").get_by_text(name, exact=True)
        return self.node.locator(".jp-gw-Card").filter(has=title)

    def open_file(self, path: Path) -> None:
        """Choose a file of this computer, and wait for what is shown of it."""
        with self.lab.page.expect_file_chooser() as chooser:
            self.node.get_by_role("button", name="Open file").click()
        chooser.value.set_files(path)
        expect(self.node.get_by_role("region", name="From files")).to_contain_text(path.name)

    def device(self, name: str) -> Locator:
        """The figures of one device of this machine."""
        return self.node.get_by_role("group", name=name, exact=True)


class Notebook:
    """A notebook in front."""

    def __init__(self, lab: Lab, path: str) -> None:
        self.lab = lab
        self.path = path
        self.node = lab.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        self.cells = self.node.locator(".jp-Notebook .jp-Cell")
        self.view = LiveView(self)
        expect(self.cells.first).to_be_visible()

    def wait_for_kernel(self) -> None:
        """Wait until it is joined to its kernel, and that is idle."""
        self.lab.page.wait_for_function(
            """() => {
                 const { isReady, session } = window.jupyterapp.shell.currentWidget.sessionContext;
                 return isReady && session?.kernel?.status === 'idle';
               }""",
            timeout=LONG_MS,
        )

    def run_all(self) -> None:
        """Run all cells, as the menu does."""
        self.wait_for_kernel()
        self.lab.run_command("notebook:run-all-cells")

    def run(self, cell: int) -> None:
        """Select a cell and run it; do not wait until it has ended."""
        self.lab.page.evaluate(
            "cell => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = cell; }",
            cell,
        )
        self.lab.run_command("notebook:run-cell")

    def save(self) -> None:
        """Save it, and wait until it is on disk."""
        self.lab.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

    def outputs(self) -> list[list[dict[str, Any]]]:
        """The outputs of each cell, as they would be saved; none for text cells."""
        cells: list[list[dict[str, Any]]] = self.lab.page.evaluate(
            """() => window.jupyterapp.shell.currentWidget.content.model.toJSON()
                 .cells.map(cell => cell.outputs ?? [])"""
        )
        return cells

    def prompt(self, cell: int) -> Locator:
        """Return the prompt of a code cell: ``[*]:`` while it runs, then its number."""
        return self.cells.nth(cell).locator(".jp-InputArea-prompt")

    def output(self, cell: int) -> Locator:
        """Return the text that is shown beneath a cell."""
        return self.cells.nth(cell).locator(".jp-Cell-outputArea")

    def expect_running(self, cell: int) -> None:
        """Wait until a cell runs; fail where it has ended.

        A cell that is queued has the same prompt: the cells before it must have ended.
        """
        expect(self.prompt(cell)).to_have_text("[*]:", timeout=LONG_MS)
        for before in range(cell):
            pending = self.prompt(before).filter(has_text="[*]:")
            expect(pending).to_have_count(0, timeout=LONG_MS)
        expect(self.prompt(cell)).to_have_text("[*]:")

    def reload(self) -> None:
        """Reload the page, and wait until the notebook is drawn again."""
        self.lab.page.reload()
        expect(self.cells.first).to_be_visible(timeout=LONG_MS)

    def expect_ended(self, cell: int) -> None:
        """Wait until a cell has run."""
        expect(self.prompt(cell)).to_have_text(re.compile(r"\[\d+\]:"), timeout=LONG_MS)


class LiveView:
    """The live view in a notebook's output, whoever draws it."""

    def __init__(self, notebook: Notebook) -> None:
        self.node = notebook.node.locator(".jp-gw-Live")
        self.keys = self.node.locator(".jp-gw-Live-keyFigures")
        self.state = self.node.locator(".jp-gw-Live-state")
        self.pause = self.node.get_by_role("button", name=re.compile("Pause|Resume"))
        self.follow = self.node.get_by_role("button", name="Follow")
        self.charts = self.node.locator(".jp-gw-Live-plot:visible")
        self.title = self.node.locator(".jp-gw-Live-single .jp-gw-Live-title")
        self.readout = self.node.locator(".jp-gw-Live-readout")
        self.notice = self.node.locator(".jp-gw-Live-statusLine")
        self.collectives = self.node.get_by_role("table", name="Collectives")
        self.verdict = self.node.locator(".jp-gw-Live-verdictText")
        self.explain = self.node.get_by_role("button", name="Explain")
        self.explanation = self.node.get_by_role("region", name="Explanation")
        self.causes = self.explanation.get_by_role("listitem")
        self._page = notebook.lab.page
        self._iteration = self.node.locator(".jp-gw-Live-iteration .jp-gw-Live-value")

    def show(self) -> None:
        """Scroll to it: it draws only what can be seen."""
        expect(self.keys).to_be_visible(timeout=LONG_MS)
        self.node.evaluate("node => node.scrollIntoView({ block: 'center' })")
        expect(self._iteration).to_have_text(re.compile(r"\d"))

    @property
    def iteration(self) -> int:
        """The newest iteration, as the line of key figures says it."""
        return self.stretch[-1]

    @property
    def stretch(self) -> list[int]:
        """Return the iterations of the key figures: the newest, or the ends of a selection."""
        return [int(text) for text in self._iteration.inner_text().replace(",", "").split("\u2013")]

    def pixels(self) -> list[str]:
        """Return the picture of every chart that is shown, as data URLs."""
        pictures: list[str] = self.node.locator("canvas:visible").evaluate_all(
            "all => all.map(canvas => canvas.toDataURL())"
        )
        return pictures

    def wait_until_redrawn(self, before: list[str]) -> None:
        """Wait until every chart shows another picture: figures change before charts are drawn."""
        assert eventually(
            lambda: all(old != new for old, new in zip(before, self.pixels(), strict=True)),
        ), "some charts were not redrawn"

    def wait_for_iterations(self, more: int) -> None:
        """Wait until the view has gone on by so many iterations."""
        self._page.wait_for_function(
            """([node, least]) =>
                 Number(node.textContent.replaceAll(',', '')) >= least""",
            arg=[self._iteration.element_handle(), self.iteration + more],
        )

    def wait_for_frames(self, frames: int = 30) -> None:
        """Let so many animation frames pass: what was asked to be drawn is drawn."""
        self._page.evaluate(
            """frames => new Promise(done => {
                 const next = left => left ? requestAnimationFrame(() => next(left - 1)) : done();
                 next(frames);
               })""",
            frames,
        )

    def brush(self, start: float, end: float) -> None:
        """Drag over the chart of phases, from one part of its width to another."""
        over = self.charts.first.locator(".u-over")
        box = over.bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 2
        mouse = self._page.mouse
        mouse.move(box["x"] + start * box["width"], middle)
        mouse.down()
        mouse.move(box["x"] + end * box["width"], middle, steps=8)
        mouse.up()

    def hover(self, part: float) -> None:
        """Point at the chart of phases, at a part of its width."""
        over = self.charts.first.locator(".u-over")
        box = over.bounding_box()
        assert box is not None
        over.hover(position={"x": part * box["width"], "y": box["height"] / 2})
