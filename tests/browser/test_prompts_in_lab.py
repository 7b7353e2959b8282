"""A breakpoint in JupyterLab: its prompt appears beneath the cell and is answered there."""

import pytest
from playwright.sync_api import expect

from .material import START_RANKS, write_notebook

CELLS = (
    START_RANKS,
    (
        "%%distributed\nimport torch\nvalue = rank + 40\nif rank == 1: breakpoint()\n"
        "total = hvd.allreduce(torch.ones(1), op=hvd.Sum)\nprint('total', float(total), value)"
    ),
    "%%distributed --ranks 0\nprint('hello', input('Who? '))",
)


@pytest.fixture
def notebook(lab, server, ranks_kernel):
    path = write_notebook(server, "prompts.ipynb", *CELLS)
    notebook = lab.open_notebook(server.connect(path, ranks_kernel))
    notebook.lab.panel.open()
    notebook.run_all()
    notebook.expect_ended(0)
    return notebook


def answer(notebook, cell, prompt, text):
    """Type a line at the prompt beneath a cell."""
    # An answered prompt is hidden first, and removed half a second later.
    shown = notebook.output(cell).locator(
        ":not(.jp-OutputArea-stdin-hiding) > .jp-Stdin:has(input)"
    )
    expect(shown).to_have_count(1)
    expect(shown.locator(".jp-Stdin-prompt")).to_have_text(prompt)
    field = shown.locator("input")
    field.fill(text)
    expect(field).to_have_value(text)
    field.press("Enter")
    expect(notebook.output(cell)).to_contain_text(f"{prompt} {text}")  # the input is gone


def test_a_prompt_is_answered_in_the_notebook(notebook, pictures):
    """The panel says which rank is at a breakpoint; the answers stay in the cell's output."""
    output = notebook.output(1)
    expect(output.locator(".jp-Stdin-prompt")).to_have_text("[rank 1] (Pdb)")
    expect(output).to_contain_text("for rank 1, which is at a breakpoint.")
    expect(notebook.lab.panel.node).to_contain_text("Rank 1 is at a breakpoint")
    pictures.take(notebook.lab.page, "prompt-breakpoint")
    answer(notebook, 1, "[rank 1] (Pdb)", "value = 7")
    answer(notebook, 1, "[rank 1] (Pdb)", "c")
    answer(notebook, 2, "[rank 0] Who?", "Ada")
    notebook.expect_ended(2)
    expect(output).to_contain_text("[rank 1] (Pdb) value = 7")
    expect(output).to_contain_text("[rank 1] total 2.0 7")
    expect(notebook.output(2)).to_contain_text("hello Ada")
    expect(notebook.lab.panel.node).not_to_contain_text("at a breakpoint")
    pictures.take(notebook.lab.page, "prompt-answered")
