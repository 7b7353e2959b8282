"""Convert topology files to snapshots, and snapshots to topology files."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from workbench.errors import SnapshotError
from workbench.resources.gpus.records import Gpu, NvLink, NvLinks
from workbench.resources.host.probe import unknown_host
from workbench.resources.nccl_settings import NcclSettings
from workbench.resources.nics.records import Nic
from workbench.resources.pcie.distances import all_distances, gpudirect_pairs, of_unknown_kind
from workbench.resources.pcie.nccl_xml import topology_text
from workbench.resources.pcie.probe import topology_file_state
from workbench.resources.pcie.records import PciDevice, Pcie, PciTree, TopologyNvlink
from workbench.resources.snapshot_record import Probe, SnapshotRecord
from workbench.resources.unknown import Unknown
from workbench.safefiles import write_regular

R = TypeVar("R")

_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/")
_NOT_IN_FILE = "not in a topology file"
_INFINIBAND = "0x0207"
# Classes of NVLink's peers in NCCL's src/graph/topo.cc.
_PEER_KINDS = (("0x068000", "switch"), ("0x068001", "npu"), ("0x03", "gpu"))
_ANY_SWITCH = "fffffff:"
_SM = re.compile(r"[0-9]{2,4}")
_MBPS = re.compile(r"[0-9]{1,9}")


def snapshot_from_tree(tree: PciTree, taken_at: float) -> SnapshotRecord:
    """Return a snapshot with the content of a topology file; all else is `Unknown`.

    NCCL's settings of this process are ignored: the file may belong to another VM.
    """
    gpus = [device for device in tree.devices if device.kind == "gpu"]
    nics = [device for device in tree.devices if device.kind == "nic"]
    host_probe = Probe("absent", f"only the topology file {tree.origin} was read", 0.0)
    return SnapshotRecord(
        taken_at=taken_at,
        host=unknown_host(_NOT_IN_FILE),
        gpus=tuple(_gpu(index, device, tree) for index, device in enumerate(gpus)),
        gpu_pairs=Unknown(_NOT_IN_FILE),
        nics=tuple(_nic(device, tree) for device in nics),
        pcie=_pcie(tree),
        probes={
            "host": host_probe,
            "gpus": _probe(gpus, "GPU", tree),
            "nics": _probe(nics, "NIC", tree),
            "pcie": Probe("ok", "", 0.0),
        },
    )


def to_topology_text(snapshot: SnapshotRecord) -> str:
    """Return the text of a topology file; see `Snapshot.to_nccl_topology`."""
    if isinstance(snapshot.pcie, Unknown):
        raise SnapshotError(
            f"cannot write a topology file: PCIe is {snapshot.pcie}. "
            "Take the snapshot on the VM with the GPUs."
        )
    for tree in snapshot.pcie.trees:
        if any(device.kind not in ("bridge", "other") for device in tree.devices):
            return topology_text(tree)
    raise SnapshotError(
        "cannot write a topology file: this VM shows neither a GPU nor a NIC on PCI. "
        "Take the snapshot on the VM with the GPUs."
    )


def write_topology(snapshot: SnapshotRecord, path: str | Path) -> None:
    """Write `Snapshot.to_nccl_topology` to a file.

    Raises
    ------
    SnapshotError
        If the snapshot has no PCIe tree with a GPU or NIC, or the file cannot be written.
    """
    text = to_topology_text(snapshot)
    try:
        if str(path).startswith(_STREAMS):
            Path(path).write_text(text, encoding="utf-8")
        else:
            write_regular(path, text)
    except OSError as error:
        raise SnapshotError(
            f"cannot write the topology file {path}: {error.strerror}. Name a regular file or a "
            "new one."
        ) from error


def _pcie(tree: PciTree) -> Pcie:
    return Pcie(
        trees=(tree,),
        distances=tuple(all_distances(tree)),
        gpudirect=tuple(gpudirect_pairs([tree], NcclSettings({}, Path("/nonexistent")), 0)),
        topology_file=tree.origin,
        peer_memory=Unknown(_NOT_IN_FILE),
        topology_file_state=topology_file_state(tree),
    )


def _gpu(index: int, device: PciDevice, tree: PciTree) -> Gpu:
    sm = tree.file_attributes(device.address).get("sm", "")
    return _partly(
        Gpu,
        index=index,
        pci_address=device.address,
        compute_capability=f"{sm[:-1]}.{sm[-1]}" if _SM.fullmatch(sm) else Unknown(_NOT_IN_FILE),
        nvlink=_nvlink(device, tree),
    )


def _nvlink(device: PciDevice, tree: PciTree) -> NvLinks | Unknown:
    """Return the links that the file lists; a link that it omits may still exist."""
    listed = [link for link in tree.nvlinks if link.gpu == device.address]
    single_links = [
        link for link in listed for _ in range(link.count if isinstance(link.count, int) else 1)
    ]
    links = tuple(_link(number, link) for number, link in enumerate(single_links))
    not_in_file = Unknown(_NOT_IN_FILE)
    return NvLinks(links, not_in_file, not_in_file) if links else not_in_file


def _link(number: int, listed: TopologyNvlink) -> NvLink:
    peer = next(
        (peer for start, peer in _PEER_KINDS if str(listed.peer_class).startswith(start)), None
    )
    return NvLink(
        number=number,
        state="up",
        version=Unknown(_NOT_IN_FILE),
        peer=peer or Unknown(f"the topology file gives class {listed.peer_class}"),
        peer_pci_address=Unknown("NCCL could not identify the switch")
        if listed.peer.startswith(_ANY_SWITCH)
        else listed.peer,
        nominal_gb_per_s=Unknown(_NOT_IN_FILE),
    )


def _nic(device: PciDevice, tree: PciTree) -> Nic:
    attributes = tree.file_attributes(device.address)
    name = attributes.get("name")
    # In a topology file every network device is a "net", with RDMA or not. A NIC that is attached
    # to the CPU, without a PCI device, has an empty list of network devices.
    at_cpu = device.rdma_devices == ()
    rdma = not at_cpu and (name is not None or str(device.pci_class).startswith(_INFINIBAND))
    return _partly(
        Nic,
        name=name or device.address,
        kind="virtual" if at_cpu else "rdma" if rdma else "physical",
        rdma_device=name if name and rdma else Unknown(_NOT_IN_FILE),
        rate_gbps=_rate_gbps(attributes.get("speed", "")),
        numa_node=device.numa_node,
        pci_address=device.address,
    )


def _rate_gbps(mbps: str) -> float | Unknown:
    is_given = _MBPS.fullmatch(mbps) and int(mbps) > 0
    return int(mbps) / 1000 if is_given else Unknown(_NOT_IN_FILE)


def _probe(devices: list[PciDevice], kind: str, tree: PciTree) -> Probe:
    if devices:
        return Probe("ok", "", 0.0)
    unclassified = of_unknown_kind(tree.devices)
    if unclassified:
        first = unclassified[0].kind
        reason = first.reason if isinstance(first, Unknown) else ""
        count = "1 device" if len(unclassified) == 1 else f"{len(unclassified)} devices"
        return Probe("unknown", f"any of {count} may be one: {reason}", 0.0)
    return Probe("absent", f"the file has no {kind}", 0.0)


def _partly(cls: type[R], **values: Any) -> R:
    """Create a record from some of its fields; the others are `Unknown` or an empty tuple."""
    hints = get_type_hints(cls)
    for field in fields(cls):  # type: ignore[arg-type]  # callers give dataclasses
        if field.name not in values:
            may_be_unknown = Unknown in get_args(hints[field.name])
            values[field.name] = Unknown(_NOT_IN_FILE) if may_be_unknown else ()
    return cls(**values)
