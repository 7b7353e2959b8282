"""Distances are strings with the order of nearness, wherever they go."""

from __future__ import annotations

import copy
import itertools
import json
import pickle

import pytest
from fake_machine import snap
from fake_nvml import FakeNvml, h100
from nvml_machines import bridged_a100
from pci_host import A, B, C, D, build_host

import workbench as wb
from workbench.resources import Snapshot, Unknown

ORDER = ["LOC", "NVLINK", "INTERNAL", "PIX", "PXB", "PHB", "NODE", "SYS"]
EVERY = [wb.Distance(one) for one in ORDER]


def test_order_is_nearness():
    """All four comparisons, and what is built on them, between members and with strings."""
    for a, b in itertools.product(range(len(ORDER)), repeat=2):
        for one, other in ((EVERY[a], EVERY[b]), (EVERY[a], ORDER[b]), (ORDER[a], EVERY[b])):
            assert (one < other, one <= other) == (a < b, a <= b)
            assert (one > other, one >= other) == (a > b, a >= b)
            assert (one == other, one != other) == (a == b, a != b)
    assert sorted(EVERY) == EVERY
    assert sorted(ORDER, key=wb.Distance) == ORDER
    assert (min(EVERY[3:]), max(EVERY)) == ("PIX", "SYS")
    assert min(wb.Distance.NODE, wb.Distance.PHB) == "PHB"


def test_a_distance_is_a_string():
    """In texts, JSON, dictionaries and pickles."""
    pix = wb.Distance.PIX
    assert (str(pix), f"{pix}", f"{pix:<5}|", f"{pix}", "".join([pix])) == (
        "PIX",
        "PIX",
        "PIX  |",
        "PIX",
        "PIX",
    )
    assert repr(pix) == "<Distance.PIX: 'PIX'>"
    assert json.dumps({"to": pix, pix: 1}) == '{"to": "PIX", "PIX": 1}'
    assert {"PIX": 1}[pix] == {pix: 1}["PIX"] == 1
    assert pickle.loads(pickle.dumps(pix)) is copy.deepcopy(pix) is pix


@pytest.mark.parametrize("other", ["FAR", "", "pix", 3, None, Unknown("no PCI")])
def test_what_has_no_order(other):
    """A comparison that is impossible raises an error, on either side."""
    for compare in (lambda: other > wb.Distance.PIX, lambda: other <= wb.Distance.PIX):
        with pytest.raises(TypeError, match=r"only distances can be ordered\. Compare with one of"):
            compare()
    assert other != wb.Distance.PIX


def test_distances_of_a_machine(machine):
    """The nearest of several devices is the minimum; a file gives the same back."""
    build_host(machine)
    gpus = [h100(uuid=f"GPU-{at[5:7]}", bus_id=f"0000{at.upper()}") for at in (A, B, C, D)]
    snapshot = snap(machine, FakeNvml(*gpus))
    for one in (snapshot, Snapshot.from_json(snapshot.to_json())):
        ways = [one.distance(0, other) for other in (3, 2, "mlx5_1", 1)]
        assert ways == ["SYS", "PXB", "SYS", "PIX"]
        assert (min(ways), max(ways)) == (wb.Distance.PIX, wb.Distance.SYS)
        assert {type(way) for way in ways} == {wb.Distance}
        assert min(one.nics, key=lambda nic: one.distance(2, nic)).rdma_device == "mlx5_0"
    assert type(snapshot.to_plain()["pcie"]["distances"][0]["distance"]) is str


def test_what_the_driver_says_of_pairs(machine):
    """NVML's levels are distances too."""
    snapshot = snap(machine, bridged_a100())
    assert {type(pair.topology) for pair in snapshot.gpu_pairs} == {wb.Distance}
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


def test_a_snapshot_with_a_word_that_is_no_distance(machine):
    """The file is refused, with the place in it."""
    plain = snap(machine, bridged_a100()).to_plain()
    plain["gpu_pairs"][0]["topology"] = "NEAR"
    with pytest.raises(wb.resources.snapshot.SnapshotError, match=r"gpu_pairs\[0\].topology"):
        Snapshot.from_plain(plain)
