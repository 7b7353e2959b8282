"""A Lab and a browser for the tests of this folder, and pages in them."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from workbench.testbed import vms, why_not

from .pages import SLOWEST_MS, Lab
from .server import LabServer

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture
def machines():
    """Two VMs: network namespaces with a real sshd."""
    if why_not() is not None:
        pytest.skip(why_not())
    with vms(2) as machines:
        yield machines


# Scoped to this folder: while Playwright's loop is up, no other can run in this thread.
@pytest.fixture(scope="package")
def browser():
    with sync_playwright() as playwright:
        found = _executable(playwright.chromium)
        if found is None:
            _no_browser()
        expect.set_options(timeout=SLOWEST_MS)
        browser = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        yield browser
        browser.close()


def _executable(chromium):
    own = chromium.executable_path
    if Path(own).exists():
        return own
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def _no_browser():
    text = "No Chromium: apt-get install chromium, or .venv/bin/playwright install chromium"
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


@pytest.fixture(scope="package")
def server(browser, tmp_path_factory):
    """A JupyterLab on a copy of the example notebooks."""
    folder = tmp_path_factory.mktemp("lab")
    root = shutil.copytree(NOTEBOOKS, folder / "notebooks")
    server = LabServer(folder, root)
    yield server
    server.stop()


@pytest.fixture(scope="package")
def profile(browser):
    """Make a browser profile for each Lab; its pages share a cache of what they load."""
    profiles = {}

    def of(server):
        if server.url not in profiles:
            profiles[server.url] = browser.new_context()
            profiles[server.url].set_default_timeout(SLOWEST_MS)
        return profiles[server.url]

    yield of
    for context in profiles.values():
        context.close()


@pytest.fixture(scope="module")
def new_lab(profile):
    """Make pages, each in a workspace of its own."""
    pages = []

    def make(server, width=1280, height=900):
        page = profile(server).new_page()
        page.set_viewport_size({"width": width, "height": height})
        pages.append(page)
        return Lab(page, server, secrets.token_hex(4))

    yield make
    for page in pages:
        page.close()


@pytest.fixture
def lab(new_lab, server):
    """A page for one test: one that stays open goes on showing the machine's load."""
    lab = new_lab(server)
    yield lab
    lab.page.close()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory):
    """Where pictures of what was seen are kept: `SCREENSHOTS`, or the run's own folder."""
    named = os.environ.get("SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
