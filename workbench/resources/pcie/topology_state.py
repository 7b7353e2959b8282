"""Whether NCCL can read the topology file of a VM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TopologyFileState:
    """Whether NCCL can read a VM's topology file.

    Attributes
    ----------
    status
        ``"read"``; ``"none"``: no setting names one, and NCCL's default file does not exist;
        ``"missing"``: the named file does not exist; ``"broken"``: it is not a topology file;
        ``"refused"``: NCCL rejects it.
    why
        The reason; empty if it is read.
    """

    status: str
    why: str
