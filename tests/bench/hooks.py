"""What the hooks add to an iteration of 160 gradient tensors, in interleaved blocks."""

import statistics

from tests.bench.stats import interval

LIMIT = 0.004
BLOCKS = 60
SOURCE = """
import statistics, time, torch
from torch import nn
import workbench.rank.session as session
hooks = session._session.hooks

def make(name):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear({width}, {width}) for _ in range(80)])
    named = [(f"{{name}}.{{n}}", p) for n, p in model.named_parameters()]
    return model, hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4), named_parameters=named)

inputs = torch.randn({batch}, {width})

def block(model, optimizer, iterations={iterations}):
    taken = []
    for _ in range(iterations):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)

def switch(on):
    for hook in hooks:
        hook.install() if on else hook.remove()

with_hooks = make("on")
switch(False)
without = make("off")
def run(blocks):
    found = []
    for turn in range(blocks):
        pair = {{}}
        for on in ((True, False) if turn % 2 else (False, True)):
            switch(on) if on else None
            hvd.barrier()
            pair[on] = block(*(with_hooks if on else without))
            switch(False) if on else None
        found.append((pair[True], pair[False]))
    return found
run(3)
pairs = run({blocks})
switch(True)
pairs
"""


def measure():
    """Compare blocks with hooks to their neighbours without, and give the interval of the mean."""
    import workbench as wb
    from workbench.cluster import TextSink

    for width, batch, iterations in ((256, 256, 10), (64, 64, 20)):
        source = SOURCE.format(width=width, batch=batch, iterations=iterations, blocks=BLOCKS)
        with wb.Cluster(n=2) as cluster:
            values = cluster.run(source, sink=TextSink()).values
        for rank, pairs in values.items():
            shares = [on / off - 1 for on, off in pairs]
            mean, low, high = interval(shares)
            base = statistics.median(off for _, off in pairs) * 1e3
            extra = statistics.median(on - off for on, off in pairs) * 1e6
            print(
                f"rank {rank}, {base:.1f} ms an iteration: hooks add {mean:+.2%} "
                f"(95 %: {low:+.2%} to {high:+.2%}), median {extra:+.0f} us"
            )
    print(f"at most {LIMIT:.1%} is where it must get to")
