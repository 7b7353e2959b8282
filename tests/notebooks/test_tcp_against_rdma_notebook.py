"""The notebook that compares scaling studies over two fabrics."""

import re

import nbformat
import pytest
from tutorials import executed

from workbench.demo import NOTEBOOK, write_page
from workbench.testbed import why_not

RDMA = NOTEBOOK.with_name("07-tcp-against-rdma.ipynb")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    if why_not() is not None:
        pytest.skip(str(why_not()))
    return write_page(executed(RDMA), tmp_path_factory.mktemp("rdma") / "rdma.html")


@pytest.mark.soak
@pytest.mark.timing
def test_the_faster_fabric_is_faster(result):
    """At two ranks, whose link has four times the rate; the sentence has the interval."""
    pattern = r"(\d) ranks?: an iteration of 2 Gbit/s takes ([\d.]+) times as long as one of "
    found = dict(re.findall(pattern + r"0\.5 Gbit/s \(95 % interval [\d.]+ to", result.summary))
    assert set(found) == {"1", "2"}
    assert float(found["2"]) < 1


@pytest.mark.soak
@pytest.mark.timing
def test_the_transports_are_those_that_the_library_reports(result):
    """Gloo's TCP, on both VMs: no InfiniBand is claimed."""
    assert re.findall(r"rank (\d): Gloo: TCP \w+", result.summary) == ["0", "1"]


@pytest.mark.soak
@pytest.mark.timing
def test_measured_calibrated_and_nominal_are_side_by_side(result):
    """In each study's table; a calibration that the load has spoiled is unknown, with a reason."""
    page = result.html.read_text()
    assert page.count("weak scaling (the batch of each rank stays); vm1, vm2; Gloo: TCP") == 2
    assert page.count("<svg") >= 3
    text = re.sub(r"<[^>]*>", " ", page)
    rows = re.findall(r" 2 +[\d.]+ +[\d.]+ to [\d.]+ +[\d.]+ +([\d.]+)% +[\d.]+% to [\d.]+% +"
                      r"(unknown|\d+%(?: to \d+%)?) +(\d+)%", text)  # fmt: skip
    assert rows
    for measured, calibrated, nominal in rows:
        assert float(measured) > 0
        assert int(nominal) > 0
        assert calibrated != "unknown" or "The calibrated efficiency is unknown: " in text
    assert "NaN" not in text


def test_the_notebook_is_committed_without_outputs():
    """All outputs are made by whoever runs it."""
    page = nbformat.read(RDMA, as_version=4)
    assert not [cell for cell in page.cells if cell.get("outputs")]
