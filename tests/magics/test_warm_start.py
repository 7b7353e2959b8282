"""``%cluster start`` and ``%cluster status`` with the kernel's warm process."""

import re

import pytest
from test_magics import Notebook
from test_recording_magics import plain


@pytest.fixture
def notebook():
    """A kernel that has started no cluster."""
    one = Notebook()
    one.run("%load_ext workbench")
    yield one
    one.stop()


@pytest.mark.soak
def test_a_cold_start_and_later_ones(notebook):
    """The status shows the memory of the process that a start leaves, unless it was a cold one."""
    notebook.run("%cluster start -n 1 --cold")
    assert "Warm process" not in plain(notebook, "%cluster status")
    notebook.run("%cluster stop\n%cluster start -n 1")
    shown = plain(notebook, "%cluster status")
    (pid,) = re.findall(r"Warm process (\d+) for the next start here: \d+ MiB \(PSS", shown)
    assert f"Warm process {pid} " in plain(notebook, "%cluster stop")
    notebook.run("%cluster start -n 1")
    status = plain(notebook, "%cluster status")
    assert "1 rank, ready" in status
    assert f"Warm process {pid} " in status
