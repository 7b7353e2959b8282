"""`make truth`: a figure that is wrong is found, whatever its kind."""

from pathlib import Path

import numpy as np
import pytest

from tests.truth import arithmetic
from tests.truth.__main__ import GROUPS
from tests.truth.capture import PACKET, parse, stream_bytes
from tests.truth.kinds import KINDS, NOT_CHECKED
from tests.truth.table import Table, page

PAGE = Path(__file__).parents[1] / "docs" / "proof" / "truth.md"
EVERY = pytest.mark.parametrize("name", KINDS)
SEVERAL = 40


def judged(name, shown, truth, planted=0.0):
    """The row of a kind with these comparisons."""
    table = Table(planted)
    table.add(name, shown, truth)
    (row,) = [row for row in table.rows() if row.kind.name == name]
    return row


def truths(name):
    """Some true figures of a kind."""
    if KINDS[name].unit == "same":
        return [f"rank {place}" for place in range(SEVERAL)]
    return np.linspace(1.0, 200.0, SEVERAL)


@EVERY
def test_a_wrong_figure_is_found(name):
    """Right figures are within the bound; those that are wrong by twice the bound are not."""
    assert judged(name, truths(name), truths(name)).met
    assert not judged(name, truths(name), truths(name), planted=2.0).met


@EVERY
def test_one_wrong_figure_in_ten_is_found(name):
    """The bounds are not those of the median alone."""
    kind, truth = KINDS[name], truths(name)
    wrong = 3 * max(kind.high, kind.median)
    if kind.unit == "same":
        count = 1 + int(kind.high * SEVERAL)
        shown = [*["another"] * count, *truth[count:]]
    else:
        each = truth * (1 + wrong) if kind.unit == "%" else truth + wrong
        shown = np.where(np.arange(SEVERAL) % 10 == 0, each, truth)
    assert not judged(name, shown, truth).met


@EVERY
def test_a_figure_that_is_unknown_or_missing_is_found(name):
    """A kind without comparisons is not within its bound, and neither is an unknown figure."""
    assert not judged(name, [], []).met
    if KINDS[name].unit != "same":
        assert not judged(name, [float("nan")], [1.0]).met
    with pytest.raises(ValueError, match="zip"):
        judged(name, truths(name)[:-1], truths(name))


@pytest.mark.parametrize("planted", [0.0, 2.0], ids=["as they are", "wrong"])
def test_figures_without_ranks(planted):
    """Plans, topology files and costs agree with arithmetic by hand, unless they are made wrong."""
    table = Table(planted)
    arithmetic.measure(table)
    rows = [row for row in table.rows() if row.kind.group == "arithmetic"]
    assert all(len(row.differences) for row in rows)
    assert [row.kind.name for row in rows if row.met == bool(planted)] == []
    text = page(table, (0.0, 0.0), 60.0)
    assert f"- Result: {0 if planted else len(rows)} of {len(rows)} kinds" in text
    assert text.count("**not met**") == (len(rows) if planted else 0)
    assert text.count("not measured in this run") == len(KINDS) - len(rows)


def test_the_published_page_has_every_kind():
    """It is written by `make truth`, and says of each kind how it was checked, or why not."""
    text = PAGE.read_text()
    assert [name for name in (*KINDS, *NOT_CHECKED) if f"| {name} |" not in text] == []
    assert {kind.group for kind in KINDS.values()} == set(GROUPS)


def test_bytes_of_a_connection_count_once():
    """Those that were sent again are not counted, and sequence numbers may begin again."""
    first = (1 << 32) - 1500
    sent = [(0, 1000), (1000, 1000), (1000, 1000), (2000, 500), (2500, 0)]
    packets = np.zeros(len(sent), PACKET)
    for place, (offset, payload) in enumerate(sent):
        packets[place]["sequence"] = (first + offset) % (1 << 32)
        packets[place]["payload"] = payload
    assert stream_bytes(packets) == 2500


def test_a_packet_is_parsed():
    """A frame of Ethernet with IPv4 and TCP, without options, and 100 bytes."""
    internet = bytes([0x45, 0, 0, 140, *[0] * 4, 64, 6, 0, 0, 10, 64, 1, 1, 10, 64, 1, 2])
    tcp = (4000).to_bytes(2, "big") + (5000).to_bytes(2, "big") + (7).to_bytes(4, "big")
    frame = bytes(12) + b"\x08\x00" + internet + tcp + bytes([0, 0, 0, 0, 0x50]) + bytes(107)
    assert parse(frame) == (140, 40, (1, 2), 4000 << 16 | 5000, 7)
    assert parse(frame[:23] + b"\x11" + frame[24:]) is None
