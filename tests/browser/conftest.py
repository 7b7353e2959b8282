"""A Lab and a browser for the tests of this folder, and pages in them."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from workbench.testbed import vms, why_not

from .material import ENDLESS, TRAINS, training_cells, write_notebook
from .pages import LONG_MS, SLOWEST_MS, Lab
from .pictures import Pictures
from .server import LabServer

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FILE = NOTEBOOKS / "examples/vm1-topology.xml"
"""A file that the panel opens."""

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
    """Mark the tests of this folder; put those of the shared training last, its end at the end.

    It runs during few other tests then, from which it takes a part of the cores.
    """
    for item in items:
        if is_here(item):
            item.add_marker(pytest.mark.browser)
    items.sort(key=lambda item: is_here(item) and training_order(item))


def is_here(item):
    return Path(__file__).parent in item.path.parents


def training_order(item):
    """0 without the training, 1 while it runs, 2 after its end."""
    return 2 if "ended_training" in item.fixturenames else "training" in item.fixturenames


@pytest.fixture(scope="package")
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
def open_page(browser):
    """Open pages; those of one Lab share a profile, and so a cache of what they load."""
    profiles = {}

    def page(server, width=1280, height=900):
        if server.url not in profiles:
            profiles[server.url] = browser.new_context()
            profiles[server.url].set_default_timeout(SLOWEST_MS)
        page = profiles[server.url].new_page()
        page.set_viewport_size({"width": width, "height": height})
        return Lab(page, server, secrets.token_hex(4))

    yield page
    for context in profiles.values():
        context.close()


@pytest.fixture(scope="module")
def new_lab(open_page):
    """Make pages for one file, each in a workspace of its own."""
    labs = []

    def make(server, **size):
        labs.append(open_page(server, **size))
        return labs[-1]

    yield make
    for lab in labs:
        lab.page.close()


@pytest.fixture
def lab(open_page, server):
    """A page for one test: one that stays open goes on showing the machine's load."""
    lab = open_page(server)
    yield lab
    lab.page.close()


@pytest.fixture(scope="package")
def light_kernel(server):
    """A kernel without ranks, for notebooks that need any kernel."""
    return server.start_kernel()


@pytest.fixture(scope="package")
def ranks_kernel(server):
    """A kernel for notebooks that begin with `START_RANKS`: the first one starts two ranks.

    A test leaves them ready, or stopped.
    """
    return server.start_kernel()


@pytest.fixture(scope="package")
def training_notebook(open_page, server):
    """A notebook that trains on two ranks, with its live view, and with the panel open."""
    path = write_notebook(server, "training.ipynb", *training_cells(ENDLESS))
    notebook = open_page(server).open_notebook(path)
    notebook.run_all()
    notebook.lab.panel.open()
    notebook.lab.panel.open_file(FILE)
    notebook.expect_running(TRAINS)
    yield notebook
    server.shut_down_kernels_of(path)
    notebook.lab.page.close()


@pytest.fixture
def training(training_notebook):
    """The notebook while its cell trains.

    A test leaves theme and size as it likes, the panel open, and the view following the training.
    """
    if "ready" in training_notebook.lab.panel.status.inner_text():
        training_notebook.run(TRAINS)
        training_notebook.expect_running(TRAINS)
    return training_notebook


@pytest.fixture
def ended_training(training_notebook):
    """The notebook after its cell was interrupted."""
    status = training_notebook.lab.panel.status
    if "ready" not in status.inner_text():
        training_notebook.lab.run_command("notebook:interrupt-kernel")
        expect(status).to_contain_text("ready", timeout=LONG_MS)
    return training_notebook


@pytest.fixture(scope="session")
def pictures():
    """Pictures of what tests see, where `SCREENSHOTS` names a folder for them."""
    folder = os.environ.get("SCREENSHOTS")
    return Pictures(Path(folder) if folder else None)
