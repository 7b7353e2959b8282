"""Many devices, kernels, and files that are too much, in a real JupyterLab."""

import json
import re

import pytest
from large_snapshots import large
from playwright.sync_api import expect
from timers import eventually

from .conftest import NOTEBOOKS
from .contrast import READABLE, contrast
from .pages import THEMES

TOPOLOGY = NOTEBOOKS / "examples/vm1-topology.xml"
MOST_ELEMENTS = 5_000
"""Of a card: all 256 GPUs would be several times as many, and block the page for seconds."""


@pytest.fixture
def panel(lab):
    lab.open()
    lab.panel.open()
    return lab.panel


def written(folder, gpus):
    file = folder / f"{gpus}-gpus.json"
    file.write_text(json.dumps(large(gpus)))
    return file


def test_the_most_that_a_file_may_contain(panel, lab, tmp_path):
    """256 GPUs leave the page free; the first are listed and drawn, more by keyboard."""
    file = written(tmp_path, 256)
    panel.open_file(file)
    card = panel.card(f"file: {file.name}")
    more = card.get_by_role("button", name="240 more GPUs: show 16")
    expect(more).to_be_visible()
    drawing = card.get_by_role("group", name=re.compile("^Topology"))
    expect(drawing.get_by_role("button", name=re.compile("^GPU"))).to_have_count(56)
    expect(drawing.get_by_role("button", name="200 more GPUs and NICs: show 64")).to_be_visible()
    assert card.locator("*").count() < MOST_ELEMENTS
    more.focus()
    lab.page.keyboard.press("Enter")
    expect(card.locator(".jp-gw-Device[aria-label^=GPU]")).to_have_count(32)
    expect(card.get_by_role("button", name="224 more GPUs: show 16")).to_be_focused()
    assert lab.complaints == []


def test_more_than_a_file_may_contain(panel, tmp_path):
    """The panel shows how many there are and how many are read, and continues."""
    file = written(tmp_path, 600)
    panel.open_file(file)
    failure = panel.node.get_by_role("alert")
    expect(failure).to_contain_text("gpus: 600 entries. At most 256 are read")
    panel.open_file(TOPOLOGY)
    expect(panel.card(f"file: {TOPOLOGY.name}")).to_be_visible()


def idle(group):
    """How many kernels the row says are idle."""
    return int(group.inner_text().split()[-3])


def test_idle_kernels_are_one_row(panel, lab, server, new_lab, screenshots):
    """Kernels without a name of their own are counted; their rows come by keyboard."""
    kernels = [server._request("POST", "api/kernels")["id"] for _ in range(4)]
    try:
        table = panel.node.get_by_role("table", name="Processes and what they use")
        group = table.get_by_role("button", name=re.compile(r"\d+ idle kernels$"))
        # Other tests may run kernels on this machine meanwhile.
        assert eventually(lambda: idle(group) >= 4)
        names = table.locator(".jp-gw-Group .jp-gw-Table-name")
        expect(names).to_have_count(0)
        group.focus()
        lab.page.keyboard.press("Enter")
        expect(group).to_have_attribute("aria-expanded", "true")
        assert eventually(lambda: names.count() >= 4 and names.count() == idle(group))
        panel.open_file(TOPOLOGY)
        for width in (1280, 1920):
            lab.page.set_viewport_size({"width": width, "height": 1000})
            for theme in THEMES[:2]:
                lab.set_theme(theme)
                panel.open()
                assert contrast(group) >= READABLE
                group.scroll_into_view_if_needed()
                word = theme.rpartition(" ")[2].lower()
                lab.page.screenshot(path=screenshots / f"idle-kernels-{word}-{width}.png")
                panel.card(f"file: {TOPOLOGY.name}").scroll_into_view_if_needed()
                lab.page.screenshot(path=screenshots / f"topology-file-{word}-{width}.png")
    finally:
        for kernel in kernels:
            server._request("DELETE", f"api/kernels/{kernel}")


def test_many_devices_in_pictures(panel, lab, tmp_path, screenshots):
    """256 GPUs are shown in both themes, and the button can be read."""
    file = written(tmp_path, 256)
    panel.open_file(file)
    more = panel.card(f"file: {file.name}").get_by_role("button", name=re.compile("more GPUs:"))
    for width in (1280, 1920):
        lab.page.set_viewport_size({"width": width, "height": 1000})
        for theme in THEMES[:2]:
            lab.set_theme(theme)
            panel.open()
            more.scroll_into_view_if_needed()
            assert contrast(more) >= READABLE
            word = theme.rpartition(" ")[2].lower()
            lab.page.screenshot(path=screenshots / f"many-{word}-{width}.png")
