"""`workbench resources` and `workbench doctor` over files, and how findings read."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import replace

import pytest
from fake_machine import snap
from fake_nvml import FakeNvml, h100
from nvml_machines import hgx_h100
from pci_host import build_host
from topology_files import aws_p4d, azure_ndv4

from workbench.cli import main
from workbench.doctor import describe, diagnose
from workbench.doctor.finding import paragraphs
from workbench.resources import UNLIMITED, Snapshot


@pytest.fixture
def small(machine):
    """A VM with one GPU and 64 MiB of shared memory."""
    snapshot = snap(machine, FakeNvml(h100()))
    return replace(snapshot, host=replace(snapshot.host, shm_bytes=64 << 20))


@pytest.fixture
def files(tmp_path, machine, small):
    """Snapshots of three VMs, of which the last is unlike the others, and a topology file."""

    def well(**host):
        values = {"shm_bytes": 8 << 30, "memlock_bytes": UNLIMITED, "open_files": 65536, "cpus": 8}
        values.update(host)
        return replace(small, host=replace(small.host, **values))

    vms = {"a": well(), "b": well(hostname="vm-18"), "c": well(hostname="vm-19", cpus=2)}
    for name, snapshot in vms.items():
        gpus = tuple(replace(gpu, uuid=f"GPU-{name}") for gpu in snapshot.gpus)
        (tmp_path / f"{name}.json").write_text(replace(snapshot, gpus=gpus).to_json())
    (tmp_path / "bad.json").write_text(small.to_json())
    (tmp_path / "azure.xml").write_text(azure_ndv4())
    return tmp_path


def told(capsys, *arguments, status=0):
    assert main(list(map(str, arguments))) == status
    return capsys.readouterr().out


def unwrapped(text):
    """The words of a text, wherever the width of the terminal has broken its lines."""
    return " ".join(text.split())


# Topology files


def test_resources_of_a_topology_file(files, capsys):
    """The VM that a vendor's file describes is shown with its distances."""
    text = told(capsys, "resources", "--topology", files / "azure.xml")
    assert text.startswith("Host: unknown (only the topology file")
    assert "PCIe distances, by nccl topology file" in text
    plain = json.loads(told(capsys, "resources", "--json", "--topology", files / "azure.xml"))
    assert len(plain["gpus"]) == 8


def test_doctor_of_a_topology_file(files, capsys):
    """A good file has no findings; one that NCCL stops at is an error."""
    good = unwrapped(told(capsys, "doctor", "--topology", files / "azure.xml"))
    assert "nothing wrong in" in good
    (files / "bad.xml").write_text(f'<?xml version="1.0"?>\n{aws_p4d()}')
    bad = unwrapped(told(capsys, "doctor", files / "bad.xml", status=1))
    assert "XML declaration" in bad


def test_writing_a_topology_file(machine, files, capsys):
    """The topology of a VM is written for NCCL, and is read again with the same distances."""
    host = snap(build_host(machine), hgx_h100())
    (files / "host.json").write_text(host.to_json())
    new = files / "new.xml"
    text = told(capsys, "resources", "--file", files / "host.json", "--write-topology", new)
    assert f"NCCL_TOPO_FILE={new}" in text
    assert Snapshot.from_nccl_topology(new).to_nccl_topology() == host.to_nccl_topology()
    nowhere = files / "none" / "new.xml"
    command = ["resources", "--topology", str(new), "--write-topology", str(nowhere)]
    assert main(command) == 1
    assert "cannot write the topology file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["resources", "doctor"])
def test_files_that_cannot_be_read(command, tmp_path, capsys):
    """No file, and a file that is neither, are one line on standard error."""
    (tmp_path / "x.xml").write_text("<html>")
    for option, file in (("--topology", "none.xml"), ("--topology", "x.xml"), ("--file", "none")):
        assert main([command, option, str(tmp_path / file)]) == 1
        error = capsys.readouterr().err
        assert file in error
        assert "Traceback" not in error


# Several VMs


def test_doctor_of_several_vms(files, capsys):
    """Differences between the VMs come first, then each VM by its host's name."""
    text = told(capsys, "doctor", *(files / f"{name}.json" for name in "abc"))
    assert text.startswith("3 VMs compared: 1 warning.")
    assert "vm-19 has 2 usable cores; the other 2 have" in unwrapped(text)
    assert "\n\nvm-18 (1 GPU, no NICs): none of" in text


def test_an_error_in_one_of_several_vms(files, capsys):
    """Its status is 1; two VMs of one name are called by their files."""
    text = told(capsys, "doctor", files / "a.json", files / "bad.json", status=1)
    assert "\na (1 GPU, no NICs)" in text
    assert "\nbad (1 GPU, no NICs): 1 error" in text


def test_files_and_options_do_not_mix(files, capsys):
    """Which VM is meant is asked back."""
    command = ["doctor", str(files / "a.json"), "--topology", str(files / "azure.xml")]
    assert main(command) == 1
    assert "Name all files as arguments" in capsys.readouterr().err


# How it reads


def test_a_finding_is_wrapped(small):
    """Labelled paragraphs, none wider than was asked for, commands in one piece."""
    (finding,) = (one for one in diagnose(small) if one.rule == "shm_size")
    for width in (60, 100):
        lines = paragraphs(finding, width).splitlines()
        assert lines[0] == "ERROR  this VM"
        assert max(map(len, lines)) <= width
        labels = [line.split()[0] for line in lines[1:] if line[2] != " "]
        assert labels == ["evidence", "why", "fix", "source"]
        assert any("`docker run --shm-size=8g`" in line for line in lines)


def test_as_wide_as_the_terminal(small, monkeypatch, capsys, tmp_path):
    """The terminal's columns bound every line."""
    file = tmp_path / "vm.json"
    file.write_text(small.to_json())
    monkeypatch.setenv("COLUMNS", "72")
    text = told(capsys, "doctor", "--file", file, status=1)
    assert max(map(len, text.splitlines())) <= 72


def test_the_verdict_comes_first(small):
    """One line says what was checked, and the result."""
    findings = diagnose(small)
    first = describe(small, findings).splitlines()[0]
    assert first.startswith("vm-17 (1 GPU, no NICs): 1 error")


def test_resources_in_a_terminal(files):
    """In a terminal long lines are broken where it ends; in a pipe they are as they are."""
    command = [sys.executable, "-m", "workbench", "resources", "--file", str(files / "a.json")]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(command, stdout=theirs, stdin=theirs, env=environment) as process:
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while part := os.read(ours, 4096):
                text += part
    os.close(ours)
    assert process.returncode == 0
    lines = text.decode().splitlines()
    assert "Host vm-17" in lines
    assert max(map(len, lines)) <= 60
    piped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert max(map(len, piped.splitlines())) > 60
