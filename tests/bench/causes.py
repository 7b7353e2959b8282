"""Planted causes of slow iterations, and whether ``explain`` names them first.

Two VMs with links of 2 Gbit/s. In each run one thing is slow, by a random amount: a rank, in its
loader, forward or backward; the link of one VM; or the loader of both ranks.
"""

import random
import re

import workbench as wb
from workbench.testbed import vms, why_not

RUNS = 20
GBPS = 2.0
TRAIN = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader
torch.set_num_threads(1)
class Items:
    def __init__(self, late_s): self.late_s = late_s
    def __len__(self): return 4 * 25
    def __getitem__(self, place):
        time.sleep(self.late_s / 4)
        return torch.full((64,), place / 100.0)
class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, batch, forward_s, backward_s):
        time.sleep(forward_s)
        ctx.late_s = backward_s
        return batch.view_as(batch)
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.late_s)
        return gradient, None, None
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 1024), nn.Linear(1024, 512)
        self.forward_s = self.backward_s = 0.0
    def forward(self, batch):
        hidden = torch.relu(self.first(batch))
        return self.last(Late.apply(hidden, self.forward_s, self.backward_s))
model = Net()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1e-4), named_parameters=model.named_parameters())
def train(data=0.0, forward=0.0, backward=0.0, ranks=(0, 1)):
    mine = rank in ranks
    model.forward_s, model.backward_s = forward * mine, backward * mine
    for batch in DataLoader(Items(data * mine), batch_size=4):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
train()
"""
PLANTED = {
    "a late rank": r"waiting for rank {rank}",
    "a slow link": r"communication slower than the fabric|a slow link",
    "a slow loader": r"data loading",
}


def plant(chance, machines, cluster, kind):
    """Run a cell with one thing that is slow; return what it was and what `explain` says."""
    rank, late_s = chance.randrange(2), chance.uniform(0.01, 0.05)
    gbps = chance.uniform(0.1, 0.4)
    where, call = f"{late_s * 1e3:.0f} ms", f"train(data={late_s})"
    if kind == "a late rank":
        phase = chance.choice(["data", "forward", "backward"])
        where, call = f"rank {rank}, {phase}, {where}", f"train({phase}={late_s}, ranks=[{rank}])"
    elif kind == "a slow link":
        where, call = f"{machines.names[rank]}, {gbps:.2f} Gbit/s", "train()"
        machines.shape(machines.names[rank], gbps)
    try:
        cluster.run(call)
    finally:
        machines.shape(machines.names[rank], GBPS)
    causes = wb.explain(cluster)
    named = bool(causes and re.fullmatch(PLANTED[kind].format(rank=rank), causes[0].name))
    return named, where, causes[0].name if causes else "nothing"


def measure(seed=0):
    """Report how many runs of each kind are explained by what was planted."""
    if (reason := why_not()) is not None:
        print(f"not measured: {reason}")
        return
    chance = random.Random(seed)
    kinds = [kind for kind in PLANTED for _ in range(RUNS)]
    chance.shuffle(kinds)
    found = dict.fromkeys(PLANTED, 0)
    with vms(2, gbps=GBPS) as machines:
        hosts = ",".join(f"{name}:1" for name in machines.names)
        with wb.Cluster(hosts=hosts, ssh_config=machines.ssh_config) as cluster:
            cluster.run(TRAIN)
            cluster.calibrate()
            for kind in kinds:
                named, where, instead = plant(chance, machines, cluster, kind)
                found[kind] += named
                if not named:
                    print(f"  missed: {kind} ({where}) was explained by {instead}")
    for kind, count in found.items():
        print(f"  {kind:<14}{count} of {RUNS} named first")
