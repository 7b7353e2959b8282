"""The smallest vGPU profile or MIG slice of a board that holds a given amount of memory."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.errors import UsageError
from workbench.resources.gpus.vgpu import BOARD_GB

# Memory of MIG instances in GB by slices (NVIDIA, MIG User Guide, Supported MIG Profiles),
# for each memory size of a board with MIG.
_A30 = {1: 6, 2: 12, 4: 24}
_MIG_GB = {
    40: {1: 5, 2: 10, 3: 20, 4: 20, 7: 40},
    80: {1: 10, 2: 20, 3: 40, 4: 40, 7: 80},
    94: {1: 12, 2: 24, 3: 47, 4: 47, 7: 94},
    141: {1: 18, 2: 35, 3: 71, 4: 71, 7: 141},
    180: {1: 23, 2: 45, 3: 90, 4: 90, 7: 180},
}
_WITH_MIG = ("A100", "H100", "H200", "B200")

# Frame buffers of time-sliced profiles of the C series in GB (NVIDIA, Virtual GPU Software
# User Guide, Virtual GPU Types Reference).
_TIME_SLICED_GB = {
    **dict.fromkeys(("A10", "A30"), (4, 6, 8, 12, 24)),
    **dict.fromkeys(("A40", "L40", "L40S"), (4, 6, 8, 12, 16, 24, 48)),
    **dict.fromkeys(("A100", "A100X"), (4, 5, 8, 10, 20, 40)),
    **dict.fromkeys(("A100D", "A100DX"), (4, 8, 10, 16, 20, 40, 80)),
    "T4": (4, 8, 16),
}


@dataclass(frozen=True)
class GpuShare:
    """One way to get a part of a board's memory, or all of it.

    Attributes
    ----------
    name
        A vGPU profile such as ``"A100-20C"`` or ``"A100-3-20C"``, or a MIG slice such as
        ``"MIG 3g.20gb"``.
    memory_gb
        Its memory in GB, from the name.
    """

    name: str
    memory_gb: int


def shares(board: str) -> list[GpuShare]:
    """Return the shares of a board that are known, the smallest first.

    Time-sliced profiles are among them for the Ampere and Ada boards and the T4 only.

    Parameters
    ----------
    board
        NVIDIA's name of a board in profiles, such as ``"A100"`` (PCIe, 40 GB), ``"A100DX"``
        (HGX, 80 GB) or ``"H100XM"``.

    Raises
    ------
    UsageError
        The board is not known.
    """
    if board not in BOARD_GB:
        raise UsageError(
            f"board {board!r}: not known. Choose the one in the vGPU profile's name from "
            f"{', '.join(BOARD_GB)}."
        )
    found = [GpuShare(f"{board}-{gb}C", gb) for gb in _TIME_SLICED_GB.get(board, ())]
    for slices, gb in _mig(board, BOARD_GB[board]).items():
        found += [GpuShare(f"MIG {slices}g.{gb}gb", gb), GpuShare(f"{board}-{slices}-{gb}C", gb)]
    return sorted(found, key=lambda one: one.memory_gb)


def _mig(board: str, most: int) -> dict[int, int]:
    if board == "A30":
        return _A30
    return _MIG_GB.get(most, {}) if board.startswith(_WITH_MIG) else {}


def smallest_shares(board: str, memory_gb: float) -> list[GpuShare]:
    """Return the smallest shares of a board with at least `memory_gb`, one of each kind.

    Kinds are time-sliced vGPU profiles, MIG slices and MIG-backed vGPU profiles. The list is
    empty if the board is too small.

    Raises
    ------
    UsageError
        The board is not known.
    """
    found: dict[str, GpuShare] = {}
    for share in shares(board):
        if share.memory_gb >= memory_gb:
            found.setdefault(_kind(share.name), share)
    return list(found.values())


def _kind(name: str) -> str:
    if name.startswith("MIG"):
        return "MIG slice"
    return "MIG-backed" if name.count("-") > 1 else "time-sliced"
