"""torch.distributed: ready, a cell, what recording adds to an iteration, and against torchrun."""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.bounds import at_most, sized
from tests.bench.processes import in_process
from tests.bench.stats import interval, spread

PAIRS = sized(5, 1)
CELLS = sized(50, 3)
START_LIMIT, SCRIPT_LIMIT = 1.0, 0.5
OVERHEAD_LIMIT_PERCENT = 0.4
BLOCKS, ITERATIONS = sized(40, 2), sized(20, 2)
SCRIPT = """
import torch
import torch.distributed as dist
dist.init_process_group()
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 2
dist.destroy_process_group()
"""
TRAIN = """
import os, statistics, time, torch
import torch.distributed as dist
dist.init_process_group()
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(80)])
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
inputs = torch.randn(64, 64)
def train(iterations):
    began, cpu = time.perf_counter(), time.thread_time()
    for _ in range(iterations):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
    return [(time.perf_counter() - began) / iterations, (time.thread_time() - cpu) / iterations]
train(20)
"""
"""A model of 160 gradient tensors; wall time and the training thread's CPU time, in seconds."""
PRINTED = """
walls = [train({})[0] for _ in range({})]
if dist.get_rank() == 0: print(min(walls))
dist.barrier()
dist.destroy_process_group()
"""


def ready(backend):
    """Seconds until two ranks are ready, and the median of a cell that does nothing."""
    import workbench as wb
    from workbench.cluster import TextSink

    began = time.perf_counter()
    with wb.Cluster(n=2, backend=backend) as cluster:
        start, cells = time.perf_counter() - began, []
        for _ in range(CELLS):
            began = time.perf_counter()
            cluster.run("pass", sink=TextSink())
            cells.append(time.perf_counter() - began)
    return start, statistics.median(cells)


def script():
    """Seconds that the script takes in a cell; the ranks are ready."""
    import workbench as wb
    from workbench.cluster import TextSink

    with wb.Cluster(n=2, backend="ddp") as cluster:
        cluster.run("import torch", sink=TextSink())
        began = time.perf_counter()
        cluster.run(SCRIPT, sink=TextSink())
        return time.perf_counter() - began


def overhead():
    """The shares that recording adds to a thread's CPU time, and seconds of an iteration."""
    import workbench as wb
    from workbench.cluster import TextSink

    times = {True: [], False: []}
    with wb.Cluster(n=2, backend="ddp") as cluster:
        cluster.run(TRAIN, sink=TextSink())
        for block in range(2 * BLOCKS):
            cluster.recording = recording = block % 4 in {0, 3}
            values = cluster.run(f"train(3); train({ITERATIONS})", sink=TextSink()).values
            times[recording].append(values[0])
    pairs = zip(times[True], times[False], strict=True)
    return [a[1] / b[1] - 1 for a, b in pairs], min(wall for wall, _ in times[True])


def torchrun(source=SCRIPT):
    """Seconds that torchrun takes for a script, and what the script prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(source)
        options = ["--standalone", "--nproc-per-node", "2", str(path)]
        command = [sys.executable, "-m", "torch.distributed.run", *options]
        began = time.perf_counter()
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        took = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"torchrun ended with status {done.returncode}: {done.stderr.strip()}")
    return took, done.stdout


def measure():
    """Take turns, each in a process of its own, and report the ratios pair by pair."""
    pairs = [
        [in_process(__name__, f"ready({name!r})") for name in ("ddp", "horovod")]
        for _ in range(PAIRS)
    ]
    starts = [mine[0] / peer[0] for mine, peer in pairs]
    cells = [mine[1] / peer[1] for mine, peer in pairs]
    print(f"ready   {spread([mine[0] for mine, _ in pairs])} s with ddp")
    yield at_most("ready, ratio to Horovod's", starts, START_LIMIT)
    print(f"cell    {spread([mine[1] * 1e3 for mine, _ in pairs])} ms with ddp")
    print(f"ratio   {spread(cells)} to Horovod's")
    shares, iterations = zip(
        *(in_process(__name__, "overhead()") for _ in range(PAIRS)), strict=True
    )
    own = [float(torchrun(TRAIN + PRINTED.format(ITERATIONS, BLOCKS))[1]) for _ in range(PAIRS)]
    every = [100 * one for share in shares for one in share]
    middle, low, high = interval(every, of=statistics.median)
    print(f"recording's share of the training thread's CPU time: 95 % {low:.2f} to {high:.2f} %")
    yield at_most("its median", middle, OVERHEAD_LIMIT_PERCENT, "%")
    print(
        f"iteration {spread([one * 1e3 for one in iterations])} ms, recorded, the fastest of each"
    )
    print(f"ratio   {spread([a / b for a, b in zip(iterations, own, strict=True)])} to torchrun")
    pairs = [
        [in_process(__name__, "script()"), in_process(__name__, "torchrun()[0]")]
        for _ in range(PAIRS)
    ]
    print(f"script  {spread([mine for mine, _ in pairs])} s in a cell")
    yield at_most("script, ratio to torchrun", [mine / peer for mine, peer in pairs], SCRIPT_LIMIT)
