"""Where kernels of a test write what others need to attach, and attaching."""

import contextlib

import pytest

import workbench as wb
from workbench.errors import NoCluster


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A place of its own for what kernels write down."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def attach(runtime):
    """Attach to clusters, and stop them after the test."""
    met = []

    def meet(name=None):
        met.append(wb.Cluster.attach(name))
        return met[-1]

    yield meet
    for cluster in met:
        cluster.stop()
    with contextlib.suppress(NoCluster):  # the test failed before it attached to its own
        wb.Cluster.attach().stop()
