"""Load snapshot files and topology files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.errors import SnapshotError
from workbench.resources.snapshot import MOST_BYTES, Snapshot
from workbench.resources.topology_snapshot import snapshot_of_topology_text
from workbench.safefiles import modified_s, read_file


def load(path: str | Path) -> Snapshot:
    """Read a file that is either a snapshot (JSON) or a topology file (XML).

    Raises
    ------
    SnapshotError
        If it cannot be read, or is neither.
    """
    try:
        data = read_file(path, MOST_BYTES)
    except OSError as error:
        raise SnapshotError(f"cannot read {path}: {error.strerror}") from error
    return parse(data, str(path), modified_s(path))


def parse(data: bytes, name: str, taken_at: float | None = None) -> Snapshot:
    """Read the content of a snapshot file or topology file.

    Parameters
    ----------
    data
        Content of the file.
    name
        Name of the file, for messages.
    taken_at
        Time at which a topology file was written; now by default.

    Raises
    ------
    SnapshotError
        If it is neither.
    """
    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return Snapshot.from_json(data, name)
    if b"<" not in data[:200]:
        raise SnapshotError(
            f"{name} is neither a snapshot (JSON from `workbench resources --json`) nor a "
            "topology file of NCCL (XML, as in NCCL_TOPO_FILE)"
        )
    return snapshot_of_topology_text(data, name, taken_at)


def load_vms(paths: Sequence[str | Path]) -> dict[str, Snapshot]:
    """Read one file per VM, and name each VM by its host name, or by its file if ambiguous.

    Raises
    ------
    SnapshotError
        If one of them cannot be read.
    """
    snapshots = [load(path) for path in paths]
    hosts = [snapshot.host.hostname for snapshot in snapshots]
    named: dict[str, Snapshot] = {}
    for path, host, snapshot in zip(paths, hosts, snapshots, strict=True):
        name = host if isinstance(host, str) and hosts.count(host) == 1 else Path(path).stem
        named[name if name not in named else str(path)] = snapshot
    return named
