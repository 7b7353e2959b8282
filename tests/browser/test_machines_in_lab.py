"""Machines as cards in a real JupyterLab: the cluster's VMs, and those that a file describes."""

import re

import pytest
from playwright.sync_api import expect

from .conftest import FILE, NOTEBOOKS
from .contrast import READABLE, contrast
from .material import BUSY, write_notebook
from .pages import in_every_size

SNAPSHOT = NOTEBOOKS / "examples/vm2.json"

LABS_OWN = re.compile("Error: Canceled future for kernel_info_request")
"""A message of Lab itself where a kernel is restarted in mid-cell, with or without us."""

PERCENT = re.compile(r"^\d+ %$")

TEXTS = (
    ".jp-gw-Card-name",
    ".jp-gw-Card-line",
    ".jp-gw-Node-name",
    ".jp-gw-Node-detail",
    ".jp-gw-Section-title",
    ".jp-gw-Note",
)


@pytest.fixture(scope="module")
def panel(new_lab, server):
    """The panel of a page without a notebook."""
    lab = new_lab(server).open()
    lab.panel.open()
    return lab.panel


def devices(card, kind):
    """The devices of a kind in a card's drawing, by the names that are read out."""
    return card.get_by_role("group", name=re.compile("^Topology")).get_by_role(
        "button", name=re.compile(f"^{kind}")
    )


def cpu_of(card):
    """The figure of an open card's CPU."""
    return card.get_by_role("group", name="CPU", exact=True).locator(".jp-gw-Figure-number")


def test_a_topology_file_is_drawn(panel):
    """A file's VM is a card with its devices drawn; it is closed by keyboard, the rest stays."""
    panel.open_file(FILE)
    card = panel.card(f"file: {FILE.name}")
    expect(devices(card, "GPU")).to_have_count(2)
    devices(card, "GPU").first.focus()
    expect(card.get_by_text(re.compile("PIX")).first).to_be_visible()
    panel.node.get_by_role("button", name=f"Close {FILE.name}").press("Enter")
    expect(card).to_have_count(0)
    expect(panel.device("CPU")).to_be_visible()
    assert panel.lab.complaints == []


def test_a_snapshot_of_another_vm(panel):
    """An administrator opens a user's snapshot: findings with their fix."""
    panel.open_file(SNAPSHOT)
    card = panel.card(f"file: {SNAPSHOT.name}")
    expect(devices(card, "GPU").first).to_be_visible()
    expect(card.get_by_role("list", name="Findings")).to_contain_text("licence")


def test_a_file_that_is_neither(panel, tmp_path):
    """The message names the file and what is expected; the existing cards are kept."""
    panel.open_file(FILE)
    wrong = tmp_path / "letter.txt"
    wrong.write_text("Dear administrator")
    panel.open_file(wrong)
    alert = panel.node.get_by_role("alert")
    expect(alert).to_contain_text("letter.txt")
    expect(alert).to_contain_text("workbench resources --json")
    expect(panel.card(f"file: {FILE.name}")).to_be_visible()


@pytest.fixture(scope="module")
def two_files(panel):
    """A card of each kind of file."""
    panel.open_file(FILE)
    panel.open_file(SNAPSHOT)
    return panel


@in_every_size
def test_readable(two_files, pictures, theme, width):
    """The cards and the drawing are readable in every theme: text has enough contrast."""
    lab = two_files.lab
    lab.page.set_viewport_size({"width": width, "height": 900})
    lab.set_theme(theme)
    expect(devices(two_files.card(f"file: {SNAPSHOT.name}"), "GPU").first).to_be_visible()
    name = f"machines-{theme.removeprefix('JupyterLab ').replace(' ', '-').lower()}-{width}"
    pictures.take(lab.page, name)
    for selector in TEXTS:
        for element in two_files.node.locator(selector).all():
            if element.is_visible():
                assert contrast(element) >= READABLE, (selector, element.inner_text())


def test_the_vms_of_a_cluster(new_lab, server, pictures, machines):
    """Each VM is a card that updates, also after a reload; a kernel restart removes them."""
    start = f"%cluster start --hosts {machines.hosts(1)} --ssh-config {machines.ssh_config}"
    path = write_notebook(server, "vms.ipynb", f"%load_ext workbench\n{start}", BUSY)
    lab = new_lab(server)
    notebook = lab.open_notebook(path)
    try:
        lab.panel.open()
        notebook.run_all()
        notebook.expect_running(1)
        for vm in ("vm1", "vm2"):
            expect(lab.panel.card(vm).locator(".jp-gw-Use-number")).to_have_text(PERCENT)
        with lab.expect_saved_card(is_open=True):
            lab.panel.card("vm2").locator("> summary").click()
        expect(cpu_of(lab.panel.card("vm2"))).to_have_text(re.compile(r"^\d"))
        pictures.take(lab.page, "machines-cluster")
        notebook.save()
        notebook.reload()
        expect(cpu_of(lab.panel.card("vm2"))).to_have_text(re.compile(r"^\d"))
        expect(lab.panel.card("vm1").locator(".jp-gw-Use-number")).to_have_text(PERCENT)
        lab.run_command("kernelmenu:restart")
        lab.page.get_by_role("button", name="Confirm Kernel Restart").click()
        expect(lab.panel.card("vm2")).to_have_count(0)
        expect(lab.panel.device("CPU").first).to_be_visible()
        notebook.wait_for_kernel()
        assert [text for text in lab.complaints if not LABS_OWN.match(text)] == []
    finally:
        server.shut_down_kernels_of(path)
