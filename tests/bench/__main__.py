"""``python -m tests.bench [--smoke] [NAME ...]``: run all benchmarks, or those that are named.

The exit status is 1 if a bound is missed or a benchmark fails.
"""

import argparse
import os
import platform
import sys
from importlib import import_module

from tests.bench.bounds import SMOKE_VARIABLE
from tests.bench.running import run

TITLES = {
    "start": "two ranks ready",
    "ddp": "torch.distributed: two ranks ready, a cell, an iteration, and scripts against torchrun",
    "vms": "four VMs ready",
    "mpi": "four ranks ready under mpiexec",
    "slurm": "Slurm: four ranks ready, against srun of an empty Horovod script",
    "faults": "freed, named, replaced",
    "cells": "a cell that does nothing",
    "server": "the Jupyter server's live feed at 1 Hz, against other panels' servers",
    "imports": "import workbench",
    "snapshot": "a snapshot of 8 GPUs, 9 RDMA devices and their PCIe tree",
    "sampler": "the live sampler at 1 Hz",
    "view": "the live view: from an iteration's end to pixels, and frames of 64 ranks",
    "growth": "2 to 4,096 simulated ranks into one kernel",
    "panel": "the panel: 16 VMs of 8 GPUs at 1 Hz",
    "fabric": "errors of a calibration at sizes that it has not swept",
    "causes": "planted causes of slow iterations, named by explain",
    "whatif": "iterations predicted by what_if, then measured",
    "calls": "what recording adds to a collective that a cell calls itself",
    "hooks": "what everything of ours adds to an iteration of 160 gradient tensors",
}


def main():
    """Measure and print; medians, with the least and the most in brackets."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TITLES))
    parser.add_argument("--smoke", action="store_true", help="do little, and judge no bound")
    options = parser.parse_args()
    for name in options.names:
        if name not in TITLES:
            parser.error(f"{name!r} is no benchmark: there are {', '.join(TITLES)}")
    if options.smoke:
        os.environ[SMOKE_VARIABLE] = "1"  # the processes of a benchmark inherit it
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cores} cores, Python {platform.python_version()}")
    print(f"load {os.getloadavg()[0]:.1f} before; medians (least to most)")
    benches = {name: (TITLES[name], _measure_of(name)) for name in options.names or TITLES}
    return run(benches, judge=not options.smoke)


def _measure_of(name):
    """Return a function that imports a benchmark and measures: a broken import is a failure."""
    return lambda: import_module(f"tests.bench.{name}").measure()


if __name__ == "__main__":
    sys.exit(main())
