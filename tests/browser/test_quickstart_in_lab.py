"""The quickstart as a newcomer sees it: opened in JupyterLab, and run from top to bottom."""

import re
from dataclasses import dataclass

import pytest
from playwright.sync_api import expect
from timers import eventually

from .material import cell_with, longer_quickstart

EPOCHS = 20
"""Of three seconds each until the test has seen enough, then of a tenth of a second."""
MORE = 40
"""Iterations that the view shows while the test looks."""


@dataclass
class Run:
    """One run, seen through the page, with what was seen during the cell."""

    notebook: object
    path: str
    trained: str
    panel_while_training: str
    ranks_while_training: int
    pixels: list
    iterations: list


@pytest.fixture(scope="module")
def run(new_lab, server, pictures, tmp_path_factory):
    seen = tmp_path_factory.mktemp("quickstart") / "seen"
    path = longer_quickstart(server, "quickstart.ipynb", EPOCHS, seen)
    trains = cell_with(server.root / path, "for epoch in range")
    lab = new_lab(server)
    notebook = lab.open_notebook(path)
    lab.panel.open()
    notebook.run_all()
    notebook.expect_running(trains)
    view = notebook.view
    view.show()
    pixels, iterations = [view.pixels()], [view.iteration]
    view.wait_for_iterations(MORE)
    view.wait_until_redrawn(pixels[0])
    pixels.append(view.pixels())
    iterations.append(view.iteration)
    expect(lab.panel.status).to_contain_text("running")
    expect(lab.panel.ranks).to_have_count(2)
    status, ranks = lab.panel.status.inner_text(), lab.panel.ranks.count()
    pictures.take(lab.panel.node, "quickstart-panel")
    lab.run_command("application:toggle-left-area")
    expect(lab.panel.node).to_be_hidden()
    view.wait_for_iterations(20)
    pictures.take(view.node, "quickstart-live-view")
    # Still running: all of the above was seen in mid-cell.
    notebook.expect_running(trains)
    seen.touch()
    notebook.expect_ended(cell_with(server.root / path, "%cluster stop"))
    lab.panel.open()
    outputs = notebook.outputs()
    trained = "".join(output.get("text", "") for output in outputs[trains])
    yield Run(notebook, path, trained, status, ranks, pixels, iterations)
    server.shut_down_kernels_of(path)


@pytest.mark.soak
def test_the_view_moves_in_mid_cell(run):
    """While the training cell blocks the kernel, charts and figures are updated."""
    assert run.iterations[1] >= run.iterations[0] + MORE
    assert all(before != after for before, after in zip(*run.pixels, strict=True))


@pytest.mark.soak
def test_the_panel_follows_the_cluster(run):
    """The panel shows running with both ranks during the cell, stopped after the last cell."""
    assert "running" in run.panel_while_training
    assert "2 ranks" in run.panel_while_training
    assert run.ranks_while_training == 2
    expect(run.notebook.lab.panel.status).to_contain_text("stopped")


@pytest.mark.soak
def test_it_learns(run):
    """The network gets over 95 % of the held-out scans right; no cell fails."""
    accuracy = re.search(r"test accuracy ([\d.]+)%", run.trained)
    assert float(accuracy[1]) > 95
    outputs = [output for cell in run.notebook.outputs() for output in cell]
    assert [output for output in outputs if output["output_type"] == "error"] == []
    assert run.notebook.lab.complaints == []


@pytest.mark.soak
def test_the_view_stops_at_the_end(run):
    """After the last cell the view says that the run has ended, and moves no more."""
    view = run.notebook.view
    view.show()
    expect(view.state).to_have_attribute("data-state", "ended")
    view.wait_for_frames()
    still = view.pixels()
    view.wait_for_frames(60)
    assert view.pixels() == still


@pytest.mark.soak
def test_reopened_without_a_kernel(run, new_lab, server):
    """A saved notebook shows the last state of its view, drawn, without any kernel."""
    run.notebook.save()
    last = run.notebook.view.iteration
    lab = new_lab(server)
    notebook = lab.open_notebook_without_kernel(run.path)
    notebook.view.show()
    assert eventually(lambda: notebook.view.iteration == last)
    assert eventually(lambda: len(set(notebook.view.pixels())) == len(run.pixels[-1]))
    expect(notebook.view.state).to_have_attribute("data-state", "ended")
    expect(notebook.node.get_by_text("Loading widget")).to_have_count(0)
    assert lab.complaints == []
