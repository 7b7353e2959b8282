"""What hardware this VM was given, and how much of it is used.

`take_snapshot` runs the probes (`host.py`, `gpus.py`, `nics.py`, `pcie_probe.py`) and gives one
frozen `Snapshot`; `counters.Sampler` reads what moves, processes included. Nothing
here talks to Jupyter, and nothing is opened when this is imported. `noticeboard` is
how processes of one user tell each other what they use, `rank_notices` how ranks
say who they are.

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
from workbench.resources.host_record import UNLIMITED, Host
from workbench.resources.nccl_settings import NcclSettings
from workbench.resources.pcie import Distance, GpuDirect, PciDevice, Pcie, PciRoot, PciTree
from workbench.resources.probes import take_snapshot
from workbench.resources.snapshot import Gid, Nic, Probe, Snapshot
from workbench.resources.unknown import Unknown
from workbench.resources.vgpu import VgpuProfile

__all__ = [
    "UNLIMITED",
    "Clocks",
    "Distance",
    "Ecc",
    "Fabric",
    "Gid",
    "Gpu",
    "GpuDirect",
    "GpuPair",
    "Host",
    "Licence",
    "NcclSettings",
    "Nic",
    "NvLink",
    "NvLinks",
    "PciDevice",
    "PciRoot",
    "PciTree",
    "Pcie",
    "PcieLink",
    "Probe",
    "Snapshot",
    "Unknown",
    "VgpuProfile",
    "take_snapshot",
]
