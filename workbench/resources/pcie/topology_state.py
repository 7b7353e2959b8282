"""How NCCL fares with the topology file that it tries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TopologyFileState:
    """What came of a VM's topology file.

    Attributes
    ----------
    status
        ``"read"``; ``"none"``: no setting names one, and there is none where NCCL looks;
        ``"missing"``: one is named and not there; ``"broken"``: it is no topology file;
        ``"refused"``: it is one, but NCCL stops at it.
    why
        In plain words; empty where it is read.
    """

    status: str
    why: str
