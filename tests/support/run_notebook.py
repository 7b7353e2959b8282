"""Notebooks executed as nbclient, nbconvert and papermill do it, with what a reader then sees."""

import os
from contextlib import contextmanager
from pathlib import Path

import nbformat
from kernels import started
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


BEGIN = """
import os, sys, types
if "_first_state" not in sys.modules:
    sys.modules["_first_state"] = types.SimpleNamespace(
        own={{n: v for n, v in os.environ.items() if {environment!r}.get(n) != v}})
os.environ.clear()
os.environ.update({environment!r} | sys.modules["_first_state"].own)
os.chdir({directory!r})
del os, sys, types
"""
"""The kernel has the environment and the folder of the test; its own variables are kept."""
END = """
import psutil, threading, ipywidgets, workbench.cluster.cluster as _module
for _cluster in _module.clusters_of_this_process():
    _cluster.stop()
ipywidgets.Widget.close_all()
assert all(_cluster.state == "stopped" for _cluster in _module.clusters_of_this_process())
"""
_unused = []
"""Clients of kernels that no notebook uses any longer."""


@contextmanager
def opened(*sources, fresh=False):
    """A notebook with a kernel; `sources` are run first, and must not fail.

    The kernel has no cluster and no variables. It is one that an earlier notebook of this process
    has used, unless it is to be `fresh`.
    """
    client = _unused.pop() if _unused and not fresh else _started()
    client.nb = nbformat.v4.new_notebook()
    client.reset_execution_trackers()
    notebook = Notebook(client)
    begin = BEGIN.format(environment=dict(os.environ), directory=str(Path.cwd()))
    is_usable = False
    try:
        for source in (begin, "%reset -f", "%reload_ext workbench"):
            assert not error_of(notebook.run(source))
        del notebook.node.cells[:]
        for source in sources:
            assert not error_of(notebook.run(source))
        yield notebook
        is_usable = not error_of(notebook.run(END)) and not _unused
    finally:
        if is_usable:
            _unused.append(client)
        else:
            _end(client)


_running = []


def _started():
    # nbclient's own limits, 4 s for the last output, lose some on a busy machine
    options = {"timeout": 350, "iopub_timeout": 300, "allow_errors": True}
    client = NotebookClient(nbformat.v4.new_notebook(), **options)

    def start():
        client.create_kernel_manager()
        client.start_new_kernel()
        client.start_new_kernel_client()

    started(start)
    _running.append(client)
    return client


def _end(client):
    _running.remove(client)
    client._cleanup_kernel()


def end_all():
    """End all kernels, also the one that no notebook uses."""
    _unused.clear()
    while _running:
        _end(_running[-1])
