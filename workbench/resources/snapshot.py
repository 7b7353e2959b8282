"""What one VM was given: frozen records, with their JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from workbench.errors import SnapshotError
from workbench.resources.codec import decode, encode, shortly
from workbench.resources.gpus.records import Gpu, GpuPair
from workbench.resources.host.record import Host
from workbench.resources.nics.records import Nic
from workbench.resources.pcie.records import Pcie
from workbench.resources.unknown import Unknown
from workbench.safefiles import load_json, read_file

if TYPE_CHECKING:
    from workbench.resources.distance import Distance
    from workbench.resources.naming import DeviceLike

_PARTS = ("host", "gpus", "nics", "pcie")

MOST_BYTES = 4 << 20
"""Of a snapshot's file; that of an HGX board has some 100 kB."""
MOST_GPUS = 256
"""The most that one system has are 16 GPUs, each cut into 7 MIG devices: 112."""
MOST_NICS = 2_048
"""A host of containers has some hundred virtual interfaces, with SR-IOV some hundred more."""


@dataclass(frozen=True)
class Probe:
    """How one part of the snapshot was come by.

    Attributes
    ----------
    status
        ``"ok"``; ``"absent"``: no such hardware or driver; ``"failed"``: something is wrong;
        ``"unknown"``: what was read does not say whether there is any.
    reason
        Why, in plain words; empty where ok.
    elapsed_ms
        Milliseconds it took.
    """

    status: str
    reason: str
    elapsed_ms: float


@dataclass(frozen=True)
class Snapshot:
    """What one VM was given, at one moment.

    Attributes
    ----------
    taken_at
        Seconds since the epoch.
    host, gpus, nics, pcie
        The parts.
    gpu_pairs
        What is between every two GPUs.
    probes
        For each part how it was come by: ``snapshot.probes["gpus"].reason``.
    """

    VERSION: ClassVar[int] = 2
    MOST_ENTRIES: ClassVar[Mapping[str, int]] = {"gpus": MOST_GPUS, "nics": MOST_NICS}

    taken_at: float
    host: Host
    gpus: tuple[Gpu, ...]
    gpu_pairs: tuple[GpuPair, ...] | Unknown
    nics: tuple[Nic, ...]
    pcie: Pcie | Unknown
    probes: Mapping[str, Probe]

    def to_plain(self) -> dict[str, Any]:
        """Give the snapshot as plain JSON values."""
        return {"version": self.VERSION, **encode(self)}

    def to_json(self) -> str:
        """Give the snapshot as JSON text, to be sent and loaded elsewhere."""
        return json.dumps(self.to_plain(), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "the text") -> Snapshot:
        """Read what `to_json` wrote; `source` is where it is from, for messages.

        Raises
        ------
        SnapshotError
            The text is cut short, of another version, or no snapshot at all.
        """
        return _from_json(text, source)

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Snapshot:
        """Read what `to_plain` gave.

        Raises
        ------
        SnapshotError
            It is of another version, or no snapshot at all.
        """
        return _from_plain(data, "what was given")

    @classmethod
    def load(cls, path: str | Path) -> Snapshot:
        """Read a file that holds what `to_json` wrote.

        Raises
        ------
        SnapshotError
            The file cannot be read, is cut short, of another version, or no snapshot.
        """
        try:
            data = read_file(path, MOST_BYTES)
        except OSError as error:
            raise SnapshotError(f"cannot read the snapshot {path}: {error.strerror}") from error
        return _from_json(data, str(path))

    def distance(self, a: DeviceLike, b: DeviceLike) -> Distance | Unknown:
        """Say how far two GPUs or NICs are apart: what the data between them crosses.

        Parameters
        ----------
        a, b
            Records of this snapshot, GPUs' indices, or names: a UUID, an interface, an
            RDMA device, a PCI address.

        Returns
        -------
        Distance or Unknown
            By the source that NCCL goes by. Where no source reports NVLinks, as in most
            topology files and vGPU guests, the way over PCIe.

        Raises
        ------
        UsageError
            There is no such device in this VM.
        """
        from workbench.resources.nearness import nearness  # imports this module's names

        return nearness(self, a, b)

    @classmethod
    def from_nccl_topology(cls, path: str | Path) -> Snapshot:
        """Give a VM as its topology file (``NCCL_TOPO_FILE``) describes it.

        Raises
        ------
        SnapshotError
            The file cannot be read, or is no topology file.
        """
        from workbench.resources.topology_snapshot import snapshot_of_topology  # imports this

        return snapshot_of_topology(path)

    def to_nccl_topology(self) -> str:
        """Give the text of a topology file: what NCCL is told here, else what sysfs shows.

        Raises
        ------
        SnapshotError
            The snapshot has no PCIe tree with a GPU or a NIC.
        """
        from workbench.resources.pcie.nccl_topology_text import topology_text

        if isinstance(self.pcie, Unknown):
            raise SnapshotError(f"no topology can be written: PCIe is {self.pcie}")
        for tree in self.pcie.trees:
            if any(device.kind not in ("bridge", "other") for device in tree.devices):
                return topology_text(tree)
        raise SnapshotError(
            "no topology can be written: this VM shows neither a GPU nor a NIC on PCI; "
            "take the snapshot where the GPUs are"
        )

    def __str__(self) -> str:
        """Summarise the snapshot for a terminal."""
        from workbench.resources.summary import lines  # summary imports this module

        return "\n".join(lines(self))


def _from_json(text: str | bytes, source: str) -> Snapshot:
    try:
        data = load_json(text)
    except ValueError as error:
        raise SnapshotError(
            f"{source} is no complete JSON ({error}): it was cut short or is another kind of "
            "file; write it again with `workbench resources --json`"
        ) from error
    return _from_plain(data, source)


def _from_plain(data: Any, source: str) -> Snapshot:
    if not isinstance(data, dict) or "version" not in data:
        raise SnapshotError(
            f"{source} is no snapshot: it has no version; "
            "write one with `workbench resources --json`"
        )
    if data["version"] != Snapshot.VERSION:
        raise SnapshotError(
            f"{source} is a snapshot of version {shortly(data['version'])}; this workbench reads "
            f"version {Snapshot.VERSION}: "
            "read it with the workbench that wrote it, or take it again"
        )
    try:
        snapshot = decode(Snapshot, data, "")
        if missing := [part for part in _PARTS if part not in snapshot.probes]:
            raise SnapshotError(f"probes.{missing[0]} is missing: the file was edited")
    except SnapshotError as error:
        raise SnapshotError(f"{source} is no snapshot that can be read: {error}") from error
    return snapshot
