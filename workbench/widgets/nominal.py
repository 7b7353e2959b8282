"""What the links between a cluster's VMs allow by their rate."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from workbench.errors import WorkbenchError
from workbench.resources import Unknown

if TYPE_CHECKING:
    from workbench.cluster import Cluster
    from workbench.resources import Snapshot

_ONE_VM = Unknown("the ranks share one machine: no link between them has a nominal rate")
_BEING_READ = Unknown("the rate of the VMs' NICs is being read")


def nominal_gbps(cluster: Cluster) -> float | Unknown:
    """Return the rate of the slowest NIC that the ranks use, in gigabits per second.

    Across VMs each NIC carries what a ring's bus bandwidth counts, once in
    each direction: its rate is the most that can be measured.
    """
    if not _across_vms(cluster):
        return _ONE_VM
    try:
        snapshots = cluster.snapshot()
    except WorkbenchError as error:
        return Unknown(f"the NICs could not be read: {error}")
    rates = [_rate(snapshots.get(one.vm), one.vm, one.nic) for one in cluster.ranks]
    unknown = [rate for rate in rates if isinstance(rate, Unknown)]
    known = [rate for rate in rates if not isinstance(rate, Unknown)]
    return unknown[0] if unknown else min(known)


class NominalRate:
    """`nominal_gbps`, read once, in a thread.

    Parameters
    ----------
    cluster
        Whose NICs.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._asked = False
        self._rate: float | Unknown = _BEING_READ

    def get(self) -> float | Unknown:
        """Give the rate in gigabits per second, or why it is not known; at once."""
        if not _across_vms(self._cluster):
            return _ONE_VM
        if not self._asked:
            self._asked = True
            threading.Thread(target=self._read, name="workbench-nominal", daemon=True).start()
        return self._rate

    def _read(self) -> None:
        self._rate = nominal_gbps(self._cluster)


def _across_vms(cluster: Cluster) -> bool:
    return len({info.vm for info in cluster.ranks}) > 1


def _rate(snapshot: Snapshot | None, vm: str, name: str) -> float | Unknown:
    if snapshot is None:
        return Unknown(f"{vm} did not answer")
    for nic in snapshot.nics:
        if nic.name == name or getattr(nic, "interface", None) == name:
            rate = nic.rate_gbps
            return Unknown(f"{name} of {vm}: {rate.reason}") if isinstance(rate, Unknown) else rate
    return Unknown(f"{name} of {vm} is not among the NICs that were found")
