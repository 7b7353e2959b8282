"""Read snapshots and NCCL's topology files that a client sends."""

from __future__ import annotations

import json

from workbench.doctor import diagnose
from workbench.errors import SnapshotError, printable
from workbench.resources.codec import encode
from workbench.resources.load_snapshot import parse
from workbench.resources.snapshot import MOST_BYTES

__all__ = ["MOST_BYTES", "read"]
MOST_CHARACTERS = 200
"""Longest file name; a longer one is cut."""
_MOST_MESSAGE_CHARACTERS = 600


def read(name: str, data: bytes) -> str:
    """Read a file and run the doctor on it; this may block for some seconds.

    Parameters
    ----------
    name
        Name of the file, for messages; no file of this machine is opened.
    data
        Content of the file: JSON of `Snapshot.to_json`, or XML of ``NCCL_TOPO_FILE``.

    Returns
    -------
    str
        JSON with ``name``, ``snapshot`` and ``findings``.

    Raises
    ------
    SnapshotError
        If it is neither, or cannot be read.
    """
    name = printable(name[:MOST_CHARACTERS])
    try:
        snapshot = parse(data, name or "the file")
    except SnapshotError as error:
        raise SnapshotError(_cut(str(error))) from error
    answer = {
        "name": name,
        "snapshot": snapshot.to_plain(),
        "findings": encode(diagnose(snapshot)),
    }
    return json.dumps(answer, allow_nan=False)


def _cut(text: str) -> str:
    most = _MOST_MESSAGE_CHARACTERS
    return text if len(text) <= most else f"{text[: most - 3]}..."
