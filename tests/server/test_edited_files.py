"""Reading an edited file gives an answer or a reason, however it was edited."""

from __future__ import annotations

import json
import random

import pytest
from nvml_machines import bridged_a100, hgx_h100

from workbench.errors import SnapshotError
from workbench.resources import take_snapshot
from workbench.server.handlers import read_sent_file

from .test_reading import TOPOLOGY

VALUES = [None, {}, [], "", "x", -1, 0, 1e308, 10**30, True, "\x00", ["a"], [{}], {"unknown": "u"}]
WORDS = [b"-1", b"9" * 30, b"0x03", b"<pci ", b"/>", b"</pci>", b"\x00", b"&lt;", b"1.2.3 GT/s"]
WORDS += [b"", b'busid="0000:11:00.0"', b"<gpu>", b'<nvlink target="x"/>', b"\xff", b"<cpu/>"]


def places(value, here=()):
    """Every place in JSON, of long lists the first ones."""
    yield here
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value[:3]) if isinstance(value, list) else items
    for key, inner in items:
        yield from places(inner, (*here, key))


def answered(data):
    """Whether it was read; whatever else it raises than a reason is a fault."""
    try:
        json.loads(read_sent_file("edited", data))
    except SnapshotError:
        return False
    return True


@pytest.mark.parametrize("build", [hgx_h100, bridged_a100])
def test_an_edited_snapshot(build):
    """One value after another is another one, or gone."""
    text = take_snapshot(nvml=build()).to_json()
    chance = random.Random(1)
    told = [place for place in places(json.loads(text)) if place]
    read_ones = 0
    for _ in range(120):
        edited = json.loads(text)
        *above, last = chance.choice(told)
        inside = edited
        for key in above:
            inside = inside[key]
        if chance.random() < 0.2:
            del inside[last]
        else:
            inside[last] = chance.choice(VALUES)
        read_ones += answered(json.dumps(edited).encode())
    assert 0 < read_ones < 120


def test_an_edited_topology_file():
    """Cut, overwritten and filled with other words of the format."""
    chance = random.Random(2)
    read_ones = 0
    for _ in range(1000):
        edited = bytearray(TOPOLOGY.encode())
        at = chance.randrange(len(edited))
        edited[at : at + chance.choice((0, 1, 3, 10))] = chance.choice(WORDS)
        read_ones += answered(bytes(edited))
    assert 0 < read_ones < 1000
