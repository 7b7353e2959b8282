"""Records the moving picture of the README: the simulated session of 8 GPUs, replayed in a Lab.

``PYTHONPATH=tests/support .venv/bin/python -m tests.browser.moving_picture [FILE]`` needs Chromium
and takes a minute.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from .conftest import NOTEBOOKS, QUIET, _executable
from .material import write_notebook
from .pages import SLOWEST_MS, Lab, LiveView
from .server import LabServer

SESSION = NOTEBOOKS.parent / "docs" / "sessions" / "hgx-8gpu.gwsession"
PICTURE = NOTEBOOKS / "images" / "replay.webp"
SIZE = {"width": 1280, "height": 880}
SPEED = 3
EVERY_S = 0.5
FRAMES = 35
"""Of the replay: after 30 s of the session, one rank loads its data slowly."""
LAST_MS = 4000
QUALITY = 75


def record(lab: Lab) -> list[Image.Image]:
    """Return a picture of the page every half a second, and at last one with the explanation."""
    cells = ("%load_ext workbench", f"%timings replay {SESSION.name} --speed {SPEED}")
    shutil.copy(SESSION, lab.server.root)
    notebook = lab.open_notebook(write_notebook(lab.server, "replay.ipynb", *cells))
    lab.run_command("application:toggle-side-tabbar", side="right")
    lab.panel.open()
    notebook.run_all()
    view = LiveView(notebook)
    view.show()
    expect(lab.panel.ranks).to_have_count(8)
    show_host(lab)
    notebook.cells.nth(1).evaluate("node => node.scrollIntoView({ block: 'start' })")
    frames, began = [], time.monotonic()
    for number in range(FRAMES):
        time.sleep(max(0.0, began + number * EVERY_S - time.monotonic()))
        frames.append(picture(lab))
    view.explain.click()
    expect(view.causes.first).to_be_visible()
    return [*frames, picture(lab)]


def show_host(lab: Lab) -> None:
    """Open the card of the simulated host in place of this machine's."""
    host = lab.panel.card("hgx-1 (simulated)")
    expect(host).to_be_visible()
    own = lab.panel.node.locator(".jp-gw-Card").first
    for card, is_open in ((own, False), (host, True)):
        if (card.get_attribute("open") is not None) != is_open:
            card.locator("summary").first.click()
    host.evaluate("node => node.scrollIntoView({ block: 'start' })")
    lab.page.mouse.move(SIZE["width"] / 2, 40)  # it would select what is below it


def picture(lab: Lab) -> Image.Image:
    """Return the page as it is now."""
    return Image.open(io.BytesIO(lab.page.screenshot())).convert("RGB")


def main(path: Path) -> None:
    """Write the picture."""
    folder = Path(tempfile.mkdtemp(prefix="workbench-picture-"))
    server = LabServer(folder, shutil.copytree(NOTEBOOKS, folder / "notebooks"))
    try:
        with sync_playwright() as playwright:
            expect.set_options(timeout=SLOWEST_MS)
            found = _executable(playwright.chromium)
            browser = playwright.chromium.launch(executable_path=found, args=list(QUIET))
            page = browser.new_page(viewport=SIZE)
            page.set_default_timeout(SLOWEST_MS)
            first, *others = record(Lab(page, server, "picture"))
            browser.close()
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    shown_ms = [round(EVERY_S * 1000)] * len(others) + [LAST_MS]
    first.save(
        path, save_all=True, append_images=others, duration=shown_ms, loop=0, quality=QUALITY,
        method=4, minimize_size=True,
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
