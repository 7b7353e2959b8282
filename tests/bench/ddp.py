"""Two ranks of torch.distributed ready, against Horovod's, and a script against torchrun."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.stats import spread

PAIRS = 5
CELLS = 50
START_LIMIT, SCRIPT_LIMIT = 1.0, 0.5
SETTLE_S = 3
SCRIPT = """
import torch
import torch.distributed as dist
dist.init_process_group()
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 2
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


def torchrun():
    """Seconds that torchrun takes for the same script."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(SCRIPT)
        options = ["--standalone", "--nproc-per-node", "2", str(path)]
        command = [sys.executable, "-m", "torch.distributed.run", *options]
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began


def measure():
    """Take turns, each in a process of its own, and report the ratios pair by pair."""
    pairs = [[_in_process(f"ready({name!r})") for name in ("ddp", "horovod")] for _ in range(PAIRS)]
    starts = [mine[0] / peer[0] for mine, peer in pairs]
    cells = [mine[1] / peer[1] for mine, peer in pairs]
    print(f"ready   {spread([mine[0] for mine, _ in pairs])} s with ddp")
    print(f"ratio   {spread(starts)} to Horovod's, at most {START_LIMIT} is asked")
    print(f"cell    {spread([mine[1] * 1e3 for mine, _ in pairs])} ms with ddp")
    print(f"ratio   {spread(cells)} to Horovod's")
    pairs = [[_in_process("script()"), _in_process("torchrun()")] for _ in range(PAIRS)]
    print(f"script  {spread([mine for mine, _ in pairs])} s in a cell")
    print(
        f"ratio   {spread([a / b for a, b in pairs])} to torchrun, at most {SCRIPT_LIMIT} is asked"
    )


def _in_process(call):
    time.sleep(SETTLE_S)
    code = f"import json; from tests.bench.ddp import *; print(json.dumps({call}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
