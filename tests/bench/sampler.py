"""The sampler, once a second: processor time per sample as a share of a core.

On this machine, and on an HGX host of folders: 8 GPUs, 9 RDMA devices,
1000 processes. There the NVML is a fake: what its calls cost on hardware is not in
it, while what the fake itself computes is.
"""

import json
import tempfile
import time
from pathlib import Path

from tests.bench.bounds import at_most, sized

SAMPLES = sized(60, 3)
TURNS = 3
INTERVAL_S = 1.0
LIMIT_PERCENT = 1


def measure():
    """Report the share of each third of the samples."""
    from fake_machine import Machine
    from hgx_host import build_hgx, cores

    from workbench.resources.counters import Sampler

    with Sampler() as sampler:
        yield _bound("this machine", sampler)
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder), cpus=cores())
        nvml = build_hgx(machine)
        with Sampler(**machine.roots, nvml=nvml, ranks=Path(folder)) as sampler:
            yield _bound("8 GPUs, 9 RDMA devices", sampler)


def _bound(what, sampler):
    json.dumps(sampler.sample().to_plain())
    shares = []
    for _ in range(TURNS):
        used, due = time.process_time(), time.monotonic()
        for _ in range(SAMPLES // TURNS):
            json.dumps(sampler.sample().to_plain())
            due += INTERVAL_S
            time.sleep(max(0.0, due - time.monotonic()))
        spent = time.process_time() - used
        shares.append(100 * spent / (SAMPLES // TURNS) / INTERVAL_S)
    return at_most(f"{what} at 1 Hz", shares, LIMIT_PERCENT, "% of a core")
