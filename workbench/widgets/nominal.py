"""The nominal rate of the links between a cluster's VMs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from workbench.errors import WorkbenchError
from workbench.fabric.nominal import find_nic, nic_gbps
from workbench.resources import Unknown

if TYPE_CHECKING:
    from workbench.cluster import Cluster
    from workbench.resources import Snapshot

_log = logging.getLogger(__name__)

_ONE_VM = Unknown("all ranks share one machine: no link between them has a nominal rate")
_PENDING = Unknown("the rates of the VMs' NICs are being read")


def nominal_gbps(cluster: Cluster) -> float | Unknown:
    """Return the rate of the slowest VM's NICs, in gigabits per second.

    Only NICs that ranks use count. Across VMs, the NICs of each VM carry the ring's bus bandwidth
    once in each direction. So the rate of the NICs is an upper bound of the bus bandwidth.
    """
    if not _across_vms(cluster):
        return _ONE_VM
    try:
        snapshots = cluster.snapshot()
    except WorkbenchError as error:
        return Unknown(f"the NICs could not be read: {error}")
    nics_by_vm: dict[str, set[str]] = {}
    for info in cluster.ranks:
        nics_by_vm.setdefault(info.vm, set()).add(info.nic)
    rates = [rate_of_vm(snapshots.get(vm), vm, sorted(nics)) for vm, nics in nics_by_vm.items()]
    unknown_rates = [rate for rate in rates if isinstance(rate, Unknown)]
    known_rates = [rate for rate in rates if not isinstance(rate, Unknown)]
    return unknown_rates[0] if unknown_rates else min(known_rates)


class NominalRate:
    """The result of `nominal_gbps`, computed once in a background thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._started = False
        self._rate: float | Unknown = _PENDING

    def get(self) -> float | Unknown:
        """Return the rate in gigabits per second, or why it is unknown, without blocking."""
        if not _across_vms(self._cluster):
            return _ONE_VM
        if not self._started:
            self._started = True
            threading.Thread(target=self._read, name="workbench-nominal", daemon=True).start()
        return self._rate

    def _read(self) -> None:
        self._rate = nominal_gbps(self._cluster)
        _log.debug("nominal rate of the links between VMs: %s", self._rate)


def _across_vms(cluster: Cluster) -> bool:
    return len({info.vm for info in cluster.ranks}) > 1


def rate_of_vm(snapshot: Snapshot | None, vm: str, used_nics: Iterable[str]) -> float | Unknown:
    """Return the rate of the NICs that a VM's ranks use, in gigabits per second.

    NCCL spreads a ring over the ports of all ranks.

    Parameters
    ----------
    snapshot
        The snapshot of the VM; None if the VM did not answer.
    vm
        The name of the VM, for the reason of an unknown rate.
    used_nics
        The `RankInfo.nic` of the VM's ranks: an interface, or an interface and the RDMA port
        nearest to the rank's GPU, ``"ens192, mlx5_0"``.
    """
    if snapshot is None:
        return Unknown(f"{vm} did not answer")
    # By port, because several ranks may use the same port.
    ports = {}
    for name in used_nics:
        nic = find_nic(snapshot, name)
        if nic is None:
            return Unknown(f"{vm} has no NIC {name} in its snapshot")
        rate = nic_gbps(nic)
        if isinstance(rate, Unknown):
            return Unknown(f"{name} of {vm}: {rate.reason}")
        ports[nic.rdma_device, nic.name] = rate
    return sum(ports.values())
