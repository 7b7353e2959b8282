"""The time that recording, or a Timeline, adds to an iteration of 160 gradient tensors.

One model; rounds of blocks, one for each way to train, in an order drawn by
chance that is the same on all ranks. So whatever the machine does meanwhile,
and it does more than the hooks, it does to all of them:

plain
    recording is off, by the switch that ``%timings off`` uses
ours
    recording is on: hooks, records, their sending, the store and a live view
patient
    recording is off, but waits for a collective pause between polls as ours do:
    compared with it, the hooks alone differ from what that pausing saves
timeline
    Horovod's own Timeline is written. In a separate cluster, as Horovod has a
    busy thread more wherever that may be asked for

Wall time needs long blocks and a core per rank; on one rank, with a core free, 1000 rounds of
shorter blocks take a quarter of an hour. CPU time, of the training thread and of all threads of a
rank until its records are sent, is compared in many short blocks: on two ranks, and on one, which
waits for nobody.
"""

import os
import statistics

from tests.bench.bounds import at_most, sized
from tests.bench.stats import interval

LIMIT_PERCENT = 0.4
LIMIT_PERCENT_HIGH = 0.8
"""Of the upper end of the interval."""
THREAD_US = 60
PROCESS_US = 150
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
WIDE = LINEAR.replace("torch.randn(64, 64)", "torch.randn(1024, 64)")
SOURCE = """
import os, random, tempfile, time, torch
from torch import nn
import horovod.torch.mpi_ops as mpi_ops
import horovod.torch.optimizer as distributed
import workbench.rank.session as session
from workbench.rank.recording.waits import WATCH_MAX_S, WATCH_SHARE

torch.manual_seed(0)
torch.set_num_threads(1)  # with more, OpenMP's polling would be most of the CPU time
{model}
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1e-5), named_parameters=model.named_parameters())
if world_size == 1:
    optimizer._register_hooks()  # Horovod leaves them out on one rank

def clocks():
    return time.perf_counter(), time.thread_time(), time.process_time()

def block(iterations):
    began = clocks()
    for _ in range(iterations):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    wall, thread, _ = clocks()
    if its._records is not None:
        its._records.flush()  # all threads have then done what belongs to this block
    ended = wall, thread, time.process_time()
    return [(end - begin) / iterations for begin, end in zip(began, ended)]

its = session._session
def listen(on):
    its.record(on)
    if on:
        for hook in its.hooks:
            hook.begin_cell()  # searches for the model

def patient(handle):
    began = now = time.perf_counter()
    while not mpi_ops.mpi_lib.horovod_torch_poll(handle):
        time.sleep(min((now - began) * WATCH_SHARE, WATCH_MAX_S))
        now = time.perf_counter()
    return waits(handle)

def turn(way, iterations):
    global waits
    listen(way == "ours")
    waits = distributed.synchronize
    if way == "patient":
        distributed.synchronize = patient
    if way == "timeline":
        hvd.start_timeline(path)
    block({warm})
    hvd.barrier()
    taken = block(iterations)
    hvd.barrier()
    if way == "timeline":
        hvd.stop_timeline()
    distributed.synchronize = waits
    return taken

path = os.path.join(tempfile.mkdtemp(), "timeline.json")
order = random.Random(0)
block(5)
iterations = hvd.broadcast_object(max(2, round({seconds} / block(5)[0])), root_rank=0)
rounds = [
    {{way: turn(way, iterations) for way in order.sample({ways}, len({ways}))}}
    for _ in range({rounds})
]
listen(True)
rounds
"""
SMALL = "160 tensors of 64 x 64 and 64, 1.3 MB"
SHAPES = sized(
    (("ResNet-50's 161 tensors, 102 MB", RESNET, 1.5, 30), (SMALL, LINEAR, 1.0, 30)),
    ((SMALL, LINEAR, 0.1, 2),),
)
"""Name, model, seconds of a block, rounds."""
ALONE_S, ALONE_ROUNDS = sized((0.25, 1000), (0.1, 2))
"""The same of one rank; a block contains some messages with records."""
CPU_RANKS = sized((1, 2), (1,))
CPU_ROUNDS = sized(200, 2)
CPU_BLOCK_S = 0.2
_WALL, _THREAD, _PROCESS = range(3)


def measure():
    """Report how much longer an iteration takes, its CPU time, and the interval of the mean."""
    for name, model, seconds, rounds in SHAPES:
        print(name)
        taken = _run(("plain", "ours", "patient"), model, seconds, rounds)
        yield from _added(name, "ours", "plain", taken)
        _added(name, "ours", "patient", taken)
        os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
        try:
            taken = _run(("plain", "timeline"), model, seconds, rounds // 2)
            _added(name, "timeline", "plain", taken)
        finally:
            del os.environ["HOROVOD_TIMELINE"]
    name = "an iteration of some 25 ms with 160 tensors, one rank"
    print(name)
    taken = _run(("plain", "ours", "patient"), WIDE, ALONE_S, ALONE_ROUNDS, n=1)
    yield from _added(name, "ours", "plain", taken)
    _added(name, "ours", "patient", taken)
    for ranks in CPU_RANKS:
        shape = f"CPU time of a rank, {SMALL}, {ranks} rank{'s' if ranks > 1 else ''}"
        print(shape)
        ways = ("plain", "ours", "patient")
        taken = _run(ways, LINEAR, CPU_BLOCK_S, CPU_ROUNDS, ranks)
        for threads, clock, limit in (
            ("training thread", _THREAD, THREAD_US),
            ("all threads", _PROCESS, PROCESS_US),
        ):
            added_us = _added_cpu(threads, clock, "plain", taken)
            _added_cpu(threads, clock, "patient", taken)
            yield at_most(f"{shape}, {threads}, added to plain", added_us, limit, "us")


def _run(ways, model, seconds, rounds, n=2):
    """Return wall, thread and process time per iteration, by way and round."""
    import workbench as wb
    from workbench.cluster import TextSink
    from workbench.widgets.cluster_source import ClusterSource
    from workbench.widgets.stream import Stream

    source = SOURCE.format(
        model=model, seconds=seconds, rounds=rounds, ways=ways, warm=3 if seconds > 0.5 else 2
    )
    with wb.Cluster(n=n) as cluster:
        view = Stream(ClusterSource(cluster), lambda message: None, lambda: None)
        view.start()
        values = cluster.run(source, sink=TextSink()).values
        view.close()
    # ranks train in lockstep: their mean has less noise than either
    return {
        way: [
            [statistics.fmean(times) for times in zip(*(one[way] for one in each), strict=True)]
            for each in zip(*values.values(), strict=True)
        ]
        for way in ways
    }


def _added(shape, way, against, taken):
    """Print what a way adds to the wall time of another, and return the bounds of that."""
    own, others = ([one[_WALL] for one in taken[name]] for name in (way, against))
    base = statistics.median(others)
    shares = [(one - other) / base for one, other in zip(own, others, strict=True)]
    mean, low, high = interval(shares)
    print(
        f"  {way} against {against} ({base * 1e3:.1f} ms, {len(shares)} rounds): {mean:+.2%} "
        f"(95 %: {low:+.2%} to {high:+.2%}), {mean * base * 1e6:+.0f} us; "
        f"median {statistics.median(shares):+.2%}"
    )
    figure = f"{shape}, {way} against {against}"
    return (
        at_most(f"{figure}, mean", 100 * mean, LIMIT_PERCENT, "%"),
        at_most(f"{figure}, upper end of the mean", 100 * high, LIMIT_PERCENT_HIGH, "%"),
    )


def _added_cpu(what, clock, against, taken):
    """Print and return a median: a busy machine makes some blocks several times as expensive."""
    own, others = ([one[clock] * 1e6 for one in taken[name]] for name in ("ours", against))
    differences = [one - other for one, other in zip(own, others, strict=True)]
    middle, low, high = interval(differences, of=statistics.median)
    print(
        f"  {what}, ours against {against}: {statistics.median(own):.0f} us against "
        f"{statistics.median(others):.0f} us; median of {len(differences)} differences "
        f"{middle:+.0f} us (95 %: {low:+.0f} to {high:+.0f} us)"
    )
    return middle
