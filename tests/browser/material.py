"""Notebooks that the tests write, and what they change in copies of the examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nbformat

if TYPE_CHECKING:
    from pathlib import Path

    from .server import LabServer

KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}

TRAINING = """%%distributed
import time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)
import workbench as wb
batch, target = torch.randn(32, 64), torch.randint(10, (32,))
for _ in range({iterations}):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch), target)
    loss.backward()
    optimizer.step()
    wb.log(loss=loss)
    time.sleep(0.1)  # leaves the cores to the page
"""

START_RANKS = "%load_ext workbench\ncluster = %cluster start -n 2"
"""A cell that starts two ranks, or uses those that run."""

BUSY = "%%distributed\nimport time\nprint('begun')\ntime.sleep(600)"
"""A cell that runs until it is interrupted."""

TRAINS = 2
"""The cell of `training_cells` that trains."""

ENDLESS = 1_000_000
"""Iterations that no test waits for."""


def write_notebook(server: LabServer, name: str, *cells: str) -> str:
    """Write a notebook of code cells where a Lab finds it; returns its path there."""
    notebook = nbformat.v4.new_notebook(metadata=KERNEL)
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in cells]
    nbformat.write(notebook, server.root / name)
    return name


def training_cells(iterations: int) -> tuple[str, str, str]:
    """Two ranks, the live view, and a training that is watched in it."""
    return START_RANKS, "%timings", TRAINING.format(iterations=iterations)


def longer_quickstart(server: LabServer, name: str, epochs: int, seen: Path) -> str:
    """The quickstart, trained for more epochs, with pauses until there is the file `seen`.

    So there is time to watch it.
    """
    notebook = read(server.root / "01-quickstart.ipynb")
    changes = {
        "for epoch in range(15)": f"import os, time\nfor epoch in range({epochs})",
        "optimizer.step()": (
            f"optimizer.step(); time.sleep(0 if os.path.exists({str(seen)!r}) else 0.1)"
        ),
    }
    for old, new in changes.items():
        assert any(old in cell.source for cell in notebook.cells), f"no cell has {old!r}"
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    nbformat.write(notebook, server.root / name)
    return name


def read(path: Path) -> nbformat.NotebookNode:
    """Return a notebook as stored on disk."""
    return nbformat.read(path, as_version=4)


def cell_with(path: Path, text: str) -> int:
    """The number of the only cell that has a text in its source."""
    (found,) = (index for index, cell in enumerate(read(path).cells) if text in cell.source)
    return found
