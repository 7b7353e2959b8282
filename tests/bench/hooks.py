"""What the hooks, the records and their sending add to an iteration of 160 gradient tensors.

One model; the hooks are on in one block of each pair and off in the other, in
an order drawn by chance that is the same on all ranks. So whatever the machine
does meanwhile, and it does more than the hooks, it does to both. A block is
long against what is sent of it after its end.
"""

import statistics

from tests.bench.stats import interval

LIMIT = 0.004
SOURCE = """
import random, time, torch
from torch import nn
import workbench.rank.session as session

torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear({width}, {width}) for _ in range(80)])
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1e-4), named_parameters=model.named_parameters())
inputs = torch.randn({batch}, {width})

def block(iterations):
    began = time.perf_counter()
    for _ in range(iterations):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return (time.perf_counter() - began) / iterations

def hooks(on):
    for hook in session._session.hooks:
        hook.install() if on else hook.remove()

def pair(iterations):
    taken = {{}}
    for on in order.sample((True, False), 2):
        if not on:
            hooks(False)
        taken[on] = block(iterations)
        time.sleep(0.2)  # what is left to send leaves now, not in the next block
        if not on:
            hooks(True)
    return taken[True], taken[False]

order = random.Random(0)
block(20)
iterations = hvd.broadcast_object(max(1, round({seconds} / block(20))), root_rank=0)
pairs = [pair(iterations) for _ in range({pairs})]
pairs
"""
SHAPES = ((64, 64), (256, 256))
"""Width and batch of the model."""
BLOCK_S = 1.0
PAIRS = 20


def measure():
    """Print how much longer an iteration takes with hooks, and the interval of the mean."""
    import workbench as wb
    from workbench.cluster import TextSink

    for width, batch in SHAPES:
        source = SOURCE.format(width=width, batch=batch, seconds=BLOCK_S, pairs=PAIRS)
        with wb.Cluster(n=2) as cluster:
            values = cluster.run(source, sink=TextSink()).values
        for rank, pairs in values.items():
            base = statistics.median(off for _, off in pairs)
            shares = [(on - off) / base for on, off in pairs]
            mean, low, high = interval(shares)
            print(
                f"rank {rank}, {base * 1e3:.1f} ms an iteration, {len(pairs)} pairs: hooks add "
                f"{mean:+.2%} (95 %: {low:+.2%} to {high:+.2%}), {mean * base * 1e6:+.0f} us"
            )
    print(f"at most {LIMIT:.1%} is where it must get to")
