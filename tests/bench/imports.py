"""``import workbench``, against a bare interpreter."""

import subprocess
import sys
import time

from tests.bench.bounds import at_most, sized

LIMIT_MS = 60
TURNS = sized(15, 2)


def measure():
    """Take turns, each in a process of its own."""
    extra = []
    for _ in range(TURNS):
        bare, loaded = (_start(code) for code in ("pass", "import workbench"))
        extra.append((loaded - bare) * 1e3)
    yield at_most("over a bare interpreter", extra, LIMIT_MS, "ms")


def _start(code):
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began
