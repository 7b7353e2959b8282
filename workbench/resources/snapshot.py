"""Snapshot of a VM's hardware, which converts to and from JSON and NCCL's topology files."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from workbench.errors import SnapshotError
from workbench.resources.codec import decode, encode, shortened
from workbench.resources.pcie.nccl_topology import parse_topology, read_topology
from workbench.resources.snapshot_record import SnapshotRecord
from workbench.resources.summary import lines
from workbench.resources.topology_snapshot import snapshot_from_tree, to_topology_text
from workbench.safefiles import load_json, modified_s, read_file

_PROBED = ("host", "gpus", "nics", "pcie")

MAX_BYTES = 4 << 20
"""Maximum size of a snapshot file; the snapshot of an HGX board has about 100 kB."""
_MAX_BRACKETS = 100_000
"""Maximum number of opening brackets; a snapshot of the maximum size has half as many."""


@dataclass(frozen=True)
class Snapshot(SnapshotRecord):
    """Hardware and limits of one VM at one point in time; `SnapshotRecord` has its fields."""

    VERSION: ClassVar[int] = 2

    def to_plain(self) -> dict[str, Any]:
        """Return the snapshot as JSON values."""
        return {"version": self.VERSION, **encode(self)}

    def to_json(self) -> str:
        """Return the snapshot as JSON text, which can be loaded on another VM."""
        return json.dumps(self.to_plain(), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "the text") -> Snapshot:
        """Create a snapshot from the text of `to_json`; `source` names it in messages.

        Raises
        ------
        SnapshotError
            If the text is truncated, of another version, or not a snapshot.
        """
        if not isinstance(text, str | bytes):
            raise SnapshotError(
                f"from_json: a {type(text).__name__} is not text. Give the text that "
                "`workbench resources --json` writes."
            )
        try:
            data = load_json(text, max_brackets=_MAX_BRACKETS)
        except ValueError as error:
            raise SnapshotError(
                f"{source} is not complete JSON ({error}): it was truncated or is another kind of "
                "file. Write it again with `workbench resources --json`."
            ) from error
        return cls.from_plain(data, source)

    @classmethod
    def from_plain(cls, data: Any, source: str = "what was given") -> Snapshot:
        """Create a snapshot from the result of `to_plain`; `source` names it in messages.

        Raises
        ------
        SnapshotError
            If it is of another version, or not a snapshot.

        Examples
        --------
        >>> Snapshot.from_plain({"version": 1}, "old.json")
        Traceback (most recent call last):
        ...
        workbench.errors.SnapshotError: old.json is a snapshot of version 1, and this workbench
        reads version 2. Read it with the workbench that wrote it, or take it again.
        """
        if not isinstance(data, dict) or "version" not in data:
            raise SnapshotError(
                f"{source} is not a snapshot: it has no version. "
                "Write one with `workbench resources --json`."
            )
        if data["version"] != cls.VERSION:
            raise SnapshotError(
                f"{source} is a snapshot of version {shortened(data['version'])}, and this "
                f"workbench reads version {cls.VERSION}. Read it with the workbench that wrote it, "
                "or take it again."
            )
        try:
            snapshot = decode(cls, data, "")
            if missing := [name for name in _PROBED if name not in snapshot.probes]:
                raise SnapshotError(f"probes.{missing[0]} is missing: the file was edited")
        except SnapshotError as error:
            raise SnapshotError(
                f"{source} is not a valid snapshot: {str(error).rstrip('.')}. "
                "Take it again with `workbench resources --json`."
            ) from error
        return snapshot

    @classmethod
    def load(cls, path: str | Path) -> Snapshot:
        """Load a file with the text of `to_json`.

        Raises
        ------
        SnapshotError
            If the file cannot be read, is truncated, of another version, or not a snapshot.
        """
        try:
            data = read_file(path, MAX_BYTES)
        except OSError as error:
            raise SnapshotError(
                f"cannot read the snapshot {path}: {error.strerror}. "
                "Check its name and permissions."
            ) from error
        return cls.from_json(data, str(path))

    @classmethod
    def from_nccl_topology(cls, path: str | Path) -> Snapshot:
        """Create a snapshot from a VM's topology file (``NCCL_TOPO_FILE``).

        Raises
        ------
        SnapshotError
            If the file cannot be read, or is not a topology file.
        """
        return cls(**vars(snapshot_from_tree(read_topology(path), modified_s(path))))

    @classmethod
    def from_nccl_topology_text(
        cls, data: bytes, origin: str, taken_at: float | None = None
    ) -> Snapshot:
        """Create a snapshot from the content of a topology file.

        Parameters
        ----------
        data
            XML.
        origin
            Name to use in place of the file's path.
        taken_at
            When it was written, in seconds since the epoch; now by default.

        Raises
        ------
        SnapshotError
            If it is not a topology file.
        """
        if not isinstance(data, bytes):
            raise SnapshotError(
                f"from_nccl_topology_text: data of type {type(data).__name__}. Give the content of "
                "a topology file as bytes."
            )
        tree = parse_topology(data, str(origin))
        taken_at = time.time() if taken_at is None else taken_at
        return cls(**vars(snapshot_from_tree(tree, taken_at)))

    def to_nccl_topology(self) -> str:
        """Return the text of a topology file, from this VM's topology file or else from sysfs.

        Raises
        ------
        SnapshotError
            If the snapshot has no PCIe tree with a GPU or a NIC.
        """
        return to_topology_text(self)

    def __str__(self) -> str:
        """Return a summary for a terminal."""
        return "\n".join(lines(self))


def load(path: str | Path) -> Snapshot:
    """Read a file that is either a snapshot (JSON) or a topology file (XML).

    Raises
    ------
    SnapshotError
        If it cannot be read, or is neither.
    """
    try:
        data = read_file(path, MAX_BYTES)
    except OSError as error:
        raise SnapshotError(
            f"cannot read {path}: {error.strerror}. Check its name and permissions."
        ) from error
    return parse(data, str(path), modified_s(path))


def parse(data: bytes, name: str, taken_at: float | None = None) -> Snapshot:
    """Read the content of a snapshot file or topology file.

    `name` is the name of the file, for messages. `taken_at` is the time at which a topology
    file was written; now by default.

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
            "topology file of NCCL (XML, as in NCCL_TOPO_FILE). Choose one of these."
        )
    return Snapshot.from_nccl_topology_text(data, name, taken_at)


def load_vms(paths: Sequence[str | Path]) -> dict[str, Snapshot]:
    """Read one file per VM. Name each VM by its host name, or by its file if that is ambiguous."""
    snapshots = [load(path) for path in paths]
    hosts = [snapshot.host.hostname for snapshot in snapshots]
    named: dict[str, Snapshot] = {}
    for path, host, snapshot in zip(paths, hosts, snapshots, strict=True):
        name = host if isinstance(host, str) and hosts.count(host) == 1 else Path(path).stem
        named[name if name not in named else str(path)] = snapshot
    return named
