"""Four ranks ready under ``launcher="mpi"``, against mpiexec of an empty Horovod script."""

import os
import shutil
import subprocess
import sys
import time

from tests.bench.bounds import NotMeasured, at_most, sized
from tests.bench.processes import in_process
from tests.bench.stats import spread

LIMIT = 1.2
PAIRS = sized(3, 1)
RANKS = sized(4, 2)
_SCRIPT = """
import horovod.torch as hvd, torch
hvd.init()
hvd.allreduce(torch.ones(1), op=hvd.Sum)
"""
_GLOO = """
import os
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
slot = get_host_assignments(parse_hosts("localhost:{n}"), {n})[rank]
for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "hostname"):
    os.environ["HOROVOD_" + name.upper()] = str(getattr(slot, name))
"""
"""What horovodrun would set for each rank: without MPI, Horovod does not read mpiexec's."""


def ours():
    """Seconds until a collective over the ranks was answered."""
    import workbench as wb

    began = time.perf_counter()
    cluster = wb.Cluster(launcher="mpi", n=RANKS).start()
    took = time.perf_counter() - began
    cluster.stop()
    return took


def plain():
    """Seconds that mpiexec takes for a script that forms the ring, sums once, and ends."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer
    from horovod.torch import mpi_built

    environment = dict(os.environ)
    script = _SCRIPT
    if not mpi_built():
        server = RendezvousServer(0)
        values = {"GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "GLOO_RENDEZVOUS_PORT": str(server.start())}
        values |= {"GLOO_IFACE": "lo", "CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo"}
        environment |= {f"HOROVOD_{name}": value for name, value in values.items()}
        server.init(get_host_assignments(parse_hosts(f"localhost:{RANKS}"), RANKS))
        script = _GLOO.format(n=RANKS) + _SCRIPT
    environment |= dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    environment["OMP_NUM_THREADS"] = "1"
    command = ["mpiexec", "--bind-to", "none", "--host", f"localhost:{RANKS}", "-n", str(RANKS)]
    began = time.perf_counter()
    subprocess.run([*command, sys.executable, "-c", script], check=True, env=environment)
    return time.perf_counter() - began


def measure():
    """Take turns, each start in a process of its own, and report the ratio pair by pair."""
    if shutil.which("mpiexec") is None:
        raise NotMeasured("there is no mpiexec here: apt-get install openmpi-bin")
    pairs = [
        [in_process(__name__, f"{name}()") for name in ("ours", "plain")] for _ in range(PAIRS)
    ]
    ratios = [mine / peer for mine, peer in pairs]
    print(f"ours    {spread([mine for mine, _ in pairs])} s")
    print(f"mpiexec {spread([peer for _, peer in pairs])} s")
    yield at_most("ratio to mpiexec", ratios, LIMIT)
