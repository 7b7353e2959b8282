"""The hardware of this VM, and its current use.

`take_snapshot` runs the probes and returns a frozen `Snapshot`; `counters.Sampler`
reads utilization and counters, also of processes. Nothing here depends on Jupyter, and
importing this package opens no device. A value that cannot be read is an `Unknown` with
its reason.

Imports never go to a higher layer (`tests/test_layers.py` checks this):

3. The VM: `snapshot`, taken by `probes` and read from files, with its fields and
   distances in `snapshot_record`; `counters`, the live sampler; `topology_snapshot`,
   converting from and to NCCL's topology files; `nccl_ports`, the RDMA ports that NCCL uses;
   `summary` and `distance_matrix`, text for terminals; `vsphere`, the same in the terms of a
   vSphere administrator, with the limits of a VM in `vsphere_limits`; `kernel_log`, lines of
   the operating system's log; `nccl_ras`, what NCCL reports about its communicators;
   `use`, how much of allocated devices was used.
2. One kind of device each: `host/`, `gpus/`, `nics/`, `pcie/`, `processes/`. The last two
   import `gpus/`; there are no other imports between them.
1. Helpers: `unknown`; `files`, reading sysfs and procfs; `numa`; `time_limited_call`, for calls
   that may hang; `usage`, the records of a sample, with rates of counters; `codec`, records as
   JSON; `nccl_settings`; `distance`, an ordered enumeration; `process_registry`, data that
   processes of one user share.
"""

from __future__ import annotations

from workbench.resources.distance import Distance
from workbench.resources.gpus.records import (
    Ecc,
    Fabric,
    Gpu,
    GpuClocks,
    GpuPair,
    Licence,
    NvLink,
    NvLinks,
    PcieLink,
)
from workbench.resources.gpus.vgpu import VgpuProfile
from workbench.resources.host.probe import UNLIMITED, HostInfo
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
from workbench.resources.snapshot import Snapshot
from workbench.resources.snapshot_record import Probe
from workbench.resources.unknown import Unknown
from workbench.resources.vsphere import DeviceGroup, device_groups

__all__ = [
    "UNLIMITED",
    "DeviceGroup",
    "Distance",
    "Ecc",
    "Fabric",
    "Gid",
    "Gpu",
    "GpuClocks",
    "GpuDirect",
    "GpuPair",
    "HostInfo",
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
    "device_groups",
    "take_snapshot",
]
