"""A small NVML: answers the calls that the package uses with real devices' values.

It behaves like the module ``pynvml``: functions by NVML's names, an `NVMLError`
with NVML's code as `value`, handles that mean nothing to the caller.
"""

# ruff: noqa: N802  # the names are NVML's

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

NOT_SUPPORTED, NOT_FOUND, DRIVER_NOT_LOADED, GPU_IS_LOST = 3, 6, 9, 15
GIB = 1 << 30


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass
class Device:
    """One device; a value of None is one that NVML refuses as not supported."""

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


class FakeNvml:
    NVMLError = NVMLError

    def __init__(self, *devices, init_error=None, driver="580.105.08"):
        self.devices = list(devices)
        self.init_error = init_error
        self.driver = driver
        self.opened = 0  # how many inits have no shutdown yet
        self.inits = 0
        self.answers = threading.Event()  # cleared: the driver hangs
        self.answers.set()

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
        return 13_000

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

    def nvmlDeviceGetMemoryInfo(self, device):
        used = device.memory // 4
        return SimpleNamespace(total=self._value(device, device.memory), used=used)

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

    @staticmethod
    def _value(device, value):
        if device.lost:
            raise NVMLError(GPU_IS_LOST)
        if value is None:
            raise NVMLError(NOT_SUPPORTED)
        return value
