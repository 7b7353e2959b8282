"""What is seen in Chromium of an environment: JupyterLab, Notebook 7, JupyterHub."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from playwright.sync_api import Error, expect, sync_playwright

from tests.browser.conftest import QUIET
from tests.browser.server import free_port

from .environments import BUILD, CheckFailed, Environment

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOWEST_MS = 240_000
START_S = 600
TAB = ".jp-SideBar li[data-id='gradient-workbench-panel']"
PANEL = "#gradient-workbench-panel"
LIVE = ".jp-gw-Live-iteration .jp-gw-Live-value"
TRAINING = """%%distributed
import torch
model = torch.nn.Linear(10, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)
for _ in range(50):
    optimizer.zero_grad()
    model(torch.ones(4, 10)).sum().backward()
    optimizer.step()
"""
CELLS = ("%load_ext workbench\ncluster = %cluster start -n 2", "%timings", TRAINING)
HUB = """
c.JupyterHub.bind_url = "http://127.0.0.1:{port}/research/hub-1/"
c.JupyterHub.hub_port = {hub}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.ConfigurableHTTPProxy.command = ["{proxy}"]
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = "{password}"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.Spawner.cmd = ["{python}", "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root"]
c.Spawner.http_timeout = c.Spawner.start_timeout = 240
c.Spawner.environment = {{"JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp"}}
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/home"
"""


def panel(environment: Environment) -> str:
    """The panel in JupyterLab: figures of this machine, from the server extension."""
    with _server(environment, "jupyterlab") as (url, token), _page() as page:
        page.goto(f"{url}/lab?token={token}")
        return _see_panel(page)


def notebook_7(environment: Environment) -> str:
    """The live view in Notebook 7, while two ranks train."""
    book = nbformat.v4.new_notebook()
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    book.cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    nbformat.write(book, environment.folder / "training.ipynb")
    with _server(environment, "notebook") as (url, token), _page() as page:
        page.goto(f"{url}/notebooks/training.ipynb?token={token}")
        page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.sessionContext"
                               "?.session?.kernel?.status === 'idle'")  # fmt: skip
        page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
        expect(page.locator(LIVE)).to_have_text(re.compile(r"\d"))
    return "the live view shows the iterations of two ranks"


def jupyterhub(environment: Environment) -> str:
    """JupyterHub below a base URL, behind its proxy: log in, and see the panel, live."""
    proxy = BUILD / "npm/node_modules/.bin/configurable-http-proxy"
    if not proxy.exists():
        command = ["npm", "install", "--no-save", "--prefix", str(BUILD / "npm")]
        subprocess.run([*command, "configurable-http-proxy"], check=True, capture_output=True)
    port, password = free_port(), secrets.token_hex(8)
    (environment.folder / "home").mkdir()
    (environment.folder / "jupyterhub_config.py").write_text(HUB.format(
        port=port, hub=free_port(), api=free_port(), proxy=proxy, password=password,
        python=environment.python, folder=environment.folder,
    ))  # fmt: skip
    url = f"http://127.0.0.1:{port}/research/hub-1"
    command = [environment.python, "-m", "jupyterhub"]
    with _process(environment, command, f"{url}/hub/login"), _page() as page:
        page.goto(f"{url}/hub/login")
        page.locator("input[name=username]").fill("ann")
        page.locator("input[name=password]").fill(password)
        page.locator("input[type=submit], button[type=submit]").first.click()
        page.wait_for_url(re.compile(r"/user/ann/"))
        page.goto(f"{url}/user/ann/lab")
        seen = _see_panel(page)
        expect(page.locator(PANEL).get_by_text("live", exact=True)).to_be_visible()
    return f"{seen}, live through the proxy"


def _see_panel(page: Any) -> str:
    """Open the panel, and wait until the CPU has a figure."""
    page.locator(TAB).click()
    cpu = page.locator(PANEL).get_by_role("group", name="CPU", exact=True)
    expect(cpu.locator(".jp-gw-Figure-number")).to_have_text(re.compile(r"^\d"))
    return "the panel has the CPU's use"


@contextmanager
def _page() -> Iterator[Any]:
    """A page in Chromium, with time limits for a slow machine."""
    expect.set_options(timeout=SLOWEST_MS)
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = own if Path(own).exists() else shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        page = browser.new_page()
        page.set_default_timeout(SLOWEST_MS)
        try:
            yield page
        except (AssertionError, Error) as error:
            raise CheckFailed(" ".join(str(error).split())[:200]) from None
        finally:
            browser.close()


@contextmanager
def _server(environment: Environment, application: str) -> Iterator[tuple[str, str]]:
    """JupyterLab or Notebook of an environment: its address and its token."""
    token, port = secrets.token_hex(16), free_port()
    command = [
        *(environment.python, "-m", application, "--no-browser", "--allow-root"),
        *(f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--ServerApp.ip=127.0.0.1"),
        f"--IdentityProvider.token={token}",
        "--LabApp.expose_app_in_browser=True",
        "--JupyterNotebookApp.expose_app_in_browser=True",
    ]
    url = f"http://127.0.0.1:{port}"
    with _process(environment, command, f"{url}/login"):
        yield url, token


@contextmanager
def _process(environment: Environment, command: list[Any], url: str) -> Iterator[None]:
    """A server, from when it answers until it is no longer needed; then it ends its kernels."""
    log = environment.folder / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            list(map(str, command)), stdout=file, stderr=subprocess.STDOUT, cwd=environment.folder,
            env=environment.variables(),
        )  # fmt: skip
    try:
        _wait_for(process, url, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=30):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.5)
    raise CheckFailed(f"the server did not start: {log.read_text()[-300:]}")
