"""Store in a small file which process is connected to a kept cluster.

Other processes do not stop a cluster that has such a holder.
"""

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
    """Record this process as the holder of the cluster in this folder, instead of any other.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     hold(Path(name))
    ...     is_held = holder(Path(name)) == os.getpid()
    ...     release(Path(name))
    ...     print(is_held, holder(Path(name)))
    True None
    """
    # a full disk must not end the cluster; other processes then do not know the holder
    with contextlib.suppress(OSError):
        write_private(folder / _FILE, json.dumps(signature()))


def release(folder: Path) -> None:
    """Remove this process as the holder, unless another process has attached since."""
    if _read(folder) == signature():
        (folder / _FILE).unlink(missing_ok=True)


def holder(folder: Path) -> int | None:
    """Return the id of the running process that holds the cluster, or None."""
    return signed_by(_read(folder))


def _read(folder: Path) -> Any:
    try:
        return load_json(read_file(folder / _FILE, _MAX_BYTES), finite=False)
    except (OSError, ValueError):
        return None
