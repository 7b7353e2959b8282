"""``import workbench``, against a bare interpreter."""

import subprocess
import sys
import time

from tests.bench.stats import spread

LIMIT_MS = 60
TURNS = 15


def measure():
    """Take turns, each in a process of its own."""
    extra = []
    for _ in range(TURNS):
        bare, loaded = (_start(code) for code in ("pass", "import workbench"))
        extra.append((loaded - bare) * 1e3)
    print(f"over a bare interpreter {spread(extra)} ms, at most {LIMIT_MS} is asked")


def _start(code):
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began
