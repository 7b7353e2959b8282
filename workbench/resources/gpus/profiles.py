"""The smallest vGPU profile or MIG slice of a board that holds a given amount of memory."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.errors import UsageError
from workbench.resources.gpus.vgpu import BOARD_GB

# Slices and memory in GB of MIG instances (NVIDIA, MIG User Guide, Supported MIG Profiles), by
# the memory of the board.
_MIG = {
    40: ((1, 5), (1, 10), (2, 10), (3, 20), (4, 20), (7, 40)),
    64: ((1, 8), (1, 16), (2, 16), (3, 32), (4, 32), (7, 64)),
    80: ((1, 10), (1, 20), (2, 20), (3, 40), (4, 40), (7, 80)),
    94: ((1, 12), (1, 24), (2, 24), (3, 47), (4, 47), (7, 94)),
    141: ((1, 18), (1, 35), (2, 35), (3, 71), (4, 71), (7, 141)),
    180: ((1, 23), (1, 45), (2, 45), (3, 90), (4, 90), (7, 180)),
}
_MIG_OF_A30 = ((1, 6), (2, 12), (4, 24))
_WITH_MIG = ("A100", "H100", "H200", "B200")

# Frame buffers in GB of the C series' time-sliced profiles, but for the complete one (NVIDIA,
# Virtual GPU Software User Guide, Virtual GPU Types Reference).
_TIME_SLICED_GB = {
    **dict.fromkeys(("A10", "A30", "L4"), (4, 6, 8, 12)),
    **dict.fromkeys(("A40", "L40", "L40S"), (4, 6, 8, 12, 16, 24)),
    **dict.fromkeys(("A100", "A100X"), (4, 5, 8, 10, 20)),
    **dict.fromkeys(("A100D", "A100DX"), (4, 8, 10, 16, 20, 40)),
    "T4": (4, 8),
}


@dataclass(frozen=True)
class BoardShare:
    """A profile or slice that provides a part of a board's memory, or all of it.

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


def board_memory_gb(board: str) -> int:
    """Return the memory of a board in GB.

    Parameters
    ----------
    board
        NVIDIA's name of a board in profiles, such as ``"A100"`` (PCIe, 40 GB), ``"A100DX"``
        (HGX, 80 GB) or ``"H100XM"``.

    Raises
    ------
    UsageError
        The board is not known.

    Examples
    --------
    >>> board_memory_gb("H200")
    141
    """
    if board not in BOARD_GB:
        raise UsageError(
            f"board {board!r}: not known. Choose the one in the vGPU profile's name from "
            f"{', '.join(BOARD_GB)}."
        )
    return BOARD_GB[board]


def smallest_shares(board: str, memory_gb: float) -> list[BoardShare]:
    """Return the smallest share of each kind that has at least `memory_gb`.

    The kinds are time-sliced vGPU profiles, MIG slices and MIG-backed vGPU profiles. The list is
    empty if the board is too small. It has no time-sliced profile if that could be a part of the
    board and the board's time-sliced profiles are not known here.

    Raises
    ------
    UsageError
        The board is not known.

    Examples
    --------
    >>> [share.name for share in smallest_shares("A100", 15)]
    ['A100-20C', 'MIG 3g.20gb', 'A100-3-20C']
    """
    board_gb = board_memory_gb(board)
    fractions = _TIME_SLICED_GB.get(board)
    shares = []
    if fractions is not None or memory_gb > board_gb / 2:
        sizes = [gb for gb in (*(fractions or ()), board_gb) if gb >= memory_gb]
        shares += [BoardShare(f"{board}-{gb}C", gb) for gb in sizes[:1]]
    for slices, gb in _mig(board, board_gb):
        if gb >= memory_gb:
            profile = BoardShare(f"{board}-{slices}-{gb}C", gb)
            return [*shares, BoardShare(f"MIG {slices}g.{gb}gb", gb), profile]
    return shares


def _mig(board: str, board_gb: int) -> tuple[tuple[int, int], ...]:
    """Return the slices and memory (GB) of a board's MIG instances, the smallest first."""
    if board == "A30":
        return _MIG_OF_A30
    return _MIG.get(board_gb, ()) if board.startswith(_WITH_MIG) else ()
