"""`%explain --sample` in a notebook: the next cell, the running one, and a stored run."""

import pytest
from clusters import training
from run_notebook import error_of, opened, text_of, values_of

PAUSE = training(0) + "import time\nfor _ in range({count}):\n    train(1)\n    time.sleep(0.03)\n"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    runs = str(tmp_path_factory.mktemp("runs"))
    with opened(f"import os\nos.environ['GRADIENT_WORKBENCH_RUNS'] = {runs!r}") as notebook:
        assert not error_of(notebook.run("cluster = %cluster start -n 2"))
        yield notebook


def test_the_next_cell_is_sampled(notebook):
    """`%explain` names the option, the option what to do, and the next `%explain` the line."""
    notebook.run(f"%%distributed\n{PAUSE.format(count=20)}")
    assert "run %explain --sample, then the cell again" in said(notebook, "%explain")
    assert "Run it, then %explain." in said(notebook, "%explain --sample")
    notebook.run(f"%%distributed\n{PAUSE.format(count=20)}")
    assert "of the cell: time.sleep(0.03)" in said(notebook, "%explain")


def test_a_cell_in_the_background_is_sampled_now(notebook):
    """One call samples it for seconds, and names the line."""
    notebook.run(f"%%distributed --noblock\n{PAUSE.format(count=1000)}")
    notebook.run("import time; time.sleep(2)")
    assert "of the cell: time.sleep(0.03)" in said(notebook, "%explain --sample")
    notebook.run("%cluster interrupt")


def test_a_stored_run_cannot_be_sampled(notebook):
    """The error says so in one line."""
    error = error_of(notebook.run("%explain some-run --sample"))
    assert "some-run --sample: a recorded run cannot be sampled" in error
    assert len(error.splitlines()) == 1


def said(notebook, source):
    """The text that a cell shows."""
    cell = notebook.run(source)
    assert not error_of(cell)
    return text_of(cell) + values_of(cell)
