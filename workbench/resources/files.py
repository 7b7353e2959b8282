"""Read the small text files of sysfs and procfs."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from workbench.resources.unknown import Unknown

_CHUNK_BYTES = 1 << 16
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def read_text(path: Path) -> str | Unknown:
    """Return the text of a file, stripped, or `Unknown` with the reason."""
    # Path.read_text() takes nearly twice as long, and a snapshot of a large host reads a
    # thousand of these files.
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            data = b"".join(iter(lambda: os.read(file, _CHUNK_BYTES), b""))
        finally:
            os.close(file)
        return data.decode(errors="replace").strip()
    except OSError as error:
        return Unknown(_reason(path, error))


def find_line(path: Path, start: str) -> str | Unknown:
    """Return the rest of the first line that begins with `start`, or `Unknown` with the reason."""
    text = read_text(path)
    if isinstance(text, Unknown):
        return text
    rests = (line.removeprefix(start) for line in text.splitlines() if line.startswith(start))
    return next(rests, Unknown(f"{path} has no {start.rstrip(':=')}"))


def read_int(path: Path) -> int | Unknown:
    """Return the integer in a file, or `Unknown` with the reason."""
    text = read_text(path)
    if isinstance(text, Unknown):
        return text
    try:
        return int(text, 0)
    except ValueError:
        return Unknown(f"{path} contains {text[:40]!r}, which is not an integer")


def read_count(path: str) -> int | Unknown:
    """Return a counter of sysfs, or `Unknown` with the reason.

    This is `read_int` for decimal numbers, at a third of the cost: the sampler reads
    hundreds of these files every second.
    """
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            return int(os.read(file, 64))
        finally:
            os.close(file)
    except OSError as error:
        return Unknown(_reason(path, error))
    except ValueError:
        return Unknown(f"{path} contains no integer")


def link_name(path: Path) -> str | Unknown:
    """Return the file name of a symbolic link's target."""
    if not path.exists():
        return Unknown(f"{path} does not exist")
    return path.resolve().name


def children(path: Path) -> list[Path]:
    """Return the entries of a folder in natural order; empty if there is no such folder."""
    try:
        return sorted(path.iterdir(), key=lambda entry: _natural_key(entry.name))
    except OSError:
        return []


def pci_folder(device: Path) -> Path | None:
    """Return the folder of the PCI device that `device` is or (as with virtio) belongs to."""
    if not device.exists():
        return None
    resolved = device.resolve()
    for folder in (resolved, *resolved.parents):
        if is_pci_address(folder.name):
            return folder
    return None


def is_pci_address(name: str) -> bool:
    """Return whether a sysfs folder of this name is a PCI device.

    Examples
    --------
    >>> is_pci_address("0000:53:00.0")
    True
    >>> is_pci_address("virtio0")
    False
    """
    return _PCI_ADDRESS.fullmatch(name) is not None


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts mlx5_2 before mlx5_10."""
    return [(int(text), "") if text.isdigit() else (-1, text) for text in re.split(r"(\d+)", name)]


def _reason(path: Path | str, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"{path} does not exist"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{path} needs root"
    return f"{path} cannot be read: {error.strerror}"
