"""Planted causes of slow iterations: whether ``explain`` names them first, and what they cost.

Two VMs with links of 2 Gbit/s; compute waits instead of using the cores, as a GPU's host thread
does. In each of 20 runs one thing is slow, of ten kinds and by a random amount. Each is then run
without it: the difference is what its removal has really saved. 20 runs with nothing planted are
between them, in which compute takes at least ten times what communication adds: nothing may be
named that costs more than a few percent.
"""

import os
import random
import re
import statistics
from dataclasses import dataclass
from functools import partial

import workbench as wb
from tests.bench.bounds import NotMeasured, at_least, sized
from workbench.testbed import vms, why_not

RUNS = 20
LEAST_NAMED = 19
GBPS = 2.0
CLEAN_SHARE = 0.05
WITHIN = 0.1
TRAIN = """
import os, random, time, torch
from torch import nn
from torch.utils.data import DataLoader
torch.set_num_threads(1)
class Items:
    def __init__(self, count, late_s): self.count, self.late_s = count, late_s
    def __len__(self): return self.count
    def __getitem__(self, place):
        if self.late_s: time.sleep(self.late_s)
        return torch.ones(1)
class Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, forward_s, backward_s):
        time.sleep(forward_s)
        ctx.backward_s = backward_s
        return hidden.view_as(hidden)
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward_s)
        return gradient, None, None
class Net(nn.Module):
    def __init__(self, layers, elements, small, flat):
        super().__init__()
        self.flat = nn.Parameter(torch.zeros(layers * elements)) if flat else None
        count = 0 if flat else layers
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(elements)) for _ in range(count))
        self.small = nn.ParameterList(nn.Parameter(torch.zeros(256)) for _ in range(small))
        self.layers = layers
    def forward(self, hidden, forward_s, backward_s):
        if len(self.small): hidden = hidden + torch.stack([one[0] for one in self.small]).sum()
        if self.flat is not None: hidden = hidden + self.flat[:1]
        for place in range(self.layers):
            if self.flat is None: hidden = hidden + self.weights[place][:1]
            hidden = Wait.apply(hidden, forward_s, backward_s)
        return hidden
def train(layers=8, seconds=0.002, elements=1 << 16, small=0, flat=False, data=0.0, forward=0.0,
          backward=0.0, ranks=(0, 1), uneven=0.0, after=0.0, iterations=30):
    chance, mine = random.Random(iterations), rank in ranks
    model = Net(layers, elements, small, flat)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4), named_parameters=model.named_parameters())
    for batch in DataLoader(Items(iterations, data * mine), batch_size=1):
        late = uneven * (chance.randrange(2) == rank)
        optimizer.zero_grad()
        model(batch, seconds + (forward * mine + late) / layers,
              2 * seconds + backward * mine / layers).sum().backward()
        optimizer.step()
        time.sleep(after)
train(iterations=5)
"""
SLOWER = "communication slower than the fabric|a slow link"


@dataclass
class Planted:
    """What is slow in a run: a call of `train`, rates of links, variables of Horovod."""

    name: str
    where: str
    call: dict
    gbps: dict
    variables: dict
    without: dict
    """The call without it, if that is another one than that of a clean run."""
    samples: float = 1.0
    """How many times the samples an iteration has without it."""


def plant(chance, kind):
    """Return what is planted, by a random amount."""
    rank, late_s = chance.randrange(2), chance.uniform(0.015, 0.05)
    shown, one = f"{late_s * 1e3:.0f} ms", partial(Planted, gbps={}, variables={}, without={})
    if kind == "a late rank":
        phase = chance.choice(["data", "forward", "backward"])
        call = {phase: late_s, "ranks": [rank]}
        return one(f"waiting for rank {rank}", f"rank {rank}, {phase}, {shown}", call)
    if kind in {"a slow link", "slow links"}:
        rate = chance.uniform(0.1, 0.3)
        ends = [rank] if kind == "a slow link" else [0, 1]
        return one(SLOWER, f"{rate:.2f} Gbit/s", {}, gbps=dict.fromkeys(ends, rate))
    if kind == "a slow loader":
        return one("data loading", shown, {"data": late_s})
    if kind == "small tensors without fusion":
        call = {"small": chance.randrange(60, 120), "elements": 256}
        variables = {"HOROVOD_FUSION_THRESHOLD": 0}
        return one("fusion threshold", f"{call['small']} tensors", call, variables=variables,
                   without=call)  # fmt: skip
    if kind == "long cycles":
        variables = {"HOROVOD_CYCLE_TIME": round(chance.uniform(25, 60))}
        return one("queueing", f"{variables['HOROVOD_CYCLE_TIME']} ms", {}, variables=variables)
    if kind == "no overlap":
        elements = chance.randrange(1 << 17, 1 << 18)
        call = {"flat": True, "elements": elements}
        return one("no overlap with the backward", f"{elements * 8 * 4 / 1e6:.1f} MB", call,
                   without={"elements": elements})  # fmt: skip
    if kind == "too little work":
        call = {"layers": 1, "seconds": 0.0001, "elements": 256, "iterations": 200}
        return one("too little work per rank", "0.3 ms", call,
                   without=call | {"seconds": 0.0002}, samples=2.0)  # fmt: skip
    if kind == "a pause":
        return one(r"time in no phase \(other\)", shown, {"after": late_s})
    return one("uneven iterations", shown, {"uneven": late_s})


KINDS = (
    "a late rank", "a slow link", "slow links", "a slow loader", "small tensors without fusion",
    "long cycles", "no overlap", "too little work", "a pause", "uneven iterations",
)  # fmt: skip


def run(machines, cluster, call, gbps=None, variables=None):
    """Train with some links and variables; return the mean iteration and the causes."""
    if variables:
        cluster.run(
            f"os.environ.update({ {k: str(v) for k, v in variables.items()} }); hvd.shutdown()"
        )
    for end, rate in (gbps or {}).items():
        machines.shape(machines.names[end], rate)
    try:
        cluster.run(f"train(**{call})")
    finally:
        for end in gbps or {}:
            machines.shape(machines.names[end], GBPS)
        if variables:
            cluster.run(f"for one in {list(variables)}: del os.environ[one]\nhvd.shutdown()")
    causes = wb.explain(cluster)
    rows = cluster.timings.rows()
    rows = rows[(rows["cell"] == rows["cell"].max())]
    rows = rows[rows["iteration"] > rows["iteration"].min()]
    return float(rows["iteration_ns"].mean()) / 1e3, causes


def clean(chance, machines, cluster):
    """Return whether nothing is named that costs more than a few percent."""
    call = {"seconds": chance.uniform(0.003, 0.006), "elements": chance.randrange(1 << 10, 1 << 14)}
    _, causes = run(machines, cluster, call)
    above = [one for one in causes if one.saving_share > CLEAN_SHARE]
    for one in above:
        print(f"  in a clean run: {one.name}, {one.saving} [{one.uncertainty}]", flush=True)
    return not above


def compare(machines, cluster, one):
    """Train with and without a planted cause; return the first cause, and what it has cost."""
    spent_us, causes = run(machines, cluster, one.call, one.gbps, one.variables)
    rest_us, _ = run(machines, cluster, one.without)
    return causes[0] if causes else None, spent_us - rest_us / one.samples


def is_named(first, one):
    """Return whether the first cause is the planted one."""
    return first is not None and bool(re.fullmatch(one.name, first.name))


def check(machines, cluster, kind, one):
    """Return whether the planted cause is first, and the relative error of its saving."""
    first, saved_us = compare(machines, cluster, one)
    if first is None or not is_named(first, one):
        instead = f"{first.name} ({first.saving})" if first else "nothing"
        print(f"  missed: {kind} ({one.where}) was explained by {instead}", flush=True)
        return False, None
    error = first.saving_us / saved_us - 1
    inside = first.low_us <= saved_us <= first.high_us
    print(f"  {kind:<29}{one.where:<26}{first.saving:>24} [{first.uncertainty}], saved "
          f"{saved_us / 1e3:.2f} ms, {error:+.0%}{'' if inside else ', outside'}",
          flush=True)  # fmt: skip
    return True, error


def measure(seed=0):
    """Report how many planted causes are named first, how many clean runs have none."""
    if (reason := why_not()) is not None:
        raise NotMeasured(reason)
    chance = random.Random(seed)
    kinds = [*KINDS] * (RUNS // len(KINDS))
    chance.shuffle(kinds)
    kinds = sized(kinds, kinds[:1])
    named, errors, without = 0, [], 0
    with vms(2, gbps=GBPS) as machines:
        hosts = ",".join(f"{name}:1" for name in machines.names)
        with wb.Cluster(hosts=hosts, ssh_config=machines.ssh_config) as cluster:
            cluster.run(TRAIN)
            cluster.calibrate(seconds=sized(10, 2))
            for kind in kinds:
                found, error = check(machines, cluster, kind, plant(chance, kind))
                named += found
                errors += [] if error is None else [abs(error)]
                without += clean(chance, machines, cluster)
    close = sum(error <= WITHIN for error in errors)
    typical = f"{statistics.median(errors):.0%}" if errors else "unknown"
    yield at_least(f"of {len(kinds)} planted causes named first", named, LEAST_NAMED)
    clean_title = f"of {len(kinds)} clean runs without a cause above {CLEAN_SHARE:.0%}"
    yield at_least(clean_title, without, len(kinds))
    print(f"  predicted savings: {close} of {len(errors)} came true within {WITHIN:.0%}, median "
          f"error {typical}; load {os.getloadavg()[0]:.1f}")  # fmt: skip
