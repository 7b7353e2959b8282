"""A snapshot of a VM as its topology file describes it."""

from __future__ import annotations

import time
import types
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from workbench.resources.distances import all_distances
from workbench.resources.gpu_records import Gpu
from workbench.resources.gpudirect import judge
from workbench.resources.host import unknown_host
from workbench.resources.nccl_settings import NcclSettings
from workbench.resources.nccl_topology import parse_topology, read_topology
from workbench.resources.pcie import PciDevice, Pcie, PciTree
from workbench.resources.pcie_probe import state_of_file
from workbench.resources.snapshot import Nic, Probe, Snapshot
from workbench.resources.unknown import Unknown

R = TypeVar("R")

_WHY = "a topology file does not tell"
_INFINIBAND = "0x0207"


def snapshot_of_topology(path: str | Path) -> Snapshot:
    """Give what a topology file says; all else is `Unknown`.

    NCCL's settings of this process do not count: the file may be another VM's.

    Raises
    ------
    SnapshotError
        The file cannot be read, or is no topology file.
    """
    return _snapshot(read_topology(path), Path(path).stat().st_mtime)


def snapshot_of_topology_text(data: bytes, origin: str) -> Snapshot:
    """Give what the content of a topology file says, as `snapshot_of_topology` does.

    Parameters
    ----------
    data
        XML.
    origin
        Where it is from; stands for the file's path. The time is now, for the file's is not known.

    Raises
    ------
    SnapshotError
        It is no topology file.
    """
    return _snapshot(parse_topology(data, origin), time.time())


def _snapshot(tree: PciTree, taken_at: float) -> Snapshot:
    gpus = [one for one in tree.devices if one.kind == "gpu"]
    nics = [one for one in tree.devices if one.kind == "nic"]
    told = Probe("absent", f"only the topology file {tree.origin} was read", 0.0)
    return Snapshot(
        taken_at=taken_at,
        host=unknown_host(_WHY),
        gpus=tuple(_gpu(index, one) for index, one in enumerate(gpus)),
        gpu_pairs=Unknown(_WHY),
        nics=tuple(map(_nic, nics)),
        pcie=_pcie(tree),
        probes={
            "host": told,
            "gpus": _probe(gpus, "GPU"),
            "nics": _probe(nics, "NIC"),
            "pcie": _probe(tree.devices, "PCI device"),
        },
    )


def _pcie(tree: PciTree) -> Pcie:
    return Pcie(
        trees=(tree,),
        distances=tuple(all_distances(tree)),
        gpudirect=tuple(judge([tree], NcclSettings({}, Path("/nonexistent")), 0)),
        topology_file=tree.origin,
        peer_memory=Unknown(_WHY),
        topology_file_state=state_of_file(tree.origin),
    )


def _gpu(index: int, device: PciDevice) -> Gpu:
    return _partly(Gpu, index=index, pci_address=device.address)


def _nic(device: PciDevice) -> Nic:
    names = device.rdma_devices
    told = isinstance(names, tuple) and len(names) > 0
    rdma = told or str(device.pci_class).startswith(_INFINIBAND)
    return _partly(
        Nic,
        name=names[0] if isinstance(names, tuple) and names else device.address,
        kind="rdma" if rdma else "physical",
        rdma_device=names[0] if isinstance(names, tuple) and names else Unknown(_WHY),
        numa_node=device.numa_node,
        pci_address=device.address,
    )


def _probe(found: Any, what: str) -> Probe:
    return Probe("ok", "", 0.0) if found else Probe("absent", f"the file has no {what}", 0.0)


def _partly(cls: type[R], **known: Any) -> R:
    """Build a record of which only some is known: the rest is `Unknown`, or an empty tuple."""
    hints = get_type_hints(cls)
    for field in fields(cls):  # type: ignore[arg-type]  # callers give dataclasses
        if field.name not in known:
            known[field.name] = Unknown(_WHY) if _may_be_unknown(hints[field.name]) else ()
    return cls(**known)


def _may_be_unknown(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType) and Unknown in get_args(hint)
