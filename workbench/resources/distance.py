"""How far two devices are apart, as an ordered enumeration."""

from __future__ import annotations

from enum import Enum


class Distance(str, Enum):
    """What the data between two devices crosses, from the nearest to the farthest.

    Members are strings (``Distance.PIX == "PIX"``, and JSON has ``"PIX"``), but they are
    ordered by distance, not by the alphabet: ``min`` gives the nearest, ``sorted`` the
    nearest first. A plain string that names a distance can be compared too.

    Attributes
    ----------
    LOC
        One device: also two MIG devices, or two ports of one PCI function.
    NVLINK
        NVLink.
    INTERNAL
        The board that both GPUs are on (by NVML alone).
    PIX
        One PCIe switch.
    PXB
        Several PCIe switches.
    PHB
        The CPU's host bridge.
    NODE
        Two host bridges of one NUMA node; NCCL calls it PHB.
    SYS
        The link between two NUMA nodes.
    """

    LOC = "LOC"
    NVLINK = "NVLINK"
    INTERNAL = "INTERNAL"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"

    # str's own methods would order by the alphabet: none of the four may be inherited.

    def __lt__(self, other: str) -> bool:
        return _RANKS[self.value] < _rank(other, f"{self!r} < {other!r}")

    def __le__(self, other: str) -> bool:
        return _RANKS[self.value] <= _rank(other, f"{self!r} <= {other!r}")

    def __gt__(self, other: str) -> bool:
        return _RANKS[self.value] > _rank(other, f"{self!r} > {other!r}")

    def __ge__(self, other: str) -> bool:
        return _RANKS[self.value] >= _rank(other, f"{self!r} >= {other!r}")

    # Enum of Python 3.11 and later writes "Distance.PIX" for both of these.

    def __str__(self) -> str:
        return self.value

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


_RANKS = {one.value: rank for rank, one in enumerate(Distance)}


def _rank(other: object, attempt: str) -> int:
    rank = _RANKS.get(str(other)) if isinstance(other, str) else None
    if rank is None:
        raise TypeError(
            f"{attempt}: only distances have an order. Compare with one of {', '.join(_RANKS)}; "
            "leave unknown distances out."
        )
    return rank
