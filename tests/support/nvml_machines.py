"""Complete machines for the simulated NVML, with the values of real devices.

Sources: H100 and A100 alone: `nvidia-smi -q -x` of an HGX H100 VM and of an
A100-SXM4-40GB VM (NVIDIA/k8s-test-infra, tests/e2e/go/assertions/nvidiasmi/testdata).
Guests: `nvidia-smi -q` of a vSphere guest with a GRID V100D-8C, driver 535.216.01,
published with its licence's line; an A100 guest differs in what its architecture has.
Links: NVIDIA's data sheets (12 per A100, 18 per H100). Where a link leads to, and a
GPU's peers over PCIe, are as the sources at each machine say.
"""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

from fake_nvml import Between, Device, FakeNvml, Link, h100, vgpu

PIX, NODE, SYS = 10, 40, 50  # nvmlGpuTopologyLevel_t
GPU_NOT_SUPPORTED, NOT_SUPPORTED = 2, 5  # nvmlGpuP2PStatus_t
IDLE = 0x1

# Of the A100-SXM4-40GB; nothing of it is specific to its form.
A100_STATE = {
    "mode": 1,
    "capability": (8, 0),
    "ecc": (1, 1),
    "uncorrected": (0, 0),
    "remapped": (0, 0, 0, 0),
    "sm_mhz": (210, 1410),
    "memory_mhz": (1215, 1215),
    "held": IDLE,
    "pcie": (4, 16),
    "pcie_max": (4, 16),
    "persistence": 1,
    "compute_mode": 0,
    "limit_mw": 400_000,
    "pcie_kb_per_s": (350, 300),
}
H100_STATE = {
    "ecc": (1, 1),
    "uncorrected": (0, 0),
    "remapped": (0, 0, 0, 0),
    "sm_mhz": (345, 1980),
    "memory_mhz": (2619, 2619),
    "held": IDLE,
    "pcie": (5, 16),
    "pcie_max": (5, 16),
    "persistence": 1,
    "compute_mode": 0,
    "fabric": (3, 0),
    "limit_mw": 700_000,
    "pcie_kb_per_s": (502, 578),
}


def a100(number, bus_id, **changes):
    values = {
        "name": "NVIDIA A100-SXM4-40GB",
        "uuid": f"GPU-a1000000-0000-4000-8000-{number:012}",
        "bus_id": bus_id,
        "memory": 40_960 << 20,
        "temperature": 33,
        "milliwatts": 49_680,
    }
    return Device(**{**values, **A100_STATE, **changes})


def hgx_a100():
    """Azure's NDv4: 8 A100, their addresses and NUMA nodes as its topology file has them.

    Each GPU is on a PCI domain of its own, two of them on a NUMA node (Azure/azhpc-images,
    topology/ndv4-topo.xml); over NVLink each reaches each by 12 links (NVIDIA/nccl#1505).
    """
    domains = (0x1, 0x2, 0x3, 0x4, 0xB, 0xC, 0xD, 0xE)
    switch = tuple(Link() for _ in range(12))
    gpus = [a100(n, f"{d:08X}:00:00.0", links=switch) for n, d in enumerate(domains)]
    near = {(0, 1), (2, 3), (4, 5), (6, 7)}
    between = {p: Between(NODE if p in near else SYS) for p in combinations(range(8), 2)}
    return FakeNvml(*gpus, driver="570.148.08", cuda=12_080, between=between)


def hgx_h100():
    """An HGX H100 board in one VM, with the addresses of the capture.

    NVIDIA/nccl#1264 has such a board's `nvidia-smi topo -m`: NV18 between all, and
    over PCIe SYS from every GPU to the neighbours of another one.
    """
    buses = (0x53, 0x64, 0x75, 0x86, 0x97, 0xA8, 0xB9, 0xCA)
    switch = tuple(Link(version=6) for _ in range(18))
    gpus = [
        h100(
            uuid=f"GPU-5a3c7f0e-0000-4000-8000-{n:012}",
            bus_id=f"00000000:{bus:02X}:00.0",
            links=switch,
            **H100_STATE,
        )
        for n, bus in enumerate(buses)
    ]
    return FakeNvml(*gpus, between={p: Between(SYS) for p in combinations(range(8), 2)})


def bridged_a100():
    """Four A100 on PCIe cards, joined in pairs by three bridges of four links each.

    A bridge joins two cards and no more (NVIDIA, NVLink bridges); which pairs share a
    socket is this example's own.
    """
    buses = ("00000000:17:00.0", "00000000:65:00.0", "00000000:B1:00.0", "00000000:E3:00.0")
    partner = {0: 1, 1: 0, 2: 3, 3: 2}
    gpus = [
        a100(
            n,
            bus,
            name="NVIDIA A100-PCIE-40GB",
            links=tuple(Link(peer=buses[partner[n]], kind=0) for _ in range(12)),
        )
        for n, bus in enumerate(buses)
    ]
    joined = {(0, 1), (2, 3)}
    between = {
        p: Between(NODE) if p in joined else Between(SYS, nvlink=NOT_SUPPORTED)
        for p in combinations(range(4), 2)
    }
    return FakeNvml(*gpus, driver="570.148.08", cuda=12_080, between=between)


def licence(licensed=True):
    """Of the guest: "NVIDIA Virtual Compute Server", until 2025-3-19 7:29:4 GMT."""
    until = SimpleNamespace(year=2025, month=3, day=19, hour=7, min=29, sec=4, status=2)
    nothing = SimpleNamespace(status=0)
    return SimpleNamespace(
        featureCode=4,
        featureState=int(licensed),
        featureEnabled=1,
        productName=b"NVIDIA Virtual Compute Server",
        licenseExpiry=until if licensed else nothing,
    )


def v100d_8c_guest():
    """The guest of the source, with what it reports and what it does not."""
    guest = {
        "capability": (7, 0),
        "ecc": (1, 1),
        "uncorrected": (0, 0),
        "retired": (0, 0),
        "sm_mhz": (1230, None),
        "memory_mhz": (877, None),
        "persistence": 1,
        "compute_mode": 0,
    }
    return FakeNvml(
        vgpu("GRID V100D-8C", 8, licence=licence(), **guest), driver="535.216.01", cuda=12_020
    )


def a100_guest(profile, gib, count=1, *, p2p=0, licensed=True):
    """A guest with `count` vGPUs; `p2p` is what NVML answers about every pair.

    Whether a guest's driver reports NVLink's state is documented nowhere: here it does not.
    PIX is what vSphere shows between vGPUs where NVLink is not shown. The SM clock is the
    most that the A100's capture has: no A100 guest at work is among the sources.
    """
    gpus = [
        vgpu(
            f"GRID {profile}",
            gib,
            uuid=f"GPU-b1a11e11-0000-4000-8000-{n:012}",
            bus_id=f"00000000:{n + 2:02X}:00.0",
            licence=licence(licensed),
            ecc=(1, 1),
            uncorrected=(0, 0),
            sm_mhz=(1410, None),
            memory_mhz=(1215, None),
            persistence=1,
            compute_mode=0,
        )
        for n in range(count)
    ]
    pairs = combinations(range(count), 2)
    return FakeNvml(*gpus, between={p: Between(PIX, p2p, p2p, p2p) for p in pairs})


def mig_backed_guest():
    """One A100-3-20C: MIG-backed, so one device whose driver says that MIG is on."""
    nvml = a100_guest("A100-3-20C", 20)
    nvml.devices[0].mig_mode = 1
    return nvml
