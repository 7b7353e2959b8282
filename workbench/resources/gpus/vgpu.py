"""Decode the name of a vGPU profile, and what the profile permits."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workbench.resources.unknown import Unknown

_PROFILE = re.compile(r"(?P<board>\w+)(?:-(?P<slices>\d+))?-(?P<gb>\d+)(?P<series>[ABCQ])(?:ME)?")

BOARD_GB = {
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
"""Frame buffer in GB of each board in NVIDIA's vGPU documentation. There, A100X is the HGX
board with 40 GB, not the A100X card."""

# Boards of that list without NVLink (NVIDIA's data sheets), and boards without SR-IOV (Turing):
# NVIDIA's vGPU documentation requires SR-IOV for GPUDirect.
_WITHOUT_NVLINK = {"A10", "L4", "L40", "L40S", "T4"}
_WITHOUT_SRIOV = {"T4"}

_NO_SUCH_BOARD = Unknown("the board is not in NVIDIA's list of boards in this version")


@dataclass(frozen=True)
class VgpuProfile:
    """A decoded profile, such as ``A100-4-20C``.

    Attributes
    ----------
    board
        ``"A100"``: NVIDIA's name for the physical board.
    slices
        Number of MIG slices; 0 for a time-sliced profile.
    memory_gb
        Frame buffer in GB, from the name.
    series
        ``A`` applications, ``B`` desktop, ``C`` compute, ``Q`` workstation.
    board_memory_gb
        Frame buffer of the board.
    whole_frame_buffer
        Whether the profile has the complete frame buffer of the board.
    p2p
        Whether it may access other GPUs of its VM over NVLink: a time-sliced
        profile of the C series that has the complete frame buffer (NVIDIA,
        Virtual GPU Software User Guide, Peer-to-Peer CUDA transfers).
    gpudirect
        Whether GPUDirect RDMA may access it: all profiles of the C series, on boards with
        SR-IOV (NVIDIA AI Enterprise, GPUDirect Technology Support). The VM must
        be set up for it too.
    """

    board: str
    slices: int | Unknown
    memory_gb: int
    series: str
    board_memory_gb: int | Unknown
    whole_frame_buffer: bool | Unknown
    p2p: bool | Unknown
    gpudirect: bool | Unknown

    @property
    def mig_backed(self) -> bool:
        """Whether the name contains a MIG instance."""
        return isinstance(self.slices, int) and self.slices > 0


def decode_profile(name: str) -> VgpuProfile | None:
    """Decode the name of a profile; return None for other names.

    ``GRID`` or ``NVIDIA`` may precede the name.

    Examples
    --------
    >>> profile = decode_profile("NVIDIA A100-20C")
    >>> profile.board, profile.memory_gb, profile.board_memory_gb, profile.p2p
    ('A100', 20, 40, False)
    >>> decode_profile("A100-3-20C").mig_backed
    True
    """
    match = _PROFILE.fullmatch(re.sub(r"^(GRID|NVIDIA) ", "", name))
    if match is None:
        return None
    board = match["board"]
    memory_gb = int(match["gb"])
    series = match["series"]
    board_gb = BOARD_GB.get(board, _NO_SUCH_BOARD)
    complete = board_gb if isinstance(board_gb, Unknown) else memory_gb == board_gb
    return VgpuProfile(
        board=board,
        slices=int(match["slices"]) if match["slices"] else _unnamed_slices(board, complete),
        memory_gb=memory_gb,
        series=series,
        board_memory_gb=board_gb,
        whole_frame_buffer=complete,
        p2p=_p2p(board, series, complete, mig_backed=match["slices"] is not None),
        gpudirect=_gpudirect(board, series),
    )


def _unnamed_slices(board: str, complete: bool | Unknown) -> int | Unknown:
    # Blackwell (B200, ...) has time-sliced MIG-backed profiles. Their names do not show MIG.
    if re.match(r"B\d", board) and complete is not True:
        return Unknown("on this board the name does not show whether it uses MIG")
    return 0


def _p2p(board: str, series: str, complete: bool | Unknown, *, mig_backed: bool) -> bool | Unknown:
    if mig_backed or series != "C" or board in _WITHOUT_NVLINK:
        return False
    return complete


def _gpudirect(board: str, series: str) -> bool | Unknown:
    if series != "C" or board in _WITHOUT_SRIOV:
        return False
    return True if board in BOARD_GB else _NO_SUCH_BOARD
