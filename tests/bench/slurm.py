"""Four ranks ready in an allocation of Slurm, against srun of a script that only forms a ring."""

import contextlib
import json
import os
import subprocess
import sys
import time

import slurm

from tests.bench.bounds import NotMeasured, at_most, sized
from tests.bench.stats import spread

LIMIT = 1.2
PAIRS = sized(5, 1)
SETTLE_S = sized(3, 0)
SCRIPT = """
import json, os, sys
os.environ |= json.loads(sys.argv[1])[int(os.environ["SLURM_PROCID"])]
import torch, horovod.torch as hvd
hvd.init()
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
"""


def ours():
    """Seconds until a collective over four ranks was answered, in the allocation."""
    command = "import workbench as wb, time; began = time.perf_counter(); "
    command += "c = wb.Cluster(launcher='slurm', n=4).start(); "
    command += "print(time.perf_counter() - began); c.stop()"
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def plain():
    """Seconds until srun has run the script in four tasks."""
    from workbench.cluster.backends import horovod as ring

    options = [f"--jobid={os.environ['SLURM_JOB_ID']}", "--overlap", "--nodes=1", "--ntasks=4"]
    began = time.perf_counter()
    with contextlib.closing(ring.Rendezvous(ring.assign(["n1"] * 4), "127.0.0.1")) as rendezvous:
        rendezvous.start()
        given = json.dumps([rendezvous.environment(rank, "lo") for rank in range(4)])
        subprocess.run(["srun", *options, sys.executable, "-c", SCRIPT, given], check=True)
    return time.perf_counter() - began


def measure():
    """Take turns in one allocation, and report the ratio pair by pair."""
    if (reason := slurm.why_not()) is not None:
        raise NotMeasured(reason)
    with slurm.running():
        job = slurm.submit("--nodes=1", "--ntasks=4")
        slurm.eventually(lambda: slurm.state_of(job) == "RUNNING")
        pairs = []
        os.environ["SLURM_JOB_ID"] = job
        try:
            for _ in range(PAIRS):
                time.sleep(SETTLE_S)
                mine = ours()
                time.sleep(SETTLE_S)
                pairs.append((mine, plain()))
        finally:
            del os.environ["SLURM_JOB_ID"]  # the benchmarks after this one are in no allocation
    print(f"ours    {spread([mine for mine, _ in pairs])} s")
    print(f"srun    {spread([peer for _, peer in pairs])} s")
    yield at_most("ratio to srun", [mine / peer for mine, peer in pairs], LIMIT)
