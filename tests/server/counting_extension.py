"""The server extension with a sampler that reports its own number and each sample's.

Its samples list a process for every kernel whose connection file lies in the runtime
folder, and carry ``$PADDING`` letters; its GPU is idle for ``$IDLE_S``. Its snapshot waits for
an NVML that hangs.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from fake_nvml import FakeNvml, h100

from workbench.resources import take_snapshot
from workbench.server.app import attach
from workbench.server.handlers import SnapshotCache

from .samplers import GPU, NIC, ScriptedSampler, process

HANGS_S = 8.0
NO_KERNEL = process(7, name="a.out")


class Counting(ScriptedSampler):
    """Numbered; so is every sample it takes."""

    numbers = itertools.count(1)

    def __init__(self):
        padding = " " * int(os.environ.get("PADDING", "0"))
        gpu = {**GPU, "idle_s": float(os.environ.get("IDLE_S", "0"))}
        told = {"gpus": [gpu], "nics": [NIC], "padding": padding}
        super().__init__({"sampler": next(self.numbers), **told})

    def sample(self):
        runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"])
        kernels = [path.stem.removeprefix("kernel-") for path in runtime.glob("kernel-*.json")]
        self.told["processes"] = [NO_KERNEL, *(process(9, kernel) for kernel in kernels)]
        self.told["taken"] = self.taken + 1
        return super().sample()


def take():
    """Take a snapshot of this machine, with an NVML that never answers."""
    nvml = FakeNvml(h100())
    nvml.hanging = {name for name in dir(nvml) if name.startswith("nvmlDevice")}
    return take_snapshot(nvml=nvml, time_limit_s=HANGS_S)


def _jupyter_server_extension_points():
    return [{"module": "server.counting_extension"}]


def _load_jupyter_server_extension(serverapp):
    snapshots = SnapshotCache(take, max_age_s=0)
    attach(serverapp.web_app, snapshots=snapshots, make_sampler=Counting)
