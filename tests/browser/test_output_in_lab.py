"""A distributed cell in JupyterLab: equal lines are merged, floods cut, figures drawn."""

import pytest
from playwright.sync_api import expect

from .material import START_RANKS, write_notebook

CELLS = (
    START_RANKS,
    (
        "%%distributed\nimport sys, time\nfor epoch in range(3):\n    time.sleep(rank * 0.5)\n"
        "    print('epoch', epoch)\n    print('loss', epoch + rank / 10)\n"
        "print('careful', file=sys.stderr)\nrank"
    ),
    "%%distributed\nfor at in range(100_000): print('line', at)",
    (
        "%%distributed\nimport torch\nmodel = torch.nn.Linear(64, 64)\n"
        "optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),\n"
        "    named_parameters=model.named_parameters())\nfor _ in range(40):\n"
        "    optimizer.zero_grad(); model(torch.ones(4, 64)).sum().backward(); optimizer.step()"
    ),
    "%timings ranks",
    "%cluster",
    "%%distributed\n1 / 0",
)


@pytest.fixture(scope="module")
def notebook(new_lab, server, ranks_kernel, pictures):
    path = write_notebook(server, "output.ipynb", *CELLS)
    notebook = new_lab(server).open_notebook(server.connect(path, ranks_kernel))
    notebook.run_all()
    notebook.expect_ended(len(CELLS) - 1)
    for look in pictures.looks(notebook.lab):
        for cell in (1, 4, 5, 6):
            notebook.output(cell).scroll_into_view_if_needed()
            pictures.take(notebook.output(cell), f"output-{cell}-{look}")
    return notebook


@pytest.mark.soak
def test_lines_are_in_their_final_order(notebook):
    """Ranks half a second apart: the page shows each common line once when the cell has ended."""
    notebook.cells.nth(1).scroll_into_view_if_needed()  # cells out of sight are not drawn
    expect(notebook.output(1)).to_contain_text("[rank 1] 1")
    lines = notebook.output(1).inner_text().split("\n")
    assert [line for line in lines if line.strip()] == [
        *(
            line
            for epoch in range(3)
            for line in (
                f"[ranks 0-1] epoch {epoch}",
                f"[rank 0] loss {epoch + 0.0}",
                f"[rank 1] loss {epoch + 0.1}",
            )
        ),
        "[ranks 0-1] careful",
        "[rank 0] 0",
        "[rank 1] 1",
    ]


@pytest.mark.soak
def test_a_flood_leaves_the_page_usable(notebook):
    """Of 100,000 lines the page has the beginning and the end."""
    notebook.cells.nth(2).scroll_into_view_if_needed()
    expect(notebook.output(2)).to_contain_text("[ranks 0-1] line 99999")
    text = notebook.output(2).inner_text()
    assert "99,000 of 100,000 lines" in text
    assert len(text) < 100_000


@pytest.mark.soak
def test_figures_are_drawn_by_plotly_here(notebook):
    """The static picture is for other pages: JupyterLab draws the figure itself."""
    notebook.cells.nth(4).scroll_into_view_if_needed()
    expect(notebook.output(4).locator(".js-plotly-plot").first).to_be_visible()
    assert "Values" not in notebook.output(4).inner_text()
