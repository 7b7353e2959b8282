"""A snapshot as a file, as text, and on the command line."""

from __future__ import annotations

import json

import pytest
from fake_machine import roce_gids, snap
from fake_nvml import DRIVER_NOT_LOADED, FakeNvml, h100, mig_a100, vgpu

from workbench.cli import main
from workbench.errors import SnapshotError
from workbench.resources import Snapshot


@pytest.fixture
def full(machine):
    pci = machine.add_pci("0000:3b:00.0")
    machine.add_interface("ens1", device=pci)
    machine.add_rdma("mlx5_0", device=pci, link_layer="Ethernet", gids=roce_gids("ens1"))
    return snap(machine, FakeNvml(h100(), vgpu(), mig_a100()))


def test_a_snapshot_of_an_earlier_workbench(full):
    """A field that was added later is unknown, with that reason; all others must be there."""
    plain = full.to_plain()
    del plain["pcie"]["topology_file_state"]
    state = Snapshot.from_plain(plain).pcie.topology_file_state
    assert "did not record it" in state.reason


def test_what_a_terminal_would_obey_is_written_out(full):
    """A snapshot that was sent cannot colour the terminal, turn its text round, or break it."""
    plain = full.to_plain()
    plain["host"]["hostname"] = "\x1b[31mvm\u202e\ud800 \u00e9"
    snapshot = Snapshot.from_json(json.dumps(plain))
    assert snapshot.host.hostname == r"\x1b[31mvm\u202e\ud800 é"
    str(snapshot).encode()


def test_a_version_of_any_length(full):
    """A file whose version is a page long is refused in a line."""
    with pytest.raises(SnapshotError, match="is a snapshot of version 'xxx") as raised:
        Snapshot.from_plain({**full.to_plain(), "version": "x" * 10_000})
    assert len(str(raised.value)) < 300


def test_json_round_trip(full, tmp_path):
    """A snapshot comes back from its file equal; what is unknown stays unknown."""
    file = tmp_path / "vm.json"
    file.write_text(full.to_json())
    assert Snapshot.load(file) == full
    plain = json.loads(full.to_json())
    assert plain["version"] == 2
    assert plain["gpus"][0]["vgpu_profile"] == {"unknown": "not a vGPU"}


def test_json_has_no_null(full):
    """Nothing in a snapshot is null: a value is there, or its reason is."""
    assert ": null" not in full.to_json()


def test_snapshot_cut_in_half(full, tmp_path):
    """The error for a truncated file has its name and what to do."""
    file = tmp_path / "half.json"
    file.write_text(full.to_json()[: len(full.to_json()) // 2])
    with pytest.raises(SnapshotError, match=r"half\.json is not complete JSON.*truncated"):
        Snapshot.load(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "version 1, and this workbench reads version 2"),
        ({"gpus": {"0": 1}}, "gpus: expected"),
        ({"taken_at": True}, "taken_at: expected float, found True"),
        ({"host": {"hostname": "a"}}, r"host\.hypervisor is missing"),
    ],
)
def test_snapshot_that_does_not_fit(full, change, message):
    """A snapshot of another version, or with other things in it, is refused by name."""
    data = {**json.loads(full.to_json()), **change}
    with pytest.raises(SnapshotError, match=message):
        Snapshot.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["[]", "{}", "3"])
def test_not_a_snapshot(text):
    """JSON of another kind is no snapshot."""
    with pytest.raises(SnapshotError, match="not a snapshot"):
        Snapshot.from_json(text)


def test_no_such_file(tmp_path):
    """A file that is not there is an error of ours, with its name."""
    with pytest.raises(SnapshotError, match=r"nothing\.json"):
        Snapshot.load(tmp_path / "nothing.json")


def test_snapshot_reads_well(full):
    """As text it names every GPU and NIC, with units for people."""
    text = str(full)
    assert "NVIDIA H100 80GB HBM3, 79.65 GiB, passthrough, at 0000:53:00.0" in text
    assert "vGPU A100-4C" in text
    assert "ens1  Ethernet, active, 400 Gb/s, MTU 1500, RDMA by mlx5_0 (rdma)" in text


def test_absent_parts_read_well(machine):
    """A missing device is reported with its reason, not left out."""
    text = str(snap(machine, FakeNvml(init_error=DRIVER_NOT_LOADED)))
    assert "GPUs: none (the NVIDIA driver is not loaded)" in text


# The command line


def test_command_line(full, tmp_path, capsys):
    """`workbench resources` shows this VM or a file's, as text or as JSON that loads again."""
    assert main(["resources"]) == 0
    assert capsys.readouterr().out.startswith("Host ")
    file = tmp_path / "vm.json"
    file.write_text(full.to_json())
    assert main(["resources", "--file", str(file), "--json"]) == 0
    assert Snapshot.from_json(capsys.readouterr().out) == full


def test_command_line_with_a_broken_file(tmp_path, capsys):
    """A file that is no snapshot is one message and status 1."""
    file = tmp_path / "vm.json"
    file.write_text("{")
    assert main(["resources", "--file", str(file)]) == 1
    told = capsys.readouterr()
    assert "vm.json is not complete JSON" in told.err
    assert told.out == ""
