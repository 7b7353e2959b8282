"""Files that were sent: snapshots, and topology files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.errors import SnapshotError
from workbench.resources.snapshot import Snapshot


def load(path: str | Path) -> Snapshot:
    """Read a snapshot (JSON), or a topology file (XML), whichever it is.

    Raises
    ------
    SnapshotError
        It cannot be read, or is neither.
    """
    path = Path(path).expanduser()  # in a notebook no shell has done it
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise SnapshotError(f"cannot read {path}: {error.strerror}") from error
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<"):
        return Snapshot.from_nccl_topology(path)
    return Snapshot.load(path)


def load_vms(paths: Sequence[str | Path]) -> dict[str, Snapshot]:
    """Read a file per VM; each VM is called by its host's name, or by its file's where it must.

    Raises
    ------
    SnapshotError
        One of them cannot be read.
    """
    snapshots = [load(path) for path in paths]
    hosts = [snapshot.host.hostname for snapshot in snapshots]
    named: dict[str, Snapshot] = {}
    for path, host, snapshot in zip(paths, hosts, snapshots, strict=True):
        name = host if isinstance(host, str) and hosts.count(host) == 1 else Path(path).stem
        named[name if name not in named else str(path)] = snapshot
    return named
