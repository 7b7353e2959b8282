"""Tables align numbers to the right, and results of calls have a readable text."""

import numpy as np
import pytest
from fake_machine import snap
from fake_nvml import FakeNvml, h100

from workbench.doctor.finding import Finding
from workbench.doctor.text import across_verdict
from workbench.fabric import fit
from workbench.widgets.table import Table


def test_numbers_are_aligned_to_the_right():
    """With their units, and where one of them is unknown; other columns start at the left."""
    rows = [
        ["0", "vm1", "80 GiB", "\u2013 (no process)", "10.0.0.1", "12 %"],
        ["10", "vm10", "7.5 GiB", "1,024 MiB", "eth0", "5 %"],
    ]
    table = Table("", ["rank", "VM", "memory", "used", "address", "load"], rows)
    assert repr(table).splitlines()[1:] == [
        "rank  VM     memory            used  address   load",
        "   0  vm1    80 GiB  \u2013 (no process)  10.0.0.1  12 %",
        "  10  vm10  7.5 GiB       1,024 MiB  eth0       5 %",
    ]
    html = table._repr_html_()
    assert 'text-align:right">80 GiB<' in html
    assert 'text-align:right">memory<' in html
    assert 'text-align:left">vm10<' in html
    assert 'text-align:left">10.0.0.1<' in html


def test_a_calibration_describes_itself():
    """Its text names latency, bandwidth and error, and has a row per size."""
    text = repr(fit([1000, 1_000_000], [110.0, 10_100.0], 2))
    assert text.startswith("An allreduce on 2 ranks takes 100 µs and, if large, 10,000 µs per MB")
    assert "0.80 Gbit/s bus bandwidth" in text
    assert text.splitlines()[-1].split() == ["1,000,000", "10,100", "10,100"]


@pytest.mark.parametrize(("number", "words"), [(1, "1 note."), (2, "2 notes.")])
def test_findings_that_break_nothing_are_notes(number, words):
    """As in the panel."""
    note = Finding("rule", "info", "vm", "evidence", "why", "fix", "source")
    assert words in across_verdict({}, [note] * number)


def test_a_number_of_numpy_names_a_gpu(machine):
    """Like an int of Python."""
    machine.add_rdma("mlx5_0", device=machine.add_pci("0000:3b:00.0"))
    snapshot = snap(machine, FakeNvml(h100(bus_id="00000000:01:00.0")))
    assert snapshot.distance(np.int64(0), "mlx5_0") == snapshot.distance(0, "mlx5_0")
