"""The library that carries the collectives of a rank, and the network that it uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from workbench.wire.message import from_json

_GPUDIRECT = {
    "": "",
    "all": ", GPUDirect RDMA",
    "some": ", partly GPUDirect RDMA",
    "none": ", no GPUDirect RDMA",
}


@dataclass(frozen=True)
class Transport:
    """How one library carries the collectives of a rank, as that library reports it.

    Attributes
    ----------
    library
        ``"Gloo"``, ``"NCCL"`` or ``"MPI"``.
    network
        The network between VMs: ``"TCP"``, ``"InfiniBand"``, ``"RoCE"``, or the name that a
        plugin of NCCL gives itself; empty if no connection uses a network, or if the network is
        unknown.
    devices
        Interfaces (``"eth0"``) or ports of RDMA devices (``"mlx5_0:1"``) of these connections.
    gpudirect
        How many of these connections let the NIC access the GPU's memory (GPUDirect RDMA); empty
        if that does not apply.
    within
        What connects the ranks of one VM, such as ``"P2P/CUMEM"`` or ``"SHM/direct/direct"``.
    unknown
        Why the network is unknown; empty if it is known.

    Examples
    --------
    >>> str(Transport("NCCL", "RoCE", ("mlx5_0:1",), "all", ("P2P/CUMEM",)))
    'NCCL: RoCE mlx5_0:1, GPUDirect RDMA; P2P/CUMEM'
    """

    library: str
    network: str
    devices: tuple[str, ...] = ()
    gpudirect: Literal["", "all", "some", "none"] = ""
    within: tuple[str, ...] = ()
    unknown: str = ""

    def __str__(self) -> str:
        """Return one line, such as ``"NCCL: RoCE mlx5_0:1, GPUDirect RDMA; P2P/CUMEM"``."""
        if self.unknown:
            return f"{self.library}: unknown ({self.unknown})"
        network = " ".join((self.network, *self.devices))
        network += _GPUDIRECT[self.gpudirect]
        parts = [part for part in (network, *self.within) if part]
        return f"{self.library}: {'; '.join(parts) or 'no connections'}"


def transports_to_plain(
    transports: Mapping[int, tuple[Transport, ...]],
) -> dict[str, list[dict[str, Any]]]:
    """Return the transports of ranks as plain values, which JSON can hold."""
    return {
        str(rank): [asdict(transport) for transport in of_rank]
        for rank, of_rank in transports.items()
    }


def transports_from_plain(plain: Mapping[str, Any]) -> dict[int, tuple[Transport, ...]]:
    """Return the transports of ranks from the result of `transports_to_plain`."""
    return {
        int(rank): tuple(from_json(Transport, transport) for transport in of_rank)
        for rank, of_rank in plain.items()
    }
