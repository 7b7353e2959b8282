"""Telling machines apart, also where they share a name."""

from __future__ import annotations

import os
from pathlib import Path

from workbench.resources.files import read_text
from workbench.resources.unknown import Unknown


def machine_identity(procfs: str | Path = "/proc") -> str | Unknown:
    """Return what two processes have in common exactly where they run on one machine.

    The id of this boot, the UTS namespace (what a container or a test VM has of
    its own) and the host name: machines that were cloned have one name, and
    containers of one machine one boot.
    """
    procfs = Path(procfs)
    parts = [
        read_text(procfs / "sys/kernel/random/boot_id"),
        _namespace(procfs),
        read_text(procfs / "sys/kernel/hostname"),
    ]
    for part in parts:
        if isinstance(part, Unknown):
            return part
    return " ".join(map(str, parts))


def _namespace(procfs: Path) -> str | Unknown:
    path = procfs / "self/ns/uts"
    try:
        return str(os.readlink(path))  # noqa: PTH115 - it leads to no file
    except OSError as error:
        return Unknown(f"{path} cannot be read: {error.strerror}")
