"""Distinguish machines, even if they have the same name."""

from __future__ import annotations

import os
from pathlib import Path

from workbench.resources.files import read_text
from workbench.resources.unknown import Unknown


def machine_identity(procfs: str | Path = "/proc") -> str | Unknown:
    """Return a text that is equal for two processes only if they run on the same machine.

    It consists of the boot id, the UTS namespace (which a container or test VM does not
    share) and the host name: cloned machines have the same name, and containers on one
    machine have the same boot id.
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
        return str(os.readlink(path))  # noqa: PTH115 - the target is not a file
    except OSError as error:
        return Unknown(f"{path} cannot be read: {error.strerror}")
