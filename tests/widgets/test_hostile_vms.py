"""Text of a remote VM or a page is kept printable, or dropped."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from pathlib import Path

import pytest
from hostile import RAW, controls, mutated_json
from large_snapshots import HGX

from workbench.cluster import Cluster
from workbench.cluster.launchers.preflight import Preflight, Survey
from workbench.doctor import Finding
from workbench.errors import (
    CellError,
    ClusterError,
    HorovodMissing,
    SnapshotError,
    StartFailed,
    UsageError,
    WireError,
    printable,
)
from workbench.resources import Snapshot
from workbench.widgets.hosts_view import HostsView
from workbench.widgets.table import Table
from workbench.wire.agent_messages import MARK, MessageReader
from workbench.wire.message import VERSION, Message

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b1m\u202e\u2066\x7f\x00\ud800"


def test_what_is_printable():
    """Escapes are written out; what people write in any script stays, as do line ends asked for."""
    assert printable("vm1 é 漢字 🚀") == "vm1 é 漢字 🚀"
    assert printable("a\nb\x1b") == "a\\nb\\x1b"
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"
    assert controls(printable(ESCAPES)) == set()
    printable(ESCAPES).encode()


@pytest.mark.parametrize(
    "error",
    [UsageError(ESCAPES), StartFailed(ESCAPES, vm=ESCAPES, fix=ESCAPES), SnapshotError(ESCAPES),
     HorovodMissing(ESCAPES, vm=ESCAPES, fix=ESCAPES)],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_errors_that_quote(error):
    """A message has no control characters, also as a notebook shows it."""
    assert controls(str(error)) == set()
    assert controls("\n".join(error._render_traceback_())) == set()
    str(error).encode()


def test_the_traceback_of_a_cell_keeps_its_colours():
    assert str(CellError("\x1b[31mred\x1b[0m")) == "\x1b[31mred\x1b[0m"


def test_answers_of_a_vm_as_text():
    """A VM's name, versions and reasons in `%doctor --hosts`, and in any table."""
    snapshot = json.loads(HGX.read_text())
    snapshot["host"]["hostname"] = {"unknown": ESCAPES}
    snapshot["gpus"][0]["driver_version"] = {"unknown": ESCAPES}
    found = Survey(
        Preflight(
            [{"VM": ESCAPES, "driver": ESCAPES}],
            [Finding("x", "error", *[ESCAPES] * 5)],
            [],
        ),
        {"vm1": Snapshot.from_plain(snapshot)},
    )
    assert controls(repr(HostsView(found))) == set()
    assert controls(repr(Table(ESCAPES, ["a"], [[ESCAPES]], [ESCAPES]))) == set()


@pytest.mark.parametrize("raw", [*RAW, "", "[]", "[1]", '["a", 5]', "[[[", '{"a": 1}', "null"],
                         ids=lambda raw: raw[:12])  # fmt: skip
def test_lines_and_messages_of_any_content(raw):
    """They are read, or raise an error of the product."""
    reported = []
    for name in (b"", b"Hello", b"Answer"):
        line = b'["%s", %s]' % (name, raw.encode()) if name else raw.encode()
        MessageReader(reported.append).feed(MARK + line + b"\n")
    assert len(reported) == 3
    for read in (
        lambda: Message.decode([bytes([VERSION]), b"RankState", raw.encode()]),
        lambda: Message.decode([bytes([VERSION]), b"\xff", b"{}"]),
    ):
        with contextlib.suppress(WireError):
            read()


@pytest.mark.slow
def test_a_vm_that_answers_anything():
    """Its snapshot is read or refused; a number of any size is no fault of ours."""
    plain = json.loads(HGX.read_text())
    for seed in range(60):
        text = mutated_json(plain, seed).replace("NaN", "1")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            continue
        try:
            shown = str(Snapshot.from_plain(data))
        except SnapshotError as error:
            shown = str(error)
        assert controls(shown) == set()


@pytest.mark.parametrize(
    "state",
    ["", "[", "[]", "[" * 50_000, '{"name": 5}', '{"name": "x"}', '{"name": "\\ud800"}',
     '{"name": "x", "address": "127.0.0.1", "options": {}, "engines": {}}',
     '{"name": "x", "address": "", "options": {"hosts": 5, "ssh_config": 6}, "engines": {}}'],
    ids=lambda state: state[:30],
)  # fmt: skip
def test_a_damaged_state_of_a_cluster(monkeypatch, state):
    """A cluster that cannot be attached to is one error; so is a pipe where its file should be."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as holder:
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", folder)
        own = Path(folder) / "workbench-x"
        own.mkdir()
        holder.bind(str(own / "controller.sock"))
        (own / "cluster.json").write_text(state)
        (Path(folder) / "workbench-y").mkdir()
        os.mkfifo(Path(folder) / "workbench-y/cluster.json")
        with pytest.raises(ClusterError) as raised:
            Cluster.attach()
        assert controls(str(raised.value)) == set()
