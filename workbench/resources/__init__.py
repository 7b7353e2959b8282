"""What hardware this VM was given, and how much of it is used.

`take_snapshot` runs the probes (`host.py`, `gpus.py`, `nics.py`) and gives one
frozen `Snapshot`; `counters.Sampler` reads what moves. Nothing here knows of
Jupyter, and nothing is opened when this is imported. `noticeboard` is how
processes of one user tell each other what they use.

A value that cannot be read is an `Unknown` with its reason.
"""

from __future__ import annotations

from workbench.resources.gpu_records import (
    Clocks,
    Ecc,
    Fabric,
    Gpu,
    GpuPair,
    Licence,
    NvLink,
    NvLinks,
    PcieLink,
)
from workbench.resources.probes import take_snapshot
from workbench.resources.snapshot import UNLIMITED, Gid, Host, Nic, Probe, Snapshot
from workbench.resources.unknown import Unknown
from workbench.resources.vgpu import VgpuProfile

__all__ = [
    "UNLIMITED",
    "Clocks",
    "Ecc",
    "Fabric",
    "Gid",
    "Gpu",
    "GpuPair",
    "Host",
    "Licence",
    "Nic",
    "NvLink",
    "NvLinks",
    "PcieLink",
    "Probe",
    "Snapshot",
    "Unknown",
    "VgpuProfile",
    "take_snapshot",
]
