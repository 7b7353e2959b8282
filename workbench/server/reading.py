"""Files that a client sends to be looked at: snapshots and NCCL's topology files."""

from __future__ import annotations

import json

from workbench.doctor import diagnose
from workbench.errors import SnapshotError
from workbench.resources import Snapshot
from workbench.resources.codec import encode
from workbench.resources.topology_snapshot import snapshot_of_topology_text

MOST_BYTES = 4 << 20
"""Of a file; a snapshot of an HGX board has some 100 kB."""
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
    name = name[:MOST_LETTERS]
    try:
        snapshot = _snapshot(name or "the file", data)
    except SnapshotError as error:
        raise SnapshotError(_cut(str(error))) from error
    answer = {
        "name": name,
        "snapshot": snapshot.to_plain(),
        "findings": encode(diagnose(snapshot)),
    }
    try:
        return json.dumps(answer, allow_nan=False)
    except ValueError as error:  # JSON has no such numbers: a browser would not read the answer
        raise SnapshotError(
            f"{name or 'the file'} holds a number that is not finite (NaN or Infinity): "
            "write it again with `workbench resources --json`"
        ) from error


def _snapshot(name: str, data: bytes) -> Snapshot:
    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        try:
            return Snapshot.from_json(data.decode("utf-8-sig"), source=name)
        except UnicodeDecodeError as error:
            raise SnapshotError(
                f"{name} is not in UTF-8 ({error.reason}): write it again with "
                "`workbench resources --json`"
            ) from error
    if b"<" not in data[:200]:
        raise SnapshotError(
            f"{name} is neither a snapshot (JSON, as `workbench resources --json` writes it) nor a "
            "topology file of NCCL (XML, as NCCL_TOPO_FILE names it)"
        )
    return snapshot_of_topology_text(data, name)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS_TOLD else f"{text[: _MOST_LETTERS_TOLD - 3]}..."
