"""Which process is connected to a kept cluster, so that nobody else stops it: a small file."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from workbench.resources.process_registry import signature, signed_by
from workbench.safefiles import load_json, read_file, write_private

_FILE = "holder.json"
_MAX_BYTES = 4096


def hold(folder: Path) -> None:
    """Say that this process has the cluster of this folder now, in place of any other one."""
    # A disk that is full does not end the cluster; its holder is then not known to others.
    with contextlib.suppress(OSError):
        write_private(folder / _FILE, json.dumps(signature()))


def release(folder: Path) -> None:
    """Say that this process no longer has it, unless another one has attached since."""
    if _read(folder) == signature():
        (folder / _FILE).unlink(missing_ok=True)


def holder(folder: Path) -> int | None:
    """Return the id of the process that has it and runs; None if there is none."""
    return signed_by(_read(folder))


def _read(folder: Path) -> Any:
    try:
        return load_json(read_file(folder / _FILE, _MAX_BYTES), finite=False)
    except (OSError, ValueError):
        return None
