"""The hardware of this VM, and its current use.

`take_snapshot` runs the probes and returns a frozen `Snapshot`; `counters.Sampler`
reads utilization and counters, also of processes. Nothing here depends on Jupyter, and
importing this package opens no device. A value that cannot be read is an `Unknown` with
its reason.

Imports never go to a higher layer (`tests/test_rooms.py` checks this):

3. The machine: `snapshot`, taken by `probes`; `counters`, the live sampler;
   `load_snapshot`, reading snapshot files; `topology_snapshot`, converting from and to
   NCCL's topology files; `nccl_ports`, the RDMA ports that NCCL uses; `naming`, finding
   a device by name; `device_distance`, the distance of two devices; `summary` and
   `distance_matrix`, text for terminals.
2. One kind of device each: `host/`, `gpus/`, `nics/`, `pcie/`, `processes/`. The last two
   import `gpus/`; there are no other imports between them.
1. Helpers: `unknown`; `files`, reading sysfs and procfs; `time_limited_call`, for calls
   that may hang; `rates`, from counters; `usage`, the records of a sample; `codec`,
   records as JSON; `nccl_settings`; `distance`, an ordered enumeration;
   `process_registry`, data that processes of one user share.
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
