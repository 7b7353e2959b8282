"""``python -m tests.bench [NAME ...]``: all measurements, or those named."""

import os
import platform
import sys
from importlib import import_module

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
    "causes": "planted causes of slow iterations, named by explain",
    "whatif": "iterations predicted by what_if, then measured",
    "calls": "what recording adds to a collective that a cell calls itself",
    "hooks": "what everything of ours adds to an iteration of 160 gradient tensors",
}


def main(names):
    """Measure and print; medians, with the least and the most in brackets."""
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cores} cores, Python {platform.python_version()}")
    print(f"load {os.getloadavg()[0]:.1f} before; medians (least to most)")
    for name in names or TITLES:
        if name not in TITLES:
            sys.exit(f"{name!r} is no measurement: there are {', '.join(TITLES)}")
        print(f"\n{TITLES[name]}")
        import_module(f"tests.bench.{name}").measure()


if __name__ == "__main__":
    main(sys.argv[1:])
