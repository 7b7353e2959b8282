"""What hardware this VM was given, and how much of it is used.

`take_snapshot` runs the probes and gives one frozen `Snapshot`; `counters.Sampler`
reads what moves, processes included. Nothing here talks to Jupyter, and nothing is
opened when this is imported. A value that cannot be read is an `Unknown` with its
reason.

Three floors, from which no import goes up (`tests/test_rooms.py` holds this):

3. Over a whole machine: `snapshot`, taken by `probes`; `counters`, the live sampler.
   Of snapshots: `sent`, those in files; `topology_snapshot`, from and to NCCL's
   topology files; `nccl_ports`, the RDMA ports that NCCL uses; `naming` and `nearness`,
   finding devices and how far they are apart; `summary` and `distance_matrix`, for
   terminals.
2. One part of a machine each: `host/`, `gpus/`, `nics/`, `pcie/`, `processes/`.
   The last two know of `gpus/`, none of any other.
1. For all: `unknown`; `files`, of sysfs and procfs; `lanes`, for calls that may hang;
   `rates`, from counters; `usage`, the records of a sample; `codec`, records as JSON;
   `nccl_settings`; `distance`, an ordered enumeration; `noticeboard`, what processes of
   one user tell each other.
"""

from __future__ import annotations

from workbench.resources.distance import Distance
from workbench.resources.gpus.records import (
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
from workbench.resources.gpus.vgpu import VgpuProfile
from workbench.resources.host.record import UNLIMITED, Host
from workbench.resources.nccl_settings import NcclSettings
from workbench.resources.nics.records import Gid, Nic
from workbench.resources.pcie.records import (
    GpuDirect,
    PairDistance,
    PciDevice,
    Pcie,
    PciRoot,
    PciTree,
)
from workbench.resources.probes import take_snapshot
from workbench.resources.snapshot import Probe, Snapshot
from workbench.resources.unknown import Unknown

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
    "PairDistance",
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
