"""Makes the pictures of the README: each answers one question, in a real JupyterLab.

``PYTHONPATH=tests/support .venv/bin/python -m tests.browser.readme_pictures [FOLDER [THEME]]``
needs Chromium and takes two minutes. They show a recorded session, and a finding on an example VM.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from .conftest import NOTEBOOKS, QUIET, _executable
from .material import write_notebook
from .pages import SLOWEST_MS, Lab, LiveView, Notebook
from .server import LabServer

if TYPE_CHECKING:
    from playwright.sync_api import Locator

SESSION = NOTEBOOKS.parent / "docs" / "sessions" / "two-vms.gwsession"
VM = NOTEBOOKS / "examples" / "vm2.json"
IMAGES = NOTEBOOKS / "images"
SIZE = {"width": 1180, "height": 1150}
PIXELS = 1.5
"""Of the picture for each of the page."""
MARGIN = 4
CELLS = (
    "%load_ext workbench\nimport workbench as wb",
    f"%timings waterfall {SESSION.name} 300",
    f"%explain {SESSION.name}",
    f'wb.what_if(wb.open_run("{SESSION.name}"), gbps=10, compression="fp16")',
    f"%doctor {VM.name}",
    f"%timings replay {SESSION.name} --speed 100",
)
WATERFALL, EXPLAIN, WHAT_IF, DOCTOR = 1, 2, 3, 4


def take(lab: Lab, folder: Path, theme: str) -> None:
    """Run a notebook with the views, and write their pictures."""
    for file in (SESSION, VM):
        shutil.copy(file, lab.server.root)
    notebook = lab.open_notebook(write_notebook(lab.server, "pictures.ipynb", *CELLS))
    lab.set_theme(theme)
    lab.run_command("application:toggle-side-tabbar", side="right")
    lab.run_command("application:toggle-left-area")
    notebook.wait_for_kernel()
    for cell in range(len(CELLS)):
        notebook.run(cell)
        notebook.expect_ended(cell)
    cost(notebook, folder / "cost.png")
    write(lab, part(notebook, WATERFALL, ".js-plotly-plot").first, folder / "waiting.png")
    for cell, name in ((EXPLAIN, "explain"), (WHAT_IF, "what-if")):
        write(lab, part(notebook, cell, ".jp-RenderedHTMLCommon").first, folder / f"{name}.png")
    finding = notebook.output(DOCTOR).get_by_role("region").nth(1)
    write(lab, finding, folder / "doctor.png")


def cost(notebook: Notebook, path: Path) -> None:
    """Write the live view, from its key figures to its charts."""
    view = LiveView(notebook)
    view.show()
    expect(view.notice).to_contain_text("Rank 3 late")
    notebook.lab.page.mouse.move(5, 5)
    view.node.evaluate("node => node.scrollIntoView({ block: 'center' })")
    view.wait_for_frames()
    last = view.node.get_by_role("heading", name="Worst collectives").bounding_box()
    assert last is not None
    write(notebook.lab, view.node, path, bottom=last["y"] - MARGIN)


def part(notebook: Notebook, cell: int, selector: str) -> Locator:
    """Return what a selector finds in the output of a cell."""
    found = notebook.output(cell).locator(selector)
    found.first.evaluate("node => node.scrollIntoView({ block: 'center' })")
    return found


def write(lab: Lab, node: Locator, path: Path, bottom: float | None = None) -> None:
    """Write what a node shows, with a margin."""
    if bottom is None:
        node.evaluate("node => node.scrollIntoView({ block: 'center' })")
    expect(node).to_be_visible()
    box = node.bounding_box()
    assert box is not None
    height = box["height"] if bottom is None else bottom - box["y"]
    clip = {
        "x": box["x"] - MARGIN,
        "y": box["y"] - MARGIN,
        "width": box["width"] + 2 * MARGIN,
        "height": height + 2 * MARGIN,
    }
    picture = Image.open(io.BytesIO(lab.page.screenshot(clip=clip))).convert("RGB")
    picture.save(path, optimize=True)
    print(path, picture.size, path.stat().st_size // 1024, "KiB", flush=True)


def main(folder: Path, theme: str) -> None:
    """Write the pictures."""
    home = Path(tempfile.mkdtemp(prefix="workbench-pictures-"))
    server = LabServer(home, shutil.copytree(NOTEBOOKS, home / "notebooks"))
    try:
        with sync_playwright() as playwright:
            expect.set_options(timeout=SLOWEST_MS)
            found = _executable(playwright.chromium)
            browser = playwright.chromium.launch(executable_path=found, args=list(QUIET))
            page = browser.new_page(viewport=SIZE, device_scale_factor=PIXELS)
            page.set_default_timeout(SLOWEST_MS)
            take(Lab(page, server, "pictures"), folder, theme)
            browser.close()
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES,
        sys.argv[2] if len(sys.argv) > 2 else "JupyterLab Light",
    )
