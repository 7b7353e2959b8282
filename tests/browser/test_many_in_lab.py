"""Many devices, kernels, and files that are too much, in a real JupyterLab."""

import json
import re

import pytest
from large_snapshots import large
from playwright.sync_api import expect
from timers import eventually

from .conftest import FILE as TOPOLOGY
from .contrast import READABLE, contrast
from .pages import THEMES, in_every_size

IDLE = 2
"""Kernels that the test starts."""
MAX_ELEMENTS = 5_000
"""Of a card: all 256 GPUs would be several times as many, and block the page for seconds."""


@pytest.fixture(scope="module")
def panel(new_lab, server):
    """The panel of a page without a notebook."""
    lab = new_lab(server).open()
    lab.panel.open()
    return lab.panel


def written(folder, gpus):
    file = folder / f"{gpus}-gpus.json"
    file.write_text(json.dumps(large(gpus)))
    return file


@pytest.fixture(scope="module")
def largest(panel, tmp_path_factory):
    """The card of a file with as many GPUs as it may contain."""
    file = written(tmp_path_factory.mktemp("largest"), 256)
    panel.open_file(file)
    return panel.card(f"file: {file.name}")


@pytest.mark.soak
@in_every_size
def test_the_button_for_more_is_readable(panel, largest, pictures, theme, width):
    """The button that shows more of 256 GPUs."""
    more = largest.get_by_role("button", name=re.compile("more GPUs:"))
    panel.lab.page.set_viewport_size({"width": width, "height": 1000})
    panel.lab.set_theme(theme)
    more.scroll_into_view_if_needed()
    assert contrast(more) >= READABLE
    pictures.take(panel.lab.page, f"many-{theme.split()[-1].lower()}-{width}")


def test_the_most_that_a_file_may_contain(panel, largest):
    """256 GPUs leave the page free; the first are listed and drawn, more by keyboard."""
    card, lab = largest, panel.lab
    more = card.get_by_role("button", name="240 more GPUs: show 16")
    expect(more).to_be_visible()
    drawing = card.get_by_role("group", name=re.compile("^Topology"))
    expect(drawing.get_by_role("button", name=re.compile("^GPU"))).to_have_count(56)
    expect(drawing.get_by_role("button", name="200 more GPUs and NICs: show 64")).to_be_visible()
    assert card.locator("*").count() < MAX_ELEMENTS
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


@pytest.mark.soak
def test_idle_kernels_are_one_row(lab, server, pictures):
    """Kernels without a name of their own are counted; their rows come by keyboard."""
    lab.open()
    lab.panel.open()
    panel = lab.panel
    kernels = [server.start_kernel() for _ in range(IDLE)]
    try:
        table = panel.node.get_by_role("table", name="Processes and what they use")
        group = table.get_by_role("button", name=re.compile(r"\d+ idle kernels$"))
        # Other tests may run kernels on this machine meanwhile.
        assert eventually(lambda: idle(group) >= IDLE)
        names = table.locator(".jp-gw-Group .jp-gw-Table-name")
        expect(names).to_have_count(0)
        group.focus()
        lab.page.keyboard.press("Enter")
        expect(group).to_have_attribute("aria-expanded", "true")
        assert eventually(lambda: names.count() >= IDLE and names.count() == idle(group))
        for theme in THEMES[:2]:
            lab.set_theme(theme)
            for width in (1280, 1920):
                lab.page.set_viewport_size({"width": width, "height": 1000})
                assert contrast(group) >= READABLE
        panel.open_file(TOPOLOGY)
        for look in pictures.looks(lab):
            group.scroll_into_view_if_needed()
            pictures.take(lab.page, f"idle-kernels-{look}")
            panel.card(f"file: {TOPOLOGY.name}").scroll_into_view_if_needed()
            pictures.take(lab.page, f"topology-file-{look}")
    finally:
        for kernel in kernels:
            server.shut_down_kernel(kernel)
