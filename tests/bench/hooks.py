"""What everything of ours adds to an iteration of 160 gradient tensors, and what a Timeline does.

One model; rounds of blocks, one for each way to train, in an order drawn by
chance that is the same on all ranks. So whatever the machine does meanwhile,
and it does more than the hooks, it does to all of them:

plain
    nothing listens
ours
    hooks, records, their sending, the store and a live view
patient
    nothing listens, but waits for a collective pause between looks as ours do:
    against it the hooks alone can be told from what that pausing saves
timeline
    Horovod's own Timeline is written. In a cluster by itself, as Horovod has a
    busy thread more wherever that may be asked for

A block is long against what is sent of it after its end.
"""

import os
import statistics

from tests.bench.stats import interval

LIMIT = 0.004
MOST = 0.01
RESNET = """
class Bottleneck(nn.Module):
    def __init__(self, into, width, stride):
        super().__init__()
        norm, out = nn.BatchNorm2d, 4 * width
        self.main = nn.Sequential(
            nn.Conv2d(into, width, 1, bias=False), norm(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), norm(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), norm(out))
        self.side = nn.Identity() if into == out else nn.Sequential(
            nn.Conv2d(into, out, 1, stride, bias=False), norm(out))
    def forward(self, x):
        return torch.relu(self.main(x) + self.side(x))

blocks, into = [], 64
for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
    for place in range(depth):
        blocks.append(Bottleneck(into, width, 2 if width > 64 and place == 0 else 1))
        into = 4 * width
model = nn.Sequential(
    nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
    *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
inputs = torch.randn(2, 3, 64, 64)
"""
LINEAR = """
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(80)])
inputs = torch.randn(64, 64)
"""
SOURCE = """
import os, random, tempfile, time, torch
from torch import nn
import horovod.torch.mpi_ops as mpi_ops
import horovod.torch.optimizer as distributed
import workbench.rank.session as session
from workbench.rank.collectives import WATCH_MOST_S, WATCH_SHARE

torch.manual_seed(0)
{model}
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1e-5), named_parameters=model.named_parameters())

def block(iterations):
    began = time.perf_counter()
    for _ in range(iterations):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return (time.perf_counter() - began) / iterations

def listen(on):
    for hook in session._session.hooks:
        hook.install() if on else hook.remove()
        if on:
            hook.begin_cell()  # the model is met anew

def patient(handle):
    began = now = time.perf_counter()
    while not mpi_ops.mpi_lib.horovod_torch_poll(handle):
        time.sleep(min((now - began) * WATCH_SHARE, WATCH_MOST_S))
        now = time.perf_counter()
    return waits(handle)

def turn(way, iterations):
    global waits
    if way != "ours":
        listen(False)
    waits = distributed.synchronize
    if way == "patient":
        distributed.synchronize = patient
    if way == "timeline":
        hvd.start_timeline(path)
    block(3)
    hvd.barrier()
    taken = block(iterations)
    hvd.barrier()
    if way == "timeline":
        hvd.stop_timeline()
    distributed.synchronize = waits
    time.sleep(0.2)  # what is left to send leaves now, not in the next block
    if way != "ours":
        listen(True)
    return taken

path = os.path.join(tempfile.mkdtemp(), "timeline.json")
order = random.Random(0)
block(5)
iterations = hvd.broadcast_object(max(2, round({seconds} / block(5))), root_rank=0)
rounds = [
    {{way: turn(way, iterations) for way in order.sample({ways}, len({ways}))}}
    for _ in range({rounds})
]
rounds
"""
SHAPES = (
    ("ResNet-50's 161 tensors, 102 MB", RESNET, 1.5, 30),
    ("160 tensors of 64 x 64 and 64, 1.3 MB", LINEAR, 1.0, 30),
)
"""Name, model, seconds of a block, rounds."""


def measure():
    """Print how much longer an iteration takes, and the interval of the mean."""
    for name, model, seconds, rounds in SHAPES:
        print(name)
        _compare(("plain", "ours", "patient"), model, seconds, rounds)
        os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
        try:
            _compare(("plain", "timeline"), model, seconds, rounds // 2)
        finally:
            del os.environ["HOROVOD_TIMELINE"]
    print(f"at most {LIMIT:.1%}, and {MOST:.0%} at the upper end, is where it must get to")


def _compare(ways, model, seconds, rounds):
    import workbench as wb
    from workbench.cluster import TextSink
    from workbench.widgets.cluster_source import ClusterSource
    from workbench.widgets.stream import Stream

    source = SOURCE.format(model=model, seconds=seconds, rounds=rounds, ways=ways)
    with wb.Cluster(n=2) as cluster:
        view = Stream(ClusterSource(cluster), lambda message: None, lambda: None)
        view.start()
        values = cluster.run(source, sink=TextSink()).values
        view.close()
    # ranks train in lockstep: their mean has less noise than either
    taken = {
        way: [
            statistics.fmean(one[way] for one in each)
            for each in zip(*values.values(), strict=True)
        ]
        for way in ways
    }
    _say("ours" if "ours" in ways else "timeline", "plain", taken)
    if "patient" in ways:
        _say("ours", "patient", taken)


def _say(way, against, taken):
    base = statistics.median(taken[against])
    shares = [(own - other) / base for own, other in zip(taken[way], taken[against], strict=True)]
    mean, low, high = interval(shares)
    print(
        f"  {way} against {against} ({base * 1e3:.1f} ms, {len(shares)} rounds): {mean:+.2%} "
        f"(95 %: {low:+.2%} to {high:+.2%}), {mean * base * 1e6:+.0f} us; "
        f"median {statistics.median(shares):+.2%}"
    )
