"""What tests of clusters share: quiet cells, a training, and processes that end."""

import psutil
from timers import within

from workbench.cluster import TextSink


def quiet(cluster, source, **options):
    """Run a cell whose output nobody sees."""
    return cluster.run(source, sink=TextSink(), **options)


def gone(pids, seconds=5.0):
    """Whether all processes end within some seconds."""
    return within(seconds, lambda: not any(map(psutil.pid_exists, pids)))


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
