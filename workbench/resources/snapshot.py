"""Snapshot of a VM's hardware: frozen records that convert to and from JSON."""

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
"""Largest snapshot file; that of an HGX board has about 100 kB."""
MOST_GPUS = 256
"""Limit for GPUs; the largest systems have 16 GPUs with 7 MIG devices each, 112 in total."""
MOST_NICS = 2_048
"""Limit for NICs; a container host has hundreds of virtual interfaces, and more with SR-IOV."""


@dataclass(frozen=True)
class Probe:
    """Result of probing one part of the snapshot.

    Attributes
    ----------
    status
        ``"ok"``; ``"absent"``: no such hardware or driver; ``"failed"``: something is wrong;
        ``"unknown"``: the source does not say whether there is any.
    reason
        Why the status is not ok; empty if it is.
    elapsed_ms
        Duration in milliseconds.
    """

    status: str
    reason: str
    elapsed_ms: float


@dataclass(frozen=True)
class Snapshot:
    """Hardware and limits of one VM at one point in time.

    Attributes
    ----------
    taken_at
        Seconds since the epoch.
    host, gpus, nics, pcie
        The parts.
    gpu_pairs
        The connection between each pair of GPUs.
    probes
        Result of probing each part: ``snapshot.probes["gpus"].reason``.
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
        """Return the snapshot as JSON values."""
        return {"version": self.VERSION, **encode(self)}

    def to_json(self) -> str:
        """Return the snapshot as JSON text, which can be loaded on another machine."""
        return json.dumps(self.to_plain(), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "the text") -> Snapshot:
        """Create a snapshot from the text of `to_json`; `source` names it in messages.

        Raises
        ------
        SnapshotError
            If the text is truncated, of another version, or not a snapshot.
        """
        return _from_json(text, source)

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Snapshot:
        """Create a snapshot from the result of `to_plain`.

        Raises
        ------
        SnapshotError
            If it is of another version, or not a snapshot.
        """
        return _from_plain(data, "what was given")

    @classmethod
    def load(cls, path: str | Path) -> Snapshot:
        """Load a file with the text of `to_json`.

        Raises
        ------
        SnapshotError
            If the file cannot be read, is truncated, of another version, or not a snapshot.
        """
        try:
            data = read_file(path, MOST_BYTES)
        except OSError as error:
            raise SnapshotError(f"cannot read the snapshot {path}: {error.strerror}") from error
        return _from_json(data, str(path))

    def distance(self, a: DeviceLike, b: DeviceLike) -> Distance | Unknown:
        """Return the distance of two GPUs or NICs: the interconnect between them.

        Parameters
        ----------
        a, b
            Records of this snapshot, GPUs' indices, or names: a UUID, an interface, an
            RDMA device, a PCI address.

        Returns
        -------
        Distance or Unknown
            By the source that NCCL uses. If no source reports NVLinks, as in most
            topology files and vGPU guests, the distance over PCIe.

        Raises
        ------
        UsageError
            If there is no such device in this VM.
        """
        from workbench.resources.device_distance import device_distance  # a circular import

        return device_distance(self, a, b)

    @classmethod
    def from_nccl_topology(cls, path: str | Path) -> Snapshot:
        """Create a snapshot from a VM's topology file (``NCCL_TOPO_FILE``).

        Raises
        ------
        SnapshotError
            If the file cannot be read, or is not a topology file.
        """
        from workbench.resources.topology_snapshot import snapshot_of_topology  # circular

        return snapshot_of_topology(path)

    def to_nccl_topology(self) -> str:
        """Return the text of a topology file, from this VM's topology file or else from sysfs.

        Raises
        ------
        SnapshotError
            If the snapshot has no PCIe tree with a GPU or a NIC.
        """
        from workbench.resources.pcie.nccl_topology_text import topology_text

        if isinstance(self.pcie, Unknown):
            raise SnapshotError(f"no topology can be written: PCIe is {self.pcie}")
        for tree in self.pcie.trees:
            if any(device.kind not in ("bridge", "other") for device in tree.devices):
                return topology_text(tree)
        raise SnapshotError(
            "no topology can be written: this VM shows neither a GPU nor a NIC on PCI. "
            "Take the snapshot on the VM with the GPUs."
        )

    def __str__(self) -> str:
        """Return a summary for a terminal."""
        from workbench.resources.summary import lines  # a circular import

        return "\n".join(lines(self))


def _from_json(text: str | bytes, source: str) -> Snapshot:
    try:
        data = load_json(text)
    except ValueError as error:
        raise SnapshotError(
            f"{source} is not complete JSON ({error}): it was truncated or is another kind of "
            "file. Write it again with `workbench resources --json`."
        ) from error
    return _from_plain(data, source)


def _from_plain(data: Any, source: str) -> Snapshot:
    if not isinstance(data, dict) or "version" not in data:
        raise SnapshotError(
            f"{source} is not a snapshot: it has no version. "
            "Write one with `workbench resources --json`."
        )
    if data["version"] != Snapshot.VERSION:
        raise SnapshotError(
            f"{source} is a snapshot of version {shortly(data['version'])}, and this workbench "
            f"reads version {Snapshot.VERSION}. Read it with the workbench that wrote "
            "it, or take it again."
        )
    try:
        snapshot = decode(Snapshot, data, "")
        if missing := [part for part in _PARTS if part not in snapshot.probes]:
            raise SnapshotError(f"probes.{missing[0]} is missing: the file was edited")
    except SnapshotError as error:
        raise SnapshotError(f"{source} is not a valid snapshot: {error}") from error
    return snapshot
