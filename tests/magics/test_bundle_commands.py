"""`workbench bundle` of a recorded run, and `%cluster bundle` of the notebook's cluster."""

import os

import pytest
from bundles import BundleFile
from clusters import quiet, training
from recorded import write_run

from workbench.cli import main


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run that was recorded, in a folder of its own."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path)
