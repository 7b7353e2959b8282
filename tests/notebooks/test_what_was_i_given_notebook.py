"""The notebook that explains an allocation to its owner."""

import example_vms
import nbformat
import pytest
from tutorials import executed

from workbench.demo import NOTEBOOK, write_page
from workbench.resources import Snapshot

GIVEN = NOTEBOOK.with_name("04-what-was-i-given.ipynb")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return write_page(executed(GIVEN), tmp_path_factory.mktemp("given") / "given.html")


def test_it_runs_on_any_machine(result):
    """Every part of this machine was checked, and the snapshot is received as it was sent."""
    for part in ("host", "gpus", "nics", "pcie"):
        assert f"\n{part}" in f"\n{result.summary}"
    assert "what arrives is what was sent: True" in result.summary
    assert "The same findings: True" in result.summary


def test_distances_of_the_example(result):
    """NVLink between the GPUs; to the NIC the guest and the file say other things."""
    assert "GPU 0 to GPU 1:   NVLINK" in result.summary
    assert "as the guest sees it: PHB" in result.summary
    assert "by the file:          PIX" in result.summary
    assert "False: PHB is beyond PXB" in result.summary
    assert "True: PIX is within PXB" in result.summary


def test_vms_are_compared(result):
    """The example VMs differ in licence and MTU, and the page shows it with its fix."""
    assert "vm1 has licensed vGPUs; vm2 has unlicensed vGPUs" in result.summary
    assert "vm1 has MTU 9000; vm2 has MTU 1500" in result.summary
    page = result.html.read_text()
    assert "2 VMs compared" in page
    assert "ClientConfigToken" in page


def test_the_examples_are_the_fixtures():
    """The files that the page reads are those that `example_vms.py` writes."""
    for name, text in example_vms.contents().items():
        hint = "write them again: python tests/support/example_vms.py"
        assert (example_vms.FOLDER / name).read_text() == text, hint
    assert {file.name for file in example_vms.FOLDER.iterdir()} == set(example_vms.contents())
    Snapshot.load(example_vms.FOLDER / "vm2.json")


def test_the_notebook_is_committed_without_outputs():
    """All outputs are made by whoever runs it."""
    page = nbformat.read(GIVEN, as_version=4)
    code = [cell for cell in page.cells if cell.cell_type == "code"]
    assert not [cell for cell in code if cell.outputs or cell.execution_count]
