"""What everything of ours adds to an iteration of 160 gradient tensors, and what a Timeline does.

One model; rounds of three blocks, in an order drawn by chance that is the same
on all ranks: nothing listens, all of ours does (hooks, records, their sending,
the store, a live view), or Horovod's own Timeline does. So whatever the machine
does meanwhile, and it does more than the hooks, it does to all three. A block
is long against what is sent of it after its end.
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
import workbench.rank.session as session

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

def turn(arm, iterations):
    if arm != "ours":
        listen(False)
    if arm == "timeline":
        hvd.start_timeline(path)
    hvd.barrier()
    taken = block(iterations)
    hvd.barrier()
    if arm == "timeline":
        hvd.stop_timeline()
    time.sleep(0.2)  # what is left to send leaves now, not in the next block
    if arm != "ours":
        listen(True)
    return taken

path = os.path.join(tempfile.mkdtemp(), "timeline.json")
order = random.Random(0)
block(5)
iterations = hvd.broadcast_object(max(2, round({seconds} / block(5))), root_rank=0)
rounds = [
    {{arm: turn(arm, iterations) for arm in order.sample(("off", "ours", "timeline"), 3)}}
    for _ in range({rounds})
]
rounds
"""
SHAPES = (
    ("ResNet-50's 161 tensors, 102 MB", RESNET, 10),
    ("160 tensors of 64 x 64 and 64, 1.3 MB", LINEAR, 10),
)
BLOCK_S = 1.0


def measure():
    """Print how much longer an iteration takes, and the interval of the mean."""
    import workbench as wb
    from workbench.cluster import TextSink
    from workbench.widgets.cluster_source import ClusterSource
    from workbench.widgets.stream import Stream

    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
    try:
        for name, model, rounds in SHAPES:
            source = SOURCE.format(model=model, seconds=BLOCK_S, rounds=rounds)
            with wb.Cluster(n=2) as cluster:
                view = Stream(ClusterSource(cluster), lambda message: None, lambda: None)
                view.start()
                values = cluster.run(source, sink=TextSink()).values
                view.close()
            _say(name, values)
    finally:
        del os.environ["HOROVOD_TIMELINE"]
    print(f"at most {LIMIT:.1%}, and {MOST:.0%} at the upper end, is where it must get to")


def _say(name, values):
    # ranks train in lockstep: their mean has less noise than either
    rounds = [
        {arm: statistics.fmean(values[rank][at][arm] for rank in values) for arm in one}
        for at, one in enumerate(values[0])
    ]
    base = statistics.median(one["off"] for one in rounds)
    print(f"{name}: {base * 1e3:.1f} ms an iteration, {len(rounds)} rounds")
    for arm, label in (("ours", "all of ours"), ("timeline", "Horovod's Timeline")):
        shares = [(one[arm] - one["off"]) / base for one in rounds]
        mean, low, high = interval(shares)
        print(
            f"  {label} adds {mean:+.2%} (95 %: {low:+.2%} to {high:+.2%}), "
            f"{mean * base * 1e6:+.0f} us; median {statistics.median(shares):+.2%}"
        )
