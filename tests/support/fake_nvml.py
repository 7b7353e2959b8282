"""A small NVML: answers the calls that the package uses with real devices' values.

It behaves like the module ``pynvml``: functions by NVML's names, an `NVMLError`
with NVML's code as `value`, handles that mean nothing to the caller.
"""

# ruff: noqa: N802, N815  # the names are NVML's

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 2, 3, 4, 6
DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, GPU_IS_LOST, LIB_RM_VERSION_MISMATCH = 9, 13, 15, 18
GIB = 1 << 30


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass
class Link:
    """One NVLink; the defaults are an A100's to a switch."""

    peer: str = "00000000:CF:00.0"
    kind: int = 2  # nvmlIntNvLinkDeviceType_t
    version: int | None = 4  # NVML_NVLINK_VERSION_3_0
    up: bool | None = True
    sent: int | None = 0  # of fields 138 and 139, in KiB, or 202 and 204, in bytes
    received: int | None = 0


@dataclass
class Between:
    """Two GPUs: nvmlGpuTopologyLevel_t, and nvmlGpuP2PStatus_t by what is asked for."""

    level: int | None
    read: int | None = 0
    write: int | None = 0
    nvlink: int | None = 0


@dataclass
class Process:
    """As nvmlProcessInfo_t; memory of None is what the driver does not report."""

    pid: int
    usedGpuMemory: int | None = 0


@dataclass
class Device:
    """One device; a value of None is one that NVML refuses as not supported.

    Pairs are now and at most, or volatile and aggregate, or current and pending.
    """

    name: str
    uuid: str
    bus_id: str
    memory: int
    mode: int | None = 0  # nvmlGpuVirtualizationMode_t
    capability: tuple[int, int] = (9, 0)
    utilization: int | None = 37
    milliwatts: int | None = 71_250
    temperature: int | None = 31
    mig_mode: int | None = 0
    mig: list[Device] = field(default_factory=list)
    lost: bool = False
    ecc: tuple[int, int] | None = None
    uncorrected: tuple[int, int] | None = None
    remapped: tuple[int, int, int, int] | None = None
    retired: tuple[int, int] | None = None
    sm_mhz: tuple[int, int | None] | None = None
    memory_mhz: tuple[int, int | None] | None = None
    held: int | None = None
    pcie: tuple[int, int] | None = None
    pcie_max: tuple[int, int] | None = None
    persistence: int | None = None
    compute_mode: int | None = None
    licence: SimpleNamespace | None = None
    links: tuple[Link, ...] = ()
    fabric: tuple[int, int] | None = None
    limit_mw: int | None = None
    link_fields: tuple[int, int] = (138, 139)  # those that this driver counts by
    pcie_bytes: tuple[int, int] | None = None  # fields 197 and 198, sent and received
    pcie_kb_per_s: tuple[int, int] | None = None
    compute: list[Process] | None = field(default_factory=list)
    graphics: list[Process] | None = field(default_factory=list)
    reserved: int = 500 << 20  # by driver and firmware
    memory_v2: bool = True  # whether the driver has version 2 of the query


def h100(**changes):
    values = {
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-5a3c7f0e-0000-4000-8000-000000000001",
        "bus_id": "00000000:53:00.0",
        "memory": 85_520_809_984,
        "mode": 1,
    }
    return Device(**{**values, **changes})


def vgpu(profile="GRID A100-4C", gib=4, **changes):
    """As an ESXi guest reports it: no power, no temperature."""
    values = {
        "name": profile,
        "uuid": "GPU-b1a11e11-0000-4000-8000-000000000002",
        "bus_id": "00000000:02:00.0",
        "memory": gib * GIB,
        "mode": 2,
        "capability": (8, 0),
        "milliwatts": None,
        "temperature": None,
    }
    return Device(**{**values, **changes})


def mig_a100():
    """An A100 cut into two MIG devices, of seven that it could have."""
    parts = [
        Device(
            name="NVIDIA A100-SXM4-40GB MIG 3g.20gb",
            uuid=f"MIG-{number}c6b1e0a-0000-5000-8000-000000000003",
            bus_id="",
            memory=20_937_965_568,
            utilization=None,
            milliwatts=None,
            temperature=None,
        )
        for number in (1, 2)
    ]
    return Device(
        name="NVIDIA A100-SXM4-40GB",
        uuid="GPU-cc000000-0000-4000-8000-000000000003",
        bus_id="00000000:07:00.0",
        memory=42_949_672_960,
        capability=(8, 0),
        utilization=None,
        mig_mode=1,
        mig=parts,
    )


class FabricInfo(ctypes.Structure):
    _fields_ = (("state", ctypes.c_uint8), ("status", ctypes.c_uint))


class FakeNvml:
    NVMLError = NVMLError
    c_nvmlGpuFabricInfoV_t = c_nvmlGpuFabricInfo_t = FabricInfo
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *devices, init_error=None, driver="580.105.08", cuda=13_000, between=None):
        self.devices = list(devices)
        self.init_error = init_error
        self.driver = driver
        self.cuda = cuda
        self.between = between or {}  # by both indices, the lower one first
        self.opened = 0  # how many inits have no shutdown yet
        self.inits = 0
        self.answers = threading.Event()  # cleared: the driver hangs
        self.answers.set()
        self.refused = {}  # NVML's code by the name of a call
        self.hanging = set()  # calls that hang until `released` is set
        self.released = threading.Event()
        self.field_us = 0  # the time of field values; 0: now

    def __getattribute__(self, name):
        if name.startswith("nvmlDevice") and name in self.refused:
            return self._refusal(self.refused[name])
        if name.startswith("nvmlDevice") and name in self.hanging:
            self.released.wait()
        return super().__getattribute__(name)

    @staticmethod
    def _refusal(code):
        def refuse(*_):
            raise NVMLError(code)

        return refuse

    def nvmlInit(self):
        if self.init_error is not None:
            raise NVMLError(self.init_error)
        self.opened += 1
        self.inits += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self):
        return self.driver

    def nvmlSystemGetCudaDriverVersion(self):
        return self.cuda

    def nvmlDeviceGetCount(self):
        self.answers.wait()
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.devices[index]

    def nvmlDeviceGetName(self, device):
        return self._value(device, device.name)

    def nvmlDeviceGetUUID(self, device):
        return self._value(device, device.uuid)

    def nvmlDeviceGetPciInfo(self, device):
        return SimpleNamespace(busId=self._value(device, device.bus_id))

    def nvmlDeviceGetMemoryInfo(self, device, version=None):
        used, total = device.memory // 4, self._value(device, device.memory)
        if version is None:
            return SimpleNamespace(total=total, used=used + device.reserved)
        if not device.memory_v2:
            raise NVMLError(FUNCTION_NOT_FOUND)
        return SimpleNamespace(total=total, used=used, reserved=device.reserved)

    def nvmlDeviceGetCudaComputeCapability(self, device):
        return self._value(device, device.capability)

    def nvmlDeviceGetVirtualizationMode(self, device):
        return self._value(device, device.mode)

    def nvmlDeviceGetMigMode(self, device):
        return [self._value(device, device.mig_mode)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, device):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device, index):
        if index >= len(device.mig):
            raise NVMLError(NOT_FOUND)
        return device.mig[index]

    def nvmlDeviceGetUtilizationRates(self, device):
        self.answers.wait()
        return SimpleNamespace(gpu=self._value(device, device.utilization))

    def nvmlDeviceGetPowerUsage(self, device):
        return self._value(device, device.milliwatts)

    def nvmlDeviceGetTemperature(self, device, sensor):
        return self._value(device, device.temperature)

    def nvmlDeviceGetEnforcedPowerLimit(self, device):
        return self._value(device, device.limit_mw)

    def nvmlDeviceGetPcieThroughput(self, device, counter):
        return self._value(device, device.pcie_kb_per_s)[counter]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device):
        return list(self._value(device, device.compute))

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, device):
        return list(self._value(device, device.graphics))

    def nvmlDeviceGetComputeRunningProcesses_v2(self, device):
        raise NVMLError(FUNCTION_NOT_FOUND)

    nvmlDeviceGetGraphicsRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses_v2

    def nvmlDeviceGetFieldValues(self, device, wanted):
        self._value(device, 0)
        return [self._field(device, *each) for each in wanted]

    def _field(self, device, number, scope):
        """As a driver does: a field that it has not, or a link beyond the last, refuses alone."""
        found, why = None, NOT_SUPPORTED
        if number in device.link_fields and device.links:
            link = device.links[scope] if scope < len(device.links) else None
            found = link and (link.sent, link.received)[device.link_fields.index(number)]
            why = NOT_SUPPORTED if link else INVALID_ARGUMENT
        elif number in (197, 198) and device.pcie_bytes:
            found = device.pcie_bytes[number - 197]
        return SimpleNamespace(
            fieldId=number,
            scopeId=scope,
            timestamp=self.field_us or time.time_ns() // 1000,
            nvmlReturn=why if found is None else 0,
            valueType=3,
            value=SimpleNamespace(ullVal=found),
        )

    def nvmlDeviceGetEccMode(self, device):
        return list(self._value(device, device.ecc))

    def nvmlDeviceGetTotalEccErrors(self, device, kind, counter):
        assert kind == 1  # uncorrected ones
        return self._value(device, device.uncorrected)[counter]

    def nvmlDeviceGetRemappedRows(self, device):
        return self._value(device, device.remapped)

    def nvmlDeviceGetRetiredPages(self, device, cause):
        return list(range(self._value(device, device.retired)[cause]))

    def nvmlDeviceGetClockInfo(self, device, clock):
        return self._clock(device, clock, 0)

    def nvmlDeviceGetMaxClockInfo(self, device, clock):
        return self._clock(device, clock, 1)

    def _clock(self, device, clock, which):
        both = self._value(device, {1: device.sm_mhz, 2: device.memory_mhz}[clock])
        return self._value(device, both[which])

    def nvmlDeviceGetCurrentClocksEventReasons(self, device):
        return self._value(device, device.held)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device):
        return self._value(device, device.held)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, device):
        return self._value(device, device.pcie)[0]

    def nvmlDeviceGetCurrPcieLinkWidth(self, device):
        return self._value(device, device.pcie)[1]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, device):
        return self._value(device, device.pcie_max)[0]

    def nvmlDeviceGetMaxPcieLinkWidth(self, device):
        return self._value(device, device.pcie_max)[1]

    def nvmlDeviceGetPersistenceMode(self, device):
        return self._value(device, device.persistence)

    def nvmlDeviceGetComputeMode(self, device):
        return self._value(device, device.compute_mode)

    def nvmlDeviceGetGridLicensableFeatures(self, device):
        features = self._value(device, device.licence)
        return SimpleNamespace(
            isGridLicenseSupported=1, licensableFeaturesCount=1, gridLicensableFeatures=[features]
        )

    def nvmlDeviceGetNvLinkState(self, device, link):
        return int(self._value(device, self._link(device, link).up))

    def nvmlDeviceGetNvLinkVersion(self, device, link):
        return self._value(device, self._link(device, link).version)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, device, link):
        return self._link(device, link).kind

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device, link):
        return SimpleNamespace(busId=self._link(device, link).peer.encode())

    def _link(self, device, link):
        """As a driver does: no links is not supported, a number too high is no argument."""
        links = self._value(device, device.links or None)
        if link >= len(links):
            raise NVMLError(INVALID_ARGUMENT)
        return links[link]

    def nvmlDeviceGetGpuFabricInfoV(self, device, pointer):
        pointer.contents.state, pointer.contents.status = self._value(device, device.fabric)

    def nvmlDeviceGetGpuFabricInfo(self, device, pointer):
        self.__class__.nvmlDeviceGetGpuFabricInfoV(self, device, pointer)

    def nvmlDeviceGetTopologyCommonAncestor(self, device, other):
        return self._value(device, self._between(device, other).level)

    def nvmlDeviceGetP2PStatus(self, device, other, what):
        found = self._between(device, other)
        return self._value(device, (found.read, found.write, found.nvlink)[what])

    def _between(self, device, other):
        places = [i for i, one in enumerate(self.devices) if one is device or one is other]
        found = self.between.get(tuple(places))
        return self._value(other, self._value(device, found or Between(None, None, None, None)))

    @staticmethod
    def _value(device, value):
        if device.lost:
            raise NVMLError(GPU_IS_LOST)
        if value is None:
            raise NVMLError(NOT_SUPPORTED)
        return value
