"""The panel with 16 VMs of 8 GPUs each: what it costs the page's main thread.

The panel alone in headless Chromium, with a server and a kernel of the page's own
(`labextension/test/page`), which report every VM once a second.
"""

import json
import subprocess
import tempfile
import time
from pathlib import Path

from tests.bench.bounds import NotMeasured, at_most, sized

from .view import MainThread

LABEXTENSION = Path(__file__).parents[2] / "labextension"
VMS, GPUS = 16, 8
SECONDS = sized(15, 2)
LIMIT_PERCENT = 10

# Lab's toolbar reads a theme that this page does not have; that is not measured.
_PLAIN_TOOLBAR = """
() => {
  const define = customElements.define.bind(customElements);
  customElements.define = (name, ...rest) => {
    if (!name.startsWith('jp-')) { define(name, ...rest); }
  };
}
"""
_LAYOUT = """
html, body { margin: 0; height: 100%; }
.lm-Widget { position: relative; overflow: hidden; }
.jp-gw-Panel { height: 100%; }
"""
_FILL = "() => { for (let n = 0; n < 60; n++) { window.tick(n); } }"
_RUN = "() => { let n = 60; setInterval(() => window.tick(n++), 1000); }"
_OPEN = "all => all.forEach(card => { card.open = true; })"


def measure():
    """Report the share of the main thread with all cards closed, one open, and all open."""
    from playwright.sync_api import sync_playwright

    from tests.browser.conftest import QUIET, _executable

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        found = _executable(playwright.chromium)
        if found is None:
            raise NotMeasured("there is no Chromium here")
        script = _bundle(Path(folder))
        browser = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        for title, cards in (("all closed", 0), ("one open", 1), ("all open", VMS)):
            page = _open(browser, script, cards)
            main = MainThread(page)
            time.sleep(SECONDS)
            figure = f"main thread, {VMS} VMs x {GPUS} GPUs at 1 Hz, {title}"
            yield at_most(figure, 100 * main.share(), LIMIT_PERCENT, "%")
            page.close()
        browser.close()


def _bundle(folder):
    script = folder / "panel.js"
    subprocess.run(
        [
            "node_modules/.bin/esbuild",
            "test/page/panel.ts",
            "--bundle",
            "--minify",
            "--target=es2022",
            "--loader:.svg=text",
            "--loader:.css=empty",
            "--define:process.env.NODE_ENV='production'",
            "--define:process.env={}",
            "--define:global=globalThis",
            f"--outfile={script}",
            "--log-level=error",
        ],
        cwd=LABEXTENSION,
        check=True,
    )
    return script


def _open(browser, script, cards):
    page = browser.new_page(viewport={"width": 320, "height": 1000})
    page.set_content("<!doctype html><body></body>")
    page.add_style_tag(content=_LAYOUT)
    page.add_style_tag(path=LABEXTENSION / "style/base.css")
    page.evaluate(_PLAIN_TOOLBAR)
    page.add_script_tag(path=script)
    page.evaluate("scene => { window.tick = window.start(scene); }", _scene())
    page.evaluate(_FILL)
    page.locator(".jp-gw-Card").nth(VMS - 1).wait_for()
    page.locator(".jp-gw-Card").evaluate_all(_OPEN.replace("all.for", f"all.slice(0, {cards}).for"))
    page.wait_for_timeout(1000)
    page.evaluate(_RUN)
    return page


def _scene():
    """An HGX H100 VM, sixteen times."""
    snapshot = json.loads((LABEXTENSION / "test/fixtures/hgx-h100-vm.json").read_text())
    vms = [
        {"name": f"vm{n + 1}", "local": n == 0, "snapshot": snapshot, "findings": []}
        for n in range(VMS)
    ]
    nothing = {"findings": [], "across": [], "lost": [], "cluster": None}
    return {"snapshot": snapshot, "vms": vms, **nothing}
