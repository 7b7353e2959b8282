"""The distance between two devices, as an ordered enumeration."""

from __future__ import annotations

from enum import Enum


class Distance(str, Enum):
    """The interconnect between two devices, from the nearest to the farthest.

    Members are strings (``Distance.PIX == "PIX"``, and JSON has ``"PIX"``), but they are
    ordered by distance, not alphabetically: ``min`` returns the nearest, ``sorted`` the
    nearest first. They can also be compared with a plain string such as ``"PIX"``.

    Attributes
    ----------
    LOC
        The same device; also two MIG devices of one GPU, or two ports of one PCI function.
    NVLINK
        NVLink.
    INTERNAL
        The same board with several GPUs (reported by NVML only).
    PIX
        One PCIe switch.
    PXB
        Several PCIe switches.
    PHB
        The CPU's host bridge.
    NODE
        Two host bridges of one NUMA node; NCCL calls this PHB.
    SYS
        The link between two NUMA nodes.

    Examples
    --------
    >>> min(Distance.SYS, Distance.PIX, Distance.PHB)
    <Distance.PIX: 'PIX'>
    >>> Distance.PXB <= "PHB"
    True
    """

    LOC = "LOC"
    NVLINK = "NVLINK"
    INTERNAL = "INTERNAL"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"

    # The methods inherited from str would compare alphabetically.

    def __lt__(self, other: str) -> bool:
        return _ORDER[self.value] < _position(other, f"{self!r} < {other!r}")

    def __le__(self, other: str) -> bool:
        return _ORDER[self.value] <= _position(other, f"{self!r} <= {other!r}")

    def __gt__(self, other: str) -> bool:
        return _ORDER[self.value] > _position(other, f"{self!r} > {other!r}")

    def __ge__(self, other: str) -> bool:
        return _ORDER[self.value] >= _position(other, f"{self!r} >= {other!r}")

    # Since Python 3.11, Enum returns "Distance.PIX" for both of these.

    def __str__(self) -> str:
        return self.value

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


_ORDER = {distance.value: position for position, distance in enumerate(Distance)}


def _position(other: object, attempt: str) -> int:
    position = _ORDER.get(str(other)) if isinstance(other, str) else None
    if position is None:
        raise TypeError(
            f"{attempt}: only distances can be ordered. Compare with one of {', '.join(_ORDER)}, "
            "and leave out unknown distances."
        )
    return position
