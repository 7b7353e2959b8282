"""What tests of clusters share: quiet cells, trainings, and processes that end."""

import psutil
from timers import within

from workbench.cluster import TextSink


def quiet(cluster, source, **options):
    """Run a cell whose output nobody sees."""
    return cluster.run(source, sink=TextSink(), **options)


def gone(pids, seconds=5.0):
    """Whether all processes end within some seconds."""
    return within(seconds, lambda: not any(map(psutil.pid_exists, pids)))


SHARED_MODEL = """
import contextlib, os, tempfile, time, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
if not dist.is_initialized():
    where = hvd.broadcast_object(tempfile.mktemp(), name="where")
    dist.init_process_group(
        "gloo", init_method=f"file://{where}", rank=rank, world_size=world_size)
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
"""
"""A cell's beginning: PyTorch's process group next to Horovod's, and a small model."""

TRAINING = """
import torch
model = torch.nn.Linear({width}, {width})
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
def train(iterations):
    for _ in range(iterations):
        optimizer.zero_grad()
        model(torch.ones(4, {width})).sum().backward()
        optimizer.step()
train({iterations})
"""


def training(iterations, width=8):
    """A plain Horovod script, of two tensors; `train` is there afterwards."""
    return TRAINING.format(width=width, iterations=iterations)


QUEUED = """
import glob
def queued_us():
    total = 0
    for path in glob.glob("/proc/self/task/*/schedstat"):
        try:
            with open(path) as file: total += int(file.read().split()[1])
        except OSError: pass  # a thread that has ended
    return total / 1e3
"""
"""A cell's beginning: for how long this rank's threads were ready and had no core, so far."""
