"""Two ranks ready, against stock ipyparallel with torch and hvd.init() one after the other."""

import time

from tests.bench.bounds import at_most, sized
from tests.bench.processes import in_process
from tests.bench.stats import spread
from tests.bench.stock import form_ring

LIMIT = 0.55
PAIRS = sized(5, 1)


def ours():
    """Seconds until a collective over two ranks was answered."""
    import workbench as wb

    began = time.perf_counter()
    cluster = wb.Cluster(n=2).start()
    took = time.perf_counter() - began
    cluster.stop()
    return took


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
