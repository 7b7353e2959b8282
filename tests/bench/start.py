"""Two ranks ready, against stock ipyparallel with torch and hvd.init() one after the other.

Then a kernel's second start, which is forked from its warm process.
"""

import contextlib
import time

import psutil

from tests.bench.bounds import at_most, sized
from tests.bench.processes import in_process
from tests.bench.stats import spread
from tests.bench.stock import form_ring

LIMIT = 0.55
PAIRS = sized(5, 1)
SECOND_S = 0.6
SECONDS = sized(5, 1)
"""How many later starts each kernel measures; the first of them is judged too."""
SETTLE_S = 3.0
"""After the first start, the warm process loads what further starts need."""


def ours():
    """Seconds until a collective over two ranks was answered."""
    import workbench as wb

    began = time.perf_counter()
    cluster = wb.Cluster(n=2).start()
    took = time.perf_counter() - began
    cluster.stop()
    return took


def second():
    """Wall time and CPU time of a first start, and of each later one of the same process."""
    from workbench.cluster import warm

    starts = [_timed_start()]
    for _ in range(SECONDS):
        time.sleep(SETTLE_S)
        process = warm.pid()
        starts.append(_timed_start())
        if process is None or warm.pid() != process:
            raise RuntimeError("the start was not forked from the warm process")
    return starts


def _timed_start():
    import workbench as wb

    cluster, cpu, began = wb.Cluster(n=2), _cpu_s(), time.perf_counter()
    cluster.start()
    took, used = time.perf_counter() - began, _cpu_s() - cpu
    cluster.stop()
    return took, used


def _cpu_s():
    """CPU time of this process, and of all that runs below it."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def stock():
    """Seconds that stock ipyparallel takes for the same."""
    began = time.perf_counter()
    import ipyparallel as ipp

    cluster = ipp.Cluster(n=2, log_level=40)
    client = cluster.start_and_connect_sync()
    form_ring(client, ["localhost", "localhost"], "lo")
    took = time.perf_counter() - began
    cluster.stop_cluster_sync()
    return took


def measure():
    """Take turns, each start in a process of its own, and report the ratio pair by pair."""
    pairs = [
        [in_process(__name__, f"{name}()") for name in ("ours", "stock")] for _ in range(PAIRS)
    ]
    ratios = [mine / peer for mine, peer in pairs]
    print(f"ours    {spread([mine for mine, _ in pairs])} s")
    print(f"stock   {spread([peer for _, peer in pairs])} s")
    yield at_most("ratio to stock", ratios, LIMIT)
    starts = [in_process(__name__, "second()") for _ in range(sized(3, 1))]
    first = [kernel[0] for kernel in starts]
    later = [start for kernel in starts for start in kernel[1:]]
    for name, timed in (("first", first), ("later", later)):
        print(f"{name}   {spread([took for took, _ in timed])} s", end="")
        print(f", {spread([used for _, used in timed])} s of CPU")
    yield at_most("later start", [took for took, _ in later], SECOND_S, "s")
