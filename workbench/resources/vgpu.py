"""What the name of a vGPU profile says."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PROFILE = re.compile(r"(?P<board>\w+)(?:-(?P<slices>\d+))?-(?P<gb>\d+)(?P<series>[ABCQ])(?:ME)?")

# Frame buffer in GB of each board that NVIDIA's vGPU documents name; A100X is
# the HGX board of 40 GB there, not the A100X card.
_BOARD_GB = {
    "A10": 24,
    "A30": 24,
    "A40": 48,
    "A100": 40,
    "A100X": 40,
    "A100D": 80,
    "A100DX": 80,
    "B200X": 180,
    "H100": 80,
    "H100L": 94,
    "H100XL": 94,
    "H100XM": 80,
    "H100XS": 64,
    "H200": 141,
    "H200X": 141,
    "L4": 24,
    "L40": 48,
    "L40S": 48,
    "T4": 16,
}


@dataclass(frozen=True)
class VgpuProfile:
    """A decoded profile, such as ``A100-4-20C``.

    Attributes
    ----------
    board
        ``"A100"``: NVIDIA's name for the physical board.
    slices
        MIG slices behind it; None for a time-sliced profile.
    memory_gb
        Frame buffer in GB, as the name gives it.
    series
        ``A`` applications, ``B`` desktop, ``C`` compute, ``Q`` workstation.
    board_memory_gb
        Frame buffer of the whole board; None for a board not in NVIDIA's list.
    """

    board: str
    slices: int | None
    memory_gb: int
    series: str
    board_memory_gb: int | None

    @property
    def mig_backed(self) -> bool:
        """Whether the name shows a MIG instance behind it."""
        return self.slices is not None

    @property
    def fractional(self) -> bool | None:
        """Whether it owns less than the board's frame buffer; None where unknown."""
        return None if self.board_memory_gb is None else self.memory_gb < self.board_memory_gb


def decode_profile(name: str) -> VgpuProfile | None:
    """Decode ``A100-4C`` (with or without ``GRID`` or ``NVIDIA`` before it).

    Returns
    -------
    VgpuProfile or None
        None where the name is no vGPU profile's.
    """
    match = _PROFILE.fullmatch(re.sub(r"^(GRID|NVIDIA) ", "", name))
    if match is None:
        return None
    return VgpuProfile(
        board=match["board"],
        slices=int(match["slices"]) if match["slices"] else None,
        memory_gb=int(match["gb"]),
        series=match["series"],
        board_memory_gb=_BOARD_GB.get(match["board"]),
    )
