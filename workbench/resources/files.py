"""Reading the small text files of sysfs and procfs."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from workbench.resources.unknown import Unknown

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def read_text(path: Path) -> str | Unknown:
    """Give the file's text without surrounding white space, or why there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return Unknown(_reason(path, error))


def read_int(path: Path) -> int | Unknown:
    """Give the whole number that the file holds, or why there is none."""
    text = read_text(path)
    if isinstance(text, Unknown):
        return text
    try:
        return int(text, 0)
    except ValueError:
        return Unknown(f"{path} holds {text[:40]!r}, which is no number")


def read_count(path: str) -> int | Unknown:
    """Give a counter of sysfs, or why there is none.

    As `read_int` of decimal numbers, at a third of its cost: the sampler reads
    hundreds of these files each second.
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
        return Unknown(f"{path} holds no number")


def link_name(path: Path) -> str | Unknown:
    """Give the last part of what the symbolic link points at."""
    if not path.exists():
        return Unknown(f"{path} does not exist")
    return path.resolve().name


def children(path: Path) -> list[Path]:
    """Give the entries of a folder in order; none where there is no such folder."""
    try:
        return sorted(path.iterdir(), key=lambda entry: _natural(entry.name))
    except OSError:
        return []


def pci_folder(device: Path) -> Path | None:
    """Find the PCI device that `device` is, or hangs under (as virtio devices do)."""
    if not device.exists():
        return None
    resolved = device.resolve()
    for folder in (resolved, *resolved.parents):
        if is_pci_address(folder.name):
            return folder
    return None


def is_pci_address(name: str) -> bool:
    """Whether a folder of sysfs with this name is a PCI device's."""
    return _PCI_ADDRESS.fullmatch(name) is not None


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _reason(path: Path | str, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"{path} does not exist"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{path} needs root"
    return f"{path} cannot be read: {error.strerror}"
