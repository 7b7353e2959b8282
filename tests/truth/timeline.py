"""Two VMs, against Horovod's Timeline of rank 0, in a regular file."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from horovod_timeline import spans, whole_timeline

import workbench as wb
from tests.truth import START_S
from workbench.cluster import TextSink
from workbench.errors import VmsUnavailable
from workbench.hosts import parse_hosts
from workbench.testbed import vms, why_not

ITERATIONS = 20
CELL_S = 120
TRAIN = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(1 << 17)) for _ in range(8)])
    def forward(self):
        return sum(part[0] for part in self.parts)
model = Model()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1e-3), named_parameters=model.named_parameters())
def train(iterations):
    for _ in range(iterations):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
train(2)
"""
MEASURE = """
hvd.barrier()
hvd.start_timeline({path!r})
hvd.barrier()
train({iterations})
hvd.barrier()
hvd.stop_timeline()
"""
MOMENTS = {
    "responded": ("ALLREDUCE", 0),
    "began": ("GLOO_ALLREDUCE", 0),
    "ended": ("GLOO_ALLREDUCE", 1),
    "finished": ("ALLREDUCE", 1),
}
"""The activity of the Timeline for each of our moments, and whether its begin or its end."""


def measure(table):
    """Train while the Timeline is written, and compare all collectives of rank 0."""
    if (reason := why_not()) is not None:
        raise VmsUnavailable(reason)
    environment = {"HOROVOD_TIMELINE": "DYNAMIC"}
    with tempfile.TemporaryDirectory() as folder, vms(2, gbps=1.0) as machines:
        hosts = [replace(one, environment=environment) for one in parse_hosts(machines.hosts(1))]
        with wb.Cluster(
            hosts=hosts, ssh_config=machines.ssh_config, start_timeout_s=START_S
        ) as cluster:
            cluster.run(TRAIN, sink=TextSink(), timeout=CELL_S)
            path = Path(folder) / "timeline.json"
            cell = MEASURE.format(path=str(path), iterations=ITERATIONS)
            cluster.run(cell, sink=TextSink(), timeout=CELL_S)
            compare(table, cluster, spans(whole_timeline(path)))


def compare(table, cluster, logged):
    """Match collectives by name and iteration; the Timeline's clock begins when it is started."""
    newest = cluster.timings.summary().iteration
    shown = {}
    for one in cluster.timings.records(newest - ITERATIONS + 1, newest):
        if one.rank == 0:
            for place, name in enumerate(one.layout.names):
                own = shown.setdefault(name, [])
                own.append({moment: one.record.start_ns / 1e3 + getattr(one.record, moment)[place]
                            / 10 for moment in MOMENTS})  # fmt: skip
    pairs = {moment: ([], []) for moment in MOMENTS}
    for name, own in shown.items():
        for moment, (activity, end) in MOMENTS.items():
            found = logged[activity][f"allreduce.{name}"]
            assert len(found) == len(own) == ITERATIONS
            pairs[moment][0].extend(one[moment] for one in own)
            pairs[moment][1].extend(span[end] for span in found)
    ahead_us = np.median(np.subtract(*pairs["ended"]))
    for moment, (own, theirs) in pairs.items():
        table.add(f"{moment}, Horovod", (np.array(own) - ahead_us) / 1e3, np.array(theirs) / 1e3)
