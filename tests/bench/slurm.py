"""Four ranks ready in an allocation of Slurm, against srun of a script that only forms a ring."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.stats import spread

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import slurm

LIMIT = 1.2
PAIRS = 5
SETTLE_S = 3
SCRIPT = """
import os, socket
size, rank = os.environ["SLURM_NTASKS"], os.environ["SLURM_PROCID"]
os.environ |= {"HOROVOD_RANK": rank, "HOROVOD_SIZE": size, "HOROVOD_LOCAL_RANK": rank,
    "HOROVOD_LOCAL_SIZE": size, "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1",
    "HOROVOD_HOSTNAME": "localhost", "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": "lo",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"}
import torch, horovod.torch as hvd
hvd.init()
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == int(size)
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
    """Seconds until srun has run the script in four tasks, with Horovod's own rendezvous."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(verbose=0)
    port = server.start()
    server.init(get_host_assignments(parse_hosts("localhost:4"), 4))
    job = os.environ["SLURM_JOB_ID"]
    options = [f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=4", "--cpu-bind=none"]
    env = os.environ | {"HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
    began = time.perf_counter()
    subprocess.run(["srun", *options, sys.executable, "-c", SCRIPT], env=env, check=True)
    took = time.perf_counter() - began
    server.stop()
    return took


def measure():
    """Take turns in one allocation, and report the ratio pair by pair."""
    if slurm.why_not() is not None:
        print(f"not measured: {slurm.why_not()}")
        return
    with slurm.running():
        job = slurm.submit("--nodes=1", "--ntasks=4")
        slurm.eventually(lambda: slurm.state_of(job) == "RUNNING")
        os.environ["SLURM_JOB_ID"] = job
        pairs = []
        for _ in range(PAIRS):
            time.sleep(SETTLE_S)
            mine = ours()
            time.sleep(SETTLE_S)
            pairs.append((mine, plain()))
    print(f"ours    {spread([mine for mine, _ in pairs])} s")
    print(f"srun    {spread([peer for _, peer in pairs])} s")
    print(f"ratio   {spread([mine / peer for mine, peer in pairs])}, at most {LIMIT} is asked")
