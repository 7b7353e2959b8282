"""Lines of the kernel's log, from the device or from a command."""

import os

import pytest
from timers import eventually

from workbench.resources import Unknown
from workbench.resources.kernel_log import MAX_LINES, read_kernel_log

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
OOM = "Out of memory: Killed process 4242 (python) total-vm:123kB"
LOG = ["eth0: entered promiscuous mode", XID, "usb 1-1: new device", OOM]


def printing(*lines):
    return ["printf", "%s\\n", *lines]


def test_only_relevant_lines_of_a_command(tmp_path):
    """The first command that works is used when the device is not there."""
    log = read_kernel_log(tmp_path / "none", [["false"], ["no-such-command"], printing(*LOG)])
    assert log.source == "printf"
    assert log.read == 4
    assert log.lines == (XID, OOM)


def test_the_newest_lines_are_kept(tmp_path):
    lines = [f"NVRM: Xid {number} {'x' * 2000}" for number in range(MAX_LINES + 5)]
    log = read_kernel_log(tmp_path / "none", [printing(*lines)])
    assert len(log.lines) == MAX_LINES
    assert log.lines[-1].startswith(f"NVRM: Xid {MAX_LINES + 4} ")
    assert max(map(len, log.lines)) <= 400


def test_each_reason_is_named(tmp_path):
    log = read_kernel_log(tmp_path / "none", [["false"], ["no-such-command"]])
    assert isinstance(log, Unknown)
    assert "No such file or directory" in log.reason
    assert "false: it printed nothing" in log.reason


def test_a_command_that_hangs_costs_seconds(tmp_path):
    log = read_kernel_log(tmp_path / "none", [["sleep", "1000"]])
    assert "timed out" in log.reason


def test_the_device():
    """A line that was written is found, with its time."""
    try:
        device = os.open("/dev/kmsg", os.O_WRONLY)
        os.write(device, f"<6>workbench test {os.getpid()}: {XID}\n".encode())
        os.close(device)
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be written here: {error.strerror}")
    own = f"workbench test {os.getpid()}: "
    line = eventually(lambda: next((one for one in read_kernel_log().lines if own in one), None))
    assert read_kernel_log().source == "/dev/kmsg"
    assert line.startswith("[")
    assert line.endswith(XID)
