"""The sidebar panel in a real JupyterLab."""

import re

import pytest
from playwright.sync_api import expect

# Counts how often a picture of the last minute is redrawn.
COUNT_CHANGES = """
device => {
  window.changes = 0;
  const count = () => { window.changes += 1; };
  new MutationObserver(count).observe(device, { subtree: true, attributeFilter: ['d'] });
}
"""


@pytest.fixture(scope="module")
def lab(new_lab, server):
    """A page without a notebook; the panel's tab opens by keyboard."""
    lab = new_lab(server).open()
    lab.panel.tab.focus()
    lab.page.keyboard.press("Enter")
    expect(lab.panel.node).to_be_visible()
    return lab


def test_this_machine(lab):
    """CPU and memory are figures; what is missing says why."""
    for name, unit in {"CPU": "%", "Memory": "GiB"}.items():
        device = lab.panel.device(name)
        expect(device.locator(".jp-gw-Figure-number")).to_have_text(re.compile(r"^\d"))
        expect(device.locator(".jp-gw-Figure-unit")).to_have_text(unit)
    if not lab.panel.node.get_by_role("group", name=re.compile("^GPU")).count():
        expect(lab.panel.node.get_by_text("No GPU")).to_have_text(re.compile(r"No GPU: .{10,}"))
    expect(lab.panel.node.get_by_text("No notebook is open")).to_be_visible()
    assert lab.complaints == []


def test_this_machine_is_live(lab):
    """The last minute of the CPU's load grows sample by sample, without any action."""
    cpu = lab.panel.device("CPU")
    expect(cpu.locator(".jp-gw-Figure-number")).to_have_text(re.compile(r"^\d"))
    cpu.evaluate(COUNT_CHANGES)
    lab.page.wait_for_function("() => window.changes >= 4")
    expect(lab.panel.node.get_by_text("live", exact=True)).to_be_visible()


def test_a_closed_card_stays_closed(new_lab, server):
    """A card is closed by keyboard to one line that says it all, and is closed after a reload."""
    lab = new_lab(server).open()
    lab.panel.open()
    card = lab.panel.node.locator(".jp-gw-Card")
    card.locator("> summary").focus()
    with lab.expect_saved_card(is_open=False):
        lab.page.keyboard.press("Enter")
    expect(card).not_to_have_attribute("open", "")
    expect(card.locator(".jp-gw-Card-line")).to_contain_text("CPU")
    expect(lab.panel.device("CPU")).to_have_count(0)
    lab.open()
    lab.panel.open()
    expect(card.locator(".jp-gw-Use-number")).to_have_text(re.compile(r"^\d+ %$"))
    expect(card).not_to_have_attribute("open", "")
    assert lab.complaints == []


def test_settings_apply_at_once(lab):
    """A change in Lab's settings changes the open panel."""
    expect(lab.panel.device("CPU")).to_be_visible()
    lab.run_command("settingeditor:open", query="Gradient Workbench")
    # Lab's form ties no label to its fields.
    cards = lab.page.locator("input[label='Cards open by default']")
    cards.fill("0")
    expect(lab.panel.device("CPU")).to_have_count(0)
    cards.fill("2")
    expect(lab.panel.device("CPU")).to_be_visible()
    assert lab.complaints == []
