"""A cell that does nothing, against ``%%px``'s median."""

import contextlib
import io
import statistics
import time

from tests.bench.bounds import at_most, sized
from tests.bench.stats import spread

LIMIT = 1.2
TURNS = sized(200, 5)


def measure():
    """Run both magics in turn in one IPython shell, each on two engines of its own."""
    import ipyparallel as ipp
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    with contextlib.redirect_stdout(io.StringIO()):
        shell.run_line_magic("load_ext", "workbench")
        shell.run_line_magic("cluster", "start -n 2")
        stock = ipp.Cluster(n=2, log_level=40)
        stock.start_and_connect_sync(activate=True)
        times = {"px": [], "distributed": []}
        for _ in range(TURNS + 10):
            for name, taken in times.items():
                began = time.perf_counter()
                shell.run_cell_magic(name, "", "x = 1")
                taken.append((time.perf_counter() - began) * 1e3)
        shell.run_line_magic("cluster", "stop")
        stock.stop_cluster_sync()
    ours, peer = times["distributed"][10:], times["px"][10:]
    print(f"%%distributed  {spread(ours)} ms")
    print(f"%%px           {spread(peer)} ms")
    ratio = statistics.median(ours) / statistics.median(peer)
    yield at_most("ratio of medians", ratio, LIMIT)
