"""Files that a client sends to be looked at: snapshots and NCCL's topology files."""

from __future__ import annotations

import json

from workbench.doctor import diagnose
from workbench.errors import SnapshotError, printable
from workbench.resources.codec import encode
from workbench.resources.sent import parse
from workbench.resources.snapshot import MOST_BYTES

__all__ = ["MOST_BYTES", "read"]
MOST_LETTERS = 200
"""Of a file's name; the rest of a longer one is cut off."""
_MOST_LETTERS_TOLD = 600  # a message that quotes the file stays readable


def read(name: str, data: bytes) -> str:
    """Read a file, and find what the doctor can; blocks for up to some seconds.

    Parameters
    ----------
    name
        The file's, for messages; no file of this machine is opened.
    data
        Its content: JSON of `Snapshot.to_json`, or XML of ``NCCL_TOPO_FILE``.

    Returns
    -------
    str
        JSON with ``name``, ``snapshot`` and ``findings``.

    Raises
    ------
    SnapshotError
        It is neither, or cannot be read.
    """
    name = printable(name[:MOST_LETTERS])
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
    return text if len(text) <= _MOST_LETTERS_TOLD else f"{text[: _MOST_LETTERS_TOLD - 3]}..."
