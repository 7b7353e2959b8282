"""Read the kernel's messages about memory, GPUs and links: /dev/kmsg, `dmesg` or the journal."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.resources.unknown import Unknown

_log = logging.getLogger(__name__)

MAX_LINES = 200
_MAX_LINE_CHARACTERS = 400
_READ_S = 2.0
"""Time limit of each source."""
_RECORD_BYTES = 8192
_RELEVANT = re.compile(
    r"out of memory|oom[-_ ]|invoked oom-killer|killed process|NVRM|\bS?Xid\b|nvidia|"
    r"fallen off the bus|segfault|hung_task|blocked for more than|machine check|hardware error|"
    r"AER:|PCIe Bus Error|EDAC|mlx[45]_core.*(error|fail|down)|link is (up|down)|vmw_pvrdma",
    re.IGNORECASE,
)
_COMMANDS = (
    ("dmesg",),
    ("journalctl", "--dmesg", "--no-pager", "--quiet", "--output=short-iso", "--lines=20000"),
)


@dataclass(frozen=True)
class KernelLog:
    """Lines of the kernel's log.

    Attributes
    ----------
    source
        The device or the command that provided the lines.
    read
        Number of lines that were searched.
    lines
        The newest relevant lines, at most `MAX_LINES`, in order.
    """

    source: str
    read: int
    lines: tuple[str, ...]


def read_kernel_log(
    device: str | Path = "/dev/kmsg", commands: Sequence[Sequence[str]] = _COMMANDS
) -> KernelLog | Unknown:
    """Return the kernel's lines about OOM, Xid errors, links and hardware errors.

    Parameters
    ----------
    device
        The kernel's log device. In a container it may have the lines of the whole VM.
    commands
        Tried one after another if the device cannot be read.
    """
    reasons = []
    try:
        return _selected(str(device), _records(Path(device)))
    except OSError as error:
        reasons.append(f"{device}: {error.strerror}")
    for command in commands:
        try:
            text = _output(command)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            reasons.append(f"{command[0]}: {getattr(error, 'strerror', None) or error}")
        else:
            return _selected(command[0], text.splitlines())
    _log.info("The kernel's log cannot be read: %s", "; ".join(reasons))
    return Unknown("; ".join(reasons))


def _selected(source: str, lines: Iterator[str] | list[str]) -> KernelLog:
    kept: deque[str] = deque(maxlen=MAX_LINES)
    read = 0
    for read, line in enumerate(lines, start=1):  # noqa: B007 - the number of lines
        if _RELEVANT.search(line):
            kept.append(line[:_MAX_LINE_CHARACTERS])
    _log.debug("Lines of the kernel's log from %s: %d read, %d relevant", source, read, len(kept))
    return KernelLog(source, read, tuple(kept))


def _records(path: Path) -> Iterator[str]:
    """Yield the device's messages, with the seconds since the boot. Raise OSError at once."""
    device = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return _read_records(device)


def _read_records(device: int) -> Iterator[str]:
    deadline = time.monotonic() + _READ_S
    try:
        while time.monotonic() < deadline:
            try:
                record = os.read(device, _RECORD_BYTES)
            except BrokenPipeError:  # overwritten before it was read: read the next record
                continue
            except OSError:  # no more records, or the log cannot be read any further
                return
            if not record:
                return
            head, _, text = record.decode("utf-8", "replace").partition(";")
            fields = head.split(",")
            seconds = f"[{int(fields[2]) / 1e6:.6f}] " if _has_time(fields) else ""
            yield seconds + text.partition("\n")[0]
    finally:
        os.close(device)


def _has_time(fields: list[str]) -> bool:
    return len(fields) > 2 and fields[2].isdecimal()


def _output(command: Sequence[str]) -> str:
    """Return the output of a command; raise ValueError if it fails or prints nothing."""
    done = subprocess.run(
        command,
        capture_output=True,
        timeout=_READ_S,
        check=False,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"LC_ALL": "C"},
    )
    errors = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode or not done.stdout.strip():
        raise ValueError((errors or "it printed nothing").splitlines()[0][:_MAX_LINE_CHARACTERS])
    return done.stdout.decode("utf-8", "replace")
