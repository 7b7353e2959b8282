"""Gradient Workbench in the Running tab, toolbar, status bar and notifications of a real Lab."""

import os
import re
import signal

import pytest
from clusters import gone
from kept_clusters import kernel
from playwright.sync_api import expect

from .material import START_RANKS, TRAINS, write_notebook
from .pages import LONG_MS

PIDS = "print('pids', *[info.pid for info in cluster.ranks])"


RENAME = """
([from, to]) => window.jupyterapp.serviceManager.contents.rename(from, to)
"""


def status_item(lab):
    return lab.page.locator(".jp-gw-StatusItem button")


def running_items(lab):
    lab.page.locator(".jp-SideBar li[data-id='jp-running-sessions']").click()
    section = lab.page.get_by_role("region", name="Clusters Section")
    return section.locator(".jp-RunningSessions-item")


def test_a_kept_cluster_is_attached_to_and_stopped_from_the_running_tab(
    lab, new_lab, server, monkeypatch
):
    """Of a kernel that has ended: a click attaches to it, and its notebook then has it.

    It is stopped from a page that has not opened its notebook.
    """
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(server.root.parent / "run"))
    name, pids = kernel("")
    path = write_notebook(server, "attach.ipynb", "1")
    notebook = lab.open_notebook(path)
    notebook.wait_for_kernel()
    item = running_items(lab).filter(has_text=name)
    expect(item).to_contain_text("2 ranks")
    expect(item).to_contain_text("kept, no notebook")
    item.locator(".jp-RunningSessions-itemLabel").click()
    notebook.expect_ended(1)
    expect(notebook.output(1)).to_contain_text(name)
    expect(item).to_contain_text("attach.ipynb")
    expect(status_item(lab)).to_have_text(re.compile(r"^2 ranks"))

    other = new_lab(server).open()
    seen_there = running_items(other).filter(has_text="attach.ipynb")
    expect(seen_there).to_contain_text("2 ranks")
    seen_there.hover()
    seen_there.get_by_role("button").last.click()
    expect(seen_there).to_have_count(0)
    expect(item).to_have_count(0)
    expect(status_item(lab)).to_have_count(0)
    assert gone(pids)
    assert lab.complaints == []
    assert other.complaints == []
    server.shut_down_kernels_of(path)


def test_the_toolbar_button_makes_a_cell_distributed(lab, server, light_kernel):
    """Its first line comes and goes; the rest of the cell is kept."""
    path = write_notebook(server, "toolbar.ipynb", "x = 1\nprint(x)")
    notebook = lab.open_notebook(server.connect(path, light_kernel))
    notebook.wait_for_kernel()
    editor = notebook.cells.first.locator(".cm-content")
    toolbar = notebook.node.locator(".jp-NotebookPanel-toolbar")
    button = toolbar.get_by_role("button", name="Run the selected cells on the ranks")
    button.click()
    expect(editor).to_have_text(re.compile(r"^%%distributed\s*x = 1\s*print\(x\)$"))
    button.click()
    expect(editor).to_have_text(re.compile(r"^x = 1\s*print\(x\)$"))
    assert lab.complaints == []


def test_status_bar_and_live_tab_show_a_training(training, pictures):
    """The layout command opens panel and live tab; the view moves while the cell runs."""
    lab = training.lab
    lab.run_command("application:toggle-left-area")
    expect(lab.panel.node).to_be_hidden()
    lab.run_command("workbench:default-layout")
    expect(lab.panel.node).to_be_visible()
    tab = lab.page.locator(".jp-gw-LiveTab")
    expect(tab).to_be_visible()
    iteration = tab.locator(".jp-gw-Live-iteration .jp-gw-Live-value")
    expect(iteration).to_have_text(re.compile(r"\d"))
    expect(training.node.get_by_role("button", name="Run the selected cells")).to_be_visible()
    overflow = tab.locator(".jp-gw-Live-keyFigures").evaluate(
        "bar => bar.scrollWidth - bar.clientWidth"
    )
    assert overflow <= 0, "key figures are cut at the right"
    before = iteration.inner_text()
    expect(iteration).not_to_have_text(before)
    expect(status_item(lab)).to_have_text(re.compile(r"^2 ranks · \d+ % exposed$"))
    training.expect_running(TRAINS)
    pictures.take_all(lab, "layout")
    lab.close_live_tab(training.path)
    assert lab.complaints == []


def test_two_notebooks_have_two_live_tabs_also_after_a_rename(lab, server, light_kernel):
    """A notebook's tab is found again under its new name, and it names it."""
    paths = [write_notebook(server, f"tab-{name}.ipynb", "1") for name in "ab"]
    for path in paths:
        server.connect(path, light_kernel)
    tabs = lab.page.locator(".lm-TabBar-tab", has_text="Live: ")
    lab.open_notebook(paths[0])
    lab.run_command("workbench:open-live-view", path=paths[0])
    expect(tabs).to_have_text(["Live: tab-a.ipynb"])
    lab.run_command("docmanager:open", path=paths[1])
    expect(lab.page.locator(".jp-NotebookPanel")).to_have_count(2)
    lab.run_command("workbench:open-live-view", path=paths[1])
    expect(tabs).to_have_count(2)
    lab.page.evaluate(RENAME, [paths[0], "renamed.ipynb"])
    expect(tabs.filter(has_text="Live: renamed.ipynb")).to_have_count(1)
    lab.run_command("workbench:open-live-view", path="renamed.ipynb")
    lab.run_command("workbench:open-live-view", path=paths[1])
    expect(tabs.filter(has_text="Live: tab-b.ipynb")).to_have_class(re.compile("lm-mod-current"))
    expect(tabs).to_have_count(2)
    expect(lab.page.locator(".jp-gw-LiveTab-note").first).to_contain_text("renamed.ipynb")
    assert lab.complaints == []


@pytest.mark.soak
def test_a_lost_rank_notifies_while_the_panel_is_hidden(lab, server, ranks_kernel, pictures):
    """The notification says what is lost and offers the restart; the status bar shows it too."""
    path = write_notebook(server, "lost.ipynb", START_RANKS, PIDS)
    notebook = lab.open_notebook(server.connect(path, ranks_kernel))
    notebook.run_all()
    notebook.expect_ended(1)
    expect(status_item(lab)).to_have_text("2 ranks")
    _, _, pid = notebook.output(1).inner_text().split()
    os.kill(int(pid), signal.SIGKILL)
    toast = lab.page.locator(".Toastify__toast").filter(has_text="rank 1")
    expect(toast).to_be_visible()
    expect(status_item(lab)).to_have_text("⚠ rank 1 lost")
    pictures.take(lab.page, "lost")
    expect(toast.get_by_role("button", name="Restart lost ranks")).to_be_enabled()
    toast.get_by_role("button", name="Show panel").click()
    expect(lab.panel.node).to_be_visible()
    lab.panel.node.get_by_role("button", name="Restart 1 lost rank").click()
    expect(lab.panel.status).to_contain_text("ready", timeout=LONG_MS)
    assert lab.complaints == []
