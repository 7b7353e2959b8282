"""The recorded sessions in ``docs/sessions``.

``python tests/support/sessions.py simulated`` and ``... two-vms`` (needs root) write them again.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from array import array
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

import workbench as wb
from workbench.ranks import RankInfo
from workbench.resources import Snapshot
from workbench.resources.usage import CpuUse, GpuUse, MemoryUse, NicUse, Sample
from workbench.timings.folder import RunFolder
from workbench.timings.samples import SampleLog
from workbench.timings.store import Store
from workbench.timings.writer import RunWriter
from workbench.wire import IterationRecord, Layout

ROOT = Path(__file__).parents[2]
SESSIONS = ROOT / "docs" / "sessions"
HGX = ROOT / "labextension" / "test" / "fixtures" / "hgx-h100-host.json"

MS = 1_000_000
TICKS = 10_000
"""Of 0.1 us, in a millisecond."""
VM = "hgx-1"
BEGIN_S = 1_760_000_000.0
LENGTH_S = 60
STEP_MS = 200
SLOW_FROM_S = 30
SLOW_RANK = 5
SLOW_MS = 60
BUCKETS = Layout(
    0, ("bucket 0", "bucket 1", "bucket 2"), (200 << 20, 150 << 20, 100 << 20), (40, 60, 80),
    ("allreduce",) * 3, (0,) * 3, (8,) * 3, ("optimizer",) * 3, ("NCCL_ALLREDUCE",) * 3,
)  # fmt: skip

TRAIN = """
import time
import torch
import torch.distributed as dist
layers = [torch.nn.Linear(400, 400) for _ in range(4)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(400):
    if step >= 200 and rank == 3:
        time.sleep(0.03)  # a slow loader
    model(torch.randn(32, 400)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def simulated(target: Path) -> Path:
    """Write the session of a simulated host with 8 GPUs, of which no value was measured."""
    snapshot = Snapshot.load(HGX)
    ranks = [
        RankInfo(
            rank, VM, 4000 + rank, f"{rank} (H100)", str(rank // 4), "ens200np0", "ready", 8,
            "NCCL: simulated",
        )
        for rank in range(8)
    ]  # fmt: skip
    store, samples = Store(), SampleLog()
    fill(store)
    for tick in range(0, LENGTH_S, 2):
        samples.add(BEGIN_S + tick, {VM: sample(snapshot, tick)})

    def read(start: int, stop: int | None = None) -> tuple[int, np.ndarray]:
        first, rows = store.read(start, stop)
        rows["uncertainty_ns"] = 0
        return first, rows

    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "hgx-8gpu")
        facts = {
            "cluster": "hgx-8gpu",
            "simulated": True,
            "world_size": 8,
            "ranks": [asdict(rank) for rank in ranks],
            "snapshots": {VM: snapshot.to_plain()},
        }
        writer = RunWriter(store, read, run.path, facts, samples=samples)
        writer.write()
        writer.close()
        clock = {"time_s": BEGIN_S, "perf_ns": 0}
        times = {"started_s": BEGIN_S, "ended_s": BEGIN_S + LENGTH_S}
        given = {"clock": clock, "kernel": {"host": VM, "pid": 0}}
        run.write_facts(run.read_facts() | times | given)
        return wb.open_run(run.path).save(target)


def fill(store: Store) -> None:
    """Add the iterations: from the middle on, one rank loads its data slowly."""
    for rank in range(8):
        store.add_layout(rank, BUCKETS)
    start_ms = 0.0
    for index in range(LENGTH_S * 1000 // STEP_MS):
        slow_ms = SLOW_MS if start_ms >= SLOW_FROM_S * 1000 else 0
        if start_ms + STEP_MS + slow_ms > LENGTH_S * 1000:
            return
        for rank in range(8):
            store.add(rank, iteration(index, rank, start_ms, slow_ms))
        start_ms += STEP_MS + slow_ms


def iteration(index: int, rank: int, start_ms: float, slow_ms: float) -> IterationRecord:
    """Return one iteration of a rank; the others wait for a slow one in the collectives."""
    own_ms = slow_ms if rank == SLOW_RANK else 0
    late_ms = slow_ms - own_ms
    jitter = round(0.4 * math.sin(index * 1.7 + rank), 3)
    phases = {"data": 6 + own_ms + jitter, "forward": 58, "backward": 104 - jitter,
              "exposed": 22 + late_ms, "optimizer": 10, "other": 0, "copy": 0}  # fmt: skip
    submitted = [(100 + own_ms + 30 * place) * TICKS for place in range(3)]
    responded = [at + late_ms * TICKS for at in submitted]
    times = {"submitted": submitted, "responded": responded, "began": responded}
    ended = [int(at + 24 * TICKS) for at in responded]
    times |= {"ended": ended, "finished": ended}
    return IterationRecord(
        1, index, int(start_ms * MS), int(sum(phases.values()) * MS),
        **{f"{name}_ns": int(value * MS) for name, value in phases.items()},
        communication_ns=int((72 + late_ms) * MS), overlapped_ns=50 * MS,
        size_bytes=450 << 20, tensors=180, world_size=8,
        **{name: array("I", map(int, values)) for name, values in times.items()},
    )  # fmt: skip


def sample(snapshot: Snapshot, tick: int) -> Sample:
    """Return the simulated use of the host; the GPUs wait more from the middle on."""
    slow = tick >= SLOW_FROM_S
    gpus = []
    for gpu in snapshot.gpus:
        busy = (71 if slow else 92) + 3 * math.sin(tick + gpu.index)
        rate = 21e9 if slow else 27e9
        gpus.append(
            GpuUse(
                gpu.index, gpu.uuid, round(busy, 1), 61 << 30, 80 << 30, round(busy * 6.5, 1), 62.0,
                700.0, 1755.0, 2619.0, (), rate, rate, 1.1e9, 0.4e9, 0.0,
            )
        )  # fmt: skip
    names = [field.name for field in fields(NicUse)]
    nics = tuple(NicUse(nic.name, *(0.0 for _ in names[1:-1]), {}) for nic in snapshot.nics)
    cpu, memory = CpuUse(18.0 if slow else 14.0), MemoryUse(34 << 30, snapshot.host.memory_bytes)
    return Sample(BEGIN_S + tick, cpu, memory, tuple(gpus), nics, ())


def two_vms(target: Path) -> Path:
    """Record a training on two VMs of network namespaces, with two ranks each."""
    from workbench.testbed import vms

    with vms(2, gbps=1.0) as machines, tempfile.TemporaryDirectory() as runs:
        with wb.Cluster(
            hosts="vm1:2,vm2:2", ssh_config=machines.ssh_config, backend="ddp", runs=runs
        ) as cluster:
            cluster.run(TRAIN)
            path = cluster.timings.path
        renamed = shutil.move(path, Path(runs) / "two-vms")
        return wb.open_run(renamed).save(target)


if __name__ == "__main__":
    make = {"simulated": (simulated, "hgx-8gpu"), "two-vms": (two_vms, "two-vms")}
    for name in sys.argv[1:]:
        function, file = make[name]
        written = function(SESSIONS / file)
        print(f"{written}: {written.stat().st_size} bytes")
