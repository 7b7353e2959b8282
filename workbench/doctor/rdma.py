"""Rules about RDMA ports: their state, rate, MTU, GID tables, device nodes and error counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from workbench.doctor.pvrdma import PVRDMA_DOWN
from workbench.doctor.rule import Case, rule
from workbench.resources import Gid, Nic, Snapshot, Unknown
from workbench.resources.nccl_ports import settings_of
from workbench.resources.nics.records import is_pvrdma
from workbench.resources.usage import NicUse, Sample

# RoCE packets carry up to 4096 bytes. With their headers, they need an Ethernet MTU of 4200.
_ENOUGH_ROCE_MTU = 4200
# Drivers of Ethernet ports that use RoCE. Others, such as irdma, may use iWARP.
_ROCE_DRIVERS = ("mlx4_core", "mlx5_core", "bnxt_en", "vmw_pvrdma")
_GID_INDEX = "NCCL_IB_GID_INDEX"
_ROCE_VERSION = "NCCL_IB_ROCE_VERSION_NUM"
_CONTAINER_FIX = (
    "`docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 ...`; in "
    "Kubernetes a resource of an RDMA device plugin."
)
_LOST_PACKETS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "out_of_buffer",
)
_BAD_SIGNAL = ("port_rcv_errors", "symbol_error", "link_downed", "link_error_recovery")
_MIN_ERRORS_PER_S = 1.0  # single errors are normal


@rule(
    "error",
    why="NCCL and MPI skip the port: traffic goes over fewer ports, or over TCP.",
    source="Linux kernel, Documentation/ABI/stable/sysfs-class-infiniband",
)
def rdma_port_not_active(snapshot: Snapshot) -> Iterator[Case]:
    """Find RDMA ports in another state than active."""
    for nic in snapshot.nics:
        if nic.kind != "rdma" or not isinstance(nic.state, str) or nic.state == "active":
            continue
        needs_subnet_manager = nic.state in ("init", "armed") and nic.link_layer == "InfiniBand"
        yield Case(
            f"port {nic.rdma_port} is in state {nic.state}",
            f"{nic.rdma_device}",
            fix="The link is up but no subnet manager has configured it: ask the administrator "
            "to start one (`systemctl start opensm` on one node, or on the switch)."
            if needs_subnet_manager
            else PVRDMA_DOWN.format(nic.name)
            if is_pvrdma(nic)
            else f"Bring the interface up (`ip link set dev {nic.name} up`) and ask the "
            "administrator to check the cable, the switch port and the VF's link state "
            "(on the host: `ip link set dev PF vf N state auto`).",
        )


@rule(
    "warning",
    why="A ring allreduce is as fast as its slowest link: this port slows all of them down.",
    source="NVIDIA, MFT documentation, mlxlink utility",
)
def rdma_port_slow(snapshot: Snapshot) -> Iterator[Case]:
    """Find active ports below the rate of another port of the same model and link layer.

    The guest cannot read the maximum rate of a model; an equal port shows it.
    """
    groups: defaultdict[tuple[str, str], list[tuple[float, Nic]]] = defaultdict(list)
    for nic in snapshot.nics:
        if nic.state != "active" or not isinstance(nic.rate_gbps, float):
            continue
        if isinstance(nic.hca_type, str) and isinstance(nic.link_layer, str):
            groups[nic.hca_type, nic.link_layer].append((nic.rate_gbps, nic))
    for group in groups.values():
        best = max(rate for rate, _ in group)
        for rate, nic in group:
            if rate < best:
                yield Case(
                    f"runs at {rate:g} Gb/s; another {nic.hca_type} of this VM at {best:g} Gb/s",
                    f"{nic.rdma_device}",
                    fix="Ask the administrator to compare cable, switch port and firmware of the "
                    f"two ports (`mlxlink -d {nic.pci_address}` shows the rates that both ends "
                    "allow).",
                )


@rule(
    "warning",
    why="RoCE uses the largest power of two that fits, 1024 bytes for an MTU of 1500: four times "
    "the packets for the same gradients.",
    source="NVIDIA, MLNX_OFED documentation, RDMA over Converged Ethernet",
)
def roce_mtu(snapshot: Snapshot) -> Iterator[Case]:
    """Find RoCE interfaces with an MTU that is too small for RoCE's packets of 4096 bytes."""
    for nic in snapshot.roce_ports:
        if isinstance(nic.mtu, int) and nic.mtu < _ENOUGH_ROCE_MTU:
            yield Case(
                f"MTU {nic.mtu} on a RoCE link",
                nic.name,
                fix=f"`sudo ip link set dev {nic.name} mtu 9000` in every VM, and the same on "
                "the virtual switch and the physical switches between them.",
            )


@rule(
    "error",
    why="Programs use RDMA only through these devices: NCCL and MPI find no RDMA here and use TCP.",
    source="Linux kernel, Documentation/infiniband/user_verbs.rst",
)
def rdma_without_device_nodes(snapshot: Snapshot) -> Iterator[Case]:
    """Find RDMA devices without a `uverbs` node in /dev/infiniband, as in a plain container."""
    nodes = snapshot.host.rdma_device_nodes
    container = snapshot.host.container
    rdma = sorted({str(nic.rdma_device) for nic in snapshot.nics if nic.kind == "rdma"})
    if not rdma or isinstance(nodes, Unknown) or any(node.startswith("uverbs") for node in nodes):
        return
    in_container = isinstance(container, str) and container != "none"
    yield Case(
        f"sysfs shows {', '.join(rdma)}, but /dev/infiniband has no uverbs device",
        f"the {container} container" if in_container else "this VM",
        fix=_CONTAINER_FIX
        if in_container
        else "`sudo modprobe ib_uverbs`, and to make it permanent `ib_uverbs` as a line in "
        f"/etc/modules-load.d. In a container: {_CONTAINER_FIX}",
    )


@rule(
    "warning",
    why="RoCE v1 works only within one Ethernet broadcast domain; a port without any entry "
    "reaches no other host.",
    source="NVIDIA, MLNX_OFED documentation, RDMA over Converged Ethernet, GID table population",
)
def roce_without_v2_gid(snapshot: Snapshot) -> Iterator[Case]:
    """Find active RoCE ports without an entry for RoCE v2 in their GID table."""
    for nic in snapshot.roce_ports:
        types_known = all(isinstance(gid.type, str) for gid in nic.gids)
        if nic.driver not in _ROCE_DRIVERS or not types_known or nic.state != "active":
            continue
        if any(gid.type == "RoCE v2" for gid in nic.gids):
            continue
        entries = (
            f"all {len(nic.gids)} entries of its GID table are RoCE v1"
            if nic.gids
            else "no entry of its GID table is set"
        )
        yield Case(
            f"port {nic.rdma_port} is active, but {entries}",
            f"{nic.rdma_device}",
            fix="The adapter is set to RoCE v1. For VMware PVRDMA choose RoCE v2 as the "
            "adapter's device protocol in the VM's settings; otherwise ask the administrator for "
            "the adapter's RoCE mode. Until then keep the VMs in one Ethernet network."
            if nic.gids
            else "Entries are made from the interface's addresses: "
            f"`sudo ip addr add ADDRESS/PREFIX dev {nic.name}; sudo ip link set dev {nic.name} "
            "up`. In a container that does not have the interface: `--network=host`.",
        )


@rule(
    "warning",
    why="RoCE v1 has no IP header: it reaches only VMs of the same Ethernet broadcast domain, "
    "and both ends of a connection must use the same version.",
    source="NVIDIA, NCCL User Guide, NCCL_IB_GID_INDEX; "
    "NVIDIA, MLNX_OFED documentation, RDMA over Converged Ethernet",
)
def roce_v1_gid(snapshot: Snapshot) -> Iterator[Case]:
    """Find RoCE ports with a v2 GID where NCCL's settings select a GID of version 1."""
    for nic in snapshot.roce_ports:
        selected = _selected_v1_gid(snapshot, nic)
        better = _first_gid(nic, "v2")
        if selected is None or better is None:
            continue
        setting, gid = selected
        yield Case(
            f"{setting} is set, and entry {gid.index} of its GID table is {gid.type}; "
            f"entry {better.index} is {better.type}",
            f"{nic.rdma_device}",
            fix=f"`unset {setting.partition('=')[0]}`: NCCL 2.21 and later find a RoCE v2 entry "
            f"without it. For an older NCCL: `export {_GID_INDEX}=N` with the entry that is "
            "RoCE v2 and has the port's IPv4 address (`show_gids`) on every VM.",
        )


def _selected_v1_gid(snapshot: Snapshot, nic: Nic) -> tuple[str, Gid] | None:
    """Return the setting that selects a GID of version 1, and that GID."""
    index = settings_of(snapshot).get(_GID_INDEX)
    if index is not None and index.isdecimal():
        gid = next((gid for gid in nic.gids if gid.index == int(index)), None)
        return (f"{_GID_INDEX}={index}", gid) if gid and _has_version(gid, "v1") else None
    if settings_of(snapshot).get(_ROCE_VERSION) == "1":  # NCCL then chooses the entry
        gid = _first_gid(nic, "v1")
        return (f"{_ROCE_VERSION}=1", gid) if gid else None
    return None


def _first_gid(nic: Nic, version: str) -> Gid | None:
    return next((gid for gid in nic.gids if _has_version(gid, version)), None)


def _has_version(gid: Gid, version: str) -> bool:
    return isinstance(gid.type, str) and gid.type.endswith(version)


@rule("warning", source="NVIDIA, Understanding mlx5 Linux counters and status parameters")
def rdma_errors(sample: Sample) -> Iterator[Case]:
    """Find ports with counters of lost packets or bad signal that rise by one a second or more."""
    for nic in sample.nics:
        lost = _rising(nic, _LOST_PACKETS)
        bad_signal = _rising(nic, _BAD_SIGNAL)
        if bad_signal:
            yield Case(
                ", ".join([*lost, *bad_signal]),
                nic.name,
                why="The signal on the cable is bad: packets are sent again, and the link may go "
                "down.",
                fix="Ask the administrator to check the cable and the transceiver "
                "(`mlxlink -d DEVICE -c -e` on the host).",
            )
        elif lost:
            yield Case(
                ", ".join(lost),
                nic.name,
                why="Packets are lost: RDMA sends everything after a lost packet again, and every "
                "rank waits.",
                fix="On RoCE, configure PFC or ECN on every switch and port between the VMs: "
                "`mlnx_qos -i INTERFACE` shows the port's settings; on InfiniBand ask for the "
                "fabric's counters.",
            )


def _rising(nic: NicUse, names: tuple[str, ...]) -> list[str]:
    errors = {} if isinstance(nic.errors, Unknown) else nic.errors
    rates = {name: errors[name] for name in names if name in errors}
    return [
        f"{name} {rate:.0f}/s"
        for name, rate in rates.items()
        if not isinstance(rate, Unknown) and rate >= _MIN_ERRORS_PER_S
    ]
