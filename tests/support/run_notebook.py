"""Notebooks executed as nbclient, nbconvert and papermill do it, with what a reader then sees."""

from contextlib import contextmanager

import nbformat
from nbclient import NotebookClient


class Notebook:
    """Cells that are executed one by one; each call returns the cell's outputs as saved."""

    def __init__(self, client):
        self.client = client
        self.node = client.nb

    def run(self, source):
        """Run a cell and return it, with its outputs."""
        cell = nbformat.v4.new_code_cell(source)
        self.node.cells.append(cell)
        self.client.execute_cell(cell, len(self.node.cells) - 1)
        return cell


def text_of(cell, *streams):
    """Return the text of the cell's streams, in order; of all streams where none is named."""
    return "".join(
        output.text
        for output in cell.outputs
        if output.output_type == "stream" and (not streams or output.name in streams)
    )


def values_of(cell):
    """The text of the cell's values."""
    return "".join(
        output.data.get("text/plain", "")
        for output in cell.outputs
        if output.output_type in {"execute_result", "display_data"}
    )


def error_of(cell):
    """Return the text of the cell's error, or an empty string."""
    return "\n".join(
        "\n".join(output.traceback) for output in cell.outputs if output.output_type == "error"
    )


@contextmanager
def opened(*sources):
    """A notebook with a kernel; `sources` are run first, and must not fail."""
    # nbclient's own limits, 4 s for the last output, lose some on a busy machine
    options = {"timeout": 350, "iopub_timeout": 300, "allow_errors": True}
    client = NotebookClient(nbformat.v4.new_notebook(), **options)
    with client.setup_kernel():
        notebook = Notebook(client)
        for source in ("%load_ext workbench", *sources):
            assert not error_of(notebook.run(source))
        yield notebook
        notebook.run("import workbench.cluster.registry as r\nr.current() and r.stop()")
