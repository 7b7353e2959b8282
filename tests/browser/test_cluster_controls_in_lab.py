"""The cluster's controls in the panel of a real JupyterLab."""

import os
import re
import signal

import psutil
import pytest
from playwright.sync_api import expect

from .material import BUSY, write_notebook
from .pages import LONG_MS


@pytest.fixture
def notebook(lab, server):
    """A notebook with a kernel that has no cluster yet."""
    path = write_notebook(server, "controls.ipynb", BUSY)
    notebook = lab.open_notebook(path)
    notebook.wait_for_kernel()
    lab.panel.open()
    yield notebook
    server.shut_down_kernels_of(path)


def button(panel, name):
    """A button of the panel by the beginning of its name."""
    return panel.node.get_by_role("button", name=re.compile(f"^{name}"))


@pytest.mark.soak
def test_a_cluster_on_vms(lab, notebook, server, machines, pictures):
    """A start from a host file; a lost rank is restarted; resize, a cell that connects, stop."""
    (server.root / "hosts.txt").write_text("vm1 slots=1\nvm2 slots=2\n")
    panel = lab.panel
    panel.node.get_by_label("Where").select_option("ssh")
    panel.start.click()
    expect(panel.node.get_by_role("alert")).to_contain_text("Name VMs and ranks")
    pictures.take_all(lab, "controls-form")
    choose_host_file(lab, panel)
    expect(panel.node.get_by_label("Hosts")).to_have_value("./hosts.txt")
    panel.node.get_by_text("More options").click()
    panel.node.get_by_label("ssh config").fill("/no/such/file")
    panel.start.click()
    expect(panel.node.get_by_role("alert")).to_contain_text("/no/such/file", timeout=LONG_MS)
    panel.node.get_by_label("ssh config").fill(str(machines.ssh_config))
    panel.start.click()
    expect(panel.status).to_contain_text("ready", timeout=LONG_MS)
    expect(panel.ranks).to_have_count(3)

    os.kill(int(panel.ranks.nth(2).locator("td").nth(2).inner_text()), signal.SIGKILL)
    restart = button(panel, "Restart 1 lost rank")
    expect(restart).to_be_enabled(timeout=LONG_MS)
    pictures.take_all(lab, "controls-lost")
    restart.click()
    expect(panel.status).to_contain_text("ready", timeout=LONG_MS)
    expect(restart).to_have_count(0)

    panel.number.fill("2")
    button(panel, "Resize").click()
    expect(panel.ranks).to_have_count(2, timeout=LONG_MS)
    expect(panel.status).to_contain_text("ready", timeout=LONG_MS)

    button(panel, "Cell").click()
    expect(notebook.cells).to_have_count(2)
    expect(notebook.cells.nth(1)).to_contain_text("%cluster start --hosts ./hosts.txt")
    lab.run_command("notebook:run-cell")
    notebook.expect_ended(1)
    expect(panel.ranks).to_have_count(2)
    pictures.take_all(lab, "controls-ready")

    panel.stop.click()
    expect(panel.status).to_contain_text("stopped", timeout=LONG_MS)
    expect(panel.node.get_by_label("Hosts")).to_have_value("./hosts.txt")
    assert lab.complaints == []


def choose_host_file(lab, panel):
    """Choose the host file in Lab's dialog."""
    panel.node.get_by_role("button", name="Choose a host file").click()
    dialog = lab.page.locator(".jp-Dialog")
    dialog.locator(".jp-DirListing-item", has_text="hosts.txt").click()
    dialog.get_by_role("button", name="Select").click()
    expect(dialog).to_have_count(0)


@pytest.mark.timeout(200)  # a calibration takes half a minute
def test_start_calibrate_and_stop(lab, notebook):
    """Ranks start from the panel without a cell; a stop ends the cell that runs on them.

    While the fabric is measured, the state says how far it is; then the result stays in the panel.
    """
    panel = lab.panel
    panel.number.fill("2")
    panel.start.click()
    expect(panel.status).to_contain_text("ready", timeout=LONG_MS)
    expect(panel.ranks).to_have_count(2)
    processes = [int(row.locator("td").nth(2).inner_text()) for row in panel.ranks.all()]
    assert all(psutil.pid_exists(pid) for pid in processes)

    button(panel, "Calibrate").click()
    expect(panel.status).to_contain_text(re.compile(r"calibrating: \d+%"), timeout=LONG_MS)
    expect(button(panel, "Resize")).to_be_disabled()
    expect(panel.status).to_contain_text("ready", timeout=LONG_MS)
    expect(panel.node.get_by_text("An allreduce on 2 ranks takes")).to_be_visible()

    notebook.run_all()
    expect(notebook.output(0)).to_contain_text("begun")
    expect(panel.status).to_contain_text("running")
    panel.stop.click()
    notebook.expect_ended(0)
    expect(notebook.output(0)).to_contain_text("the cluster was stopped")
    expect(panel.status).to_contain_text("stopped")
    assert not any(psutil.pid_exists(pid) for pid in processes)
    assert lab.complaints == []


@pytest.mark.soak
def test_the_form_of_a_bare_cluster(lab, server, pictures):
    """Without the panel, `%cluster` starts and stops ranks, and its table follows."""
    path = write_notebook(server, "bare.ipynb", "%load_ext workbench\n%cluster")
    notebook = lab.open_notebook(path)
    try:
        notebook.run_all()
        form = notebook.output(0)
        expect(form).to_contain_text("No cluster runs")
        form.get_by_label("Where").select_option("VMs over ssh")
        expect(form.get_by_label("Partition")).to_be_hidden()
        form.get_by_role("button", name="Start").click()
        expect(form.get_by_role("alert")).to_contain_text("hosts are missing", timeout=LONG_MS)
        pictures.take_all(lab, "controls-widget")
        form.get_by_label("Where").select_option("This machine")
        form.get_by_role("button", name="Start").click()
        expect(form.get_by_role("row")).to_have_count(3, timeout=LONG_MS)
        expect(form).to_contain_text("2 ranks, ready", timeout=LONG_MS)
        pictures.take_all(lab, "controls-widget-ready")
        form.get_by_role("button", name="Stop").click()
        expect(form).to_contain_text("stopped", timeout=LONG_MS)
        assert lab.complaints == []
    finally:
        server.shut_down_kernels_of(path)
