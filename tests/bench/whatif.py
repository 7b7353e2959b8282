"""Iterations that `what_if` predicts for what was not measured, and then measures.

VMs with links of known rates, low enough that the cores do not limit them; compute waits instead
of using the cores, as a GPU's host thread does. Each prediction is from a training of two ranks
that runs just before the case itself.
"""

import statistics
import time
from contextlib import contextmanager

import numpy as np

import workbench as wb
from tests.bench.bounds import NotMeasured, at_most, sized
from workbench.advisor.measured_training import measure as model_of
from workbench.advisor.what_if import predict
from workbench.fabric import tcp_efficiency
from workbench.fabric.overlap import CommunicationModel, Workload, simulate
from workbench.testbed import vms, why_not

BASE_GBPS = 0.25
ITERATIONS = sized(25, 8)
LIMIT_PERCENT = 3
SECONDS = 0.004
TRAIN = """
import time, torch
from torch import nn
torch.set_num_threads(1)
class Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, seconds):
        time.sleep(seconds)
        ctx.seconds = seconds
        return hidden.view_as(hidden)
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient, None
class Net(nn.Module):
    def __init__(self, elements, seconds):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(n)) for n in elements])
        self.seconds = seconds
    def forward(self, hidden):
        for weight in self.weights:
            hidden = Wait.apply(hidden + weight[:1], self.seconds)
        return hidden
def train(iterations, seconds, **options):
    model = Net([1 << (15 + place % 3) for place in range(16)], seconds)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4), named_parameters=model.named_parameters(),
        **options)
    inputs = torch.ones(1, requires_grad=True)
    for _ in range(iterations):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
"""
FP16 = "compression=hvd.Compression.fp16"
RATES = (0.1, 0.15, 0.5)
CASES = [
    *({"gbps": gbps} for gbps in RATES),
    *({"gbps": gbps, "compression": "fp16"} for gbps in RATES),
    *({"gbps": gbps, "batch_scale": 2.0} for gbps in RATES),
    *({"gbps": gbps, "fusion_threshold_bytes": size} for gbps in (0.1, 0.5) for size in (0, 1e6)),
    *({"gbps": gbps, "ranks": ranks} for ranks in (3, 4) for gbps in RATES),
]


def train(machines, cluster, case):
    """Train a case, or the base without one, and return its measured iteration."""
    for name in machines.names:
        machines.shape(name, case.get("gbps", BASE_GBPS))
    options = [FP16] if case.get("compression") else []
    options += [f"seconds={SECONDS * case.get('batch_scale', 1)}"]
    cluster.run(f"train({ITERATIONS}, {', '.join(options)})")
    return model_of(cluster.timings)


@contextmanager
def started(machines, ranks, threshold=None):
    """Yield a cluster whose ranks have defined the training."""
    hosts = ",".join(f"{name}:1" for name in machines.names[:ranks])
    with wb.Cluster(hosts=hosts, ssh_config=machines.ssh_config) as cluster:
        if threshold is not None:
            setting = f"import os; os.environ['HOROVOD_FUSION_THRESHOLD'] = '{threshold:.0f}'"
            cluster.run(f"{setting}\nhvd.shutdown()\nhvd.init()")
        cluster.run(f"{TRAIN}train(3, {SECONDS})")
        yield cluster


def outcomes(cases):
    """Yield each case, what was predicted for it, and the time of its iteration in us."""
    groups = {_group(case) for case in cases}
    with vms(4, gbps=BASE_GBPS) as machines, started(machines, 2) as base:
        for ranks, threshold in sorted(groups, key=str):
            with started(machines, ranks, threshold) as cluster:
                for case in cases:
                    if _group(case) == (ranks, threshold):
                        before = train(machines, base, {})  # next to it, as the load may change
                        told = predict(before, **_nominal(case))
                        yield case, told, train(machines, cluster, case).iteration_us


def measure():
    """Report the error of each case, and how long simulations take."""
    yield from _speed()
    if (reason := why_not()) is not None:
        raise NotMeasured(reason)
    errors, replays = [], []
    for case, told, true_us in outcomes(sized(CASES, CASES[:1])):
        errors.append(told.predicted_us / true_us - 1)
        replays.append(told.replay_error)
        print(f"  {_name(case):44} from {told.measured_us / 1e3:6.1f} ms, predicted "
              f"{told.predicted_us / 1e3:6.1f} ms, measured {true_us / 1e3:6.1f} ms, "
              f"{errors[-1]:+.1%}", flush=True)  # fmt: skip
    print(f"  error of replays: median {statistics.median(map(abs, replays)):.1%}, "
          f"largest {max(map(abs, replays)):.1%}")  # fmt: skip
    yield at_most("error", [100 * abs(error) for error in errors], LIMIT_PERCENT, "%")


def _group(case):
    """Return the ranks and the fusion threshold of a case, which need a cluster of their own."""
    return case.get("ranks", 2), case.get("fusion_threshold_bytes")


def _nominal(case):
    """Return a case with the nominal rate of a link of its payload; shapers count fewer bytes."""
    factor = tcp_efficiency(1500, 14) / tcp_efficiency()
    return case | ({"gbps": case["gbps"] * factor} if "gbps" in case else {})


def _name(case):
    return ", ".join(f"{name}={value:g}" if not isinstance(value, str) else value
                     for name, value in case.items())  # fmt: skip


def _speed(tensors=161):
    """Report how long simulations of an iteration take."""
    variants = sized(1000, 10)
    chance = np.random.default_rng(0)
    work = Workload(
        tuple(np.sort(chance.uniform(0, 1e5, tensors)).tolist()),
        tuple(chance.integers(1 << 10, 1 << 21, tensors).tolist()), 1e5, 1e4,
    )  # fmt: skip
    models = [
        CommunicationModel(100.0, 8e-3 / gbps, negotiation_us=200.0)
        for gbps in np.linspace(0.1, 100, variants)
    ]
    took = []
    for model in models:
        began = time.perf_counter()
        simulate(work, model)
        took.append(time.perf_counter() - began)
    yield at_most(f"an iteration of {tensors} tensors", [1e3 * one for one in took], 1, "ms")
    yield at_most(f"{variants} variants", sum(took), 1, "s")
