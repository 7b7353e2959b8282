"""A snapshot of an HGX host: 8 GPUs, 9 RDMA devices and a full PCIe tree, as folders.

The NVML is a fake, which starts at once: what a driver takes to start, and its calls
to answer, is not in it.
"""

import tempfile
import time
from pathlib import Path

from tests.bench.bounds import at_most, sized
from tests.bench.stats import spread

TURNS = sized(25, 2)
LIMIT_MS = 50


def measure():
    """Take snapshots, after a first one that loads what they need."""
    from fake_machine import Machine, snap
    from hgx_host import build_hgx, cores

    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder), cpus=cores())
        nvml = build_hgx(machine, processes=0)
        found, spent = snap(machine, nvml), []
        for _ in range(TURNS):
            began, used = time.perf_counter(), time.process_time()
            found = snap(machine, nvml)
            spent.append((time.perf_counter() - began, time.process_time() - used))
    counts = len(found.gpus), sum(nic.kind == "rdma" for nic in found.nics)
    assert counts == (8, 9), counts
    whole, processor = ([1e3 * each[n] for each in spent] for n in (0, 1))
    yield at_most("a snapshot", whole, LIMIT_MS, "ms")
    print(f"processor time of it {spread(processor)} ms")
    slowest = max(found.probes.items(), key=lambda probe: probe[1].elapsed_ms)
    print(f"most of it for {slowest[0]}: {slowest[1].elapsed_ms:.0f} ms in the last one")
