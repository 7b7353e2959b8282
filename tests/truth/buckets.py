"""DistributedDataParallel on two ranks of this machine, against a communication hook's stamps."""

import workbench as wb
from tests.truth import START_S
from workbench.cluster import TextSink

ITERATIONS = 20
CELL_S = 120
TRAIN = """
import time, torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
torch.manual_seed(0)
now, marks = time.perf_counter_ns, []
def own(state, bucket):
    began, buffer = now(), bucket.buffer()
    place, size = len(marks), buffer.numel() * buffer.element_size()
    marks.append(None)
    def done(future):
        marks[place] = (began, now(), size)
        return future.value()[0]
    buffer.div_(world_size)
    return dist.all_reduce(buffer, async_op=True).get_future().then(done)
model = DistributedDataParallel(
    nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]), bucket_cap_mb=2)
model.register_comm_hook(None, own)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
def train(iterations):
    found = []
    for _ in range(iterations):
        marks.clear()
        optimizer.zero_grad()
        model(torch.ones(8, 512)).sum().backward()
        optimizer.step()
        found.append(list(marks))
    return found
"""


def measure(table):
    """Train with a hook of the user's own, which the product keeps."""
    with wb.Cluster(n=2, backend="ddp", start_timeout_s=START_S) as cluster:
        cluster.run(TRAIN, sink=TextSink(), timeout=CELL_S)
        values = cluster.run(f"train({ITERATIONS})", sink=TextSink(), timeout=CELL_S).values
        newest = cluster.timings.summary().iteration
        for one in cluster.timings.records(newest - ITERATIONS + 1, newest):
            marks = values[one.rank][one.iteration - newest + ITERATIONS - 1]
            start = one.record.start_ns
            shown = sorted(
                (start + submitted * 100, start + finished * 100, size)
                for submitted, finished, size in zip(
                    one.record.submitted, one.record.finished, one.layout.sizes_bytes, strict=True
                )
            )
            begun, ended, sizes = zip(*shown, strict=True)
            table.add("DDP bucket's bytes", sizes, [size for *_, size in marks])
            table.add("DDP bucket submitted", ms(begun), ms(began for began, *_ in marks))
            table.add("DDP bucket finished", ms(ended), ms(end for _, end, _ in marks))


def ms(times):
    """Nanoseconds as milliseconds."""
    return [one / 1e6 for one in times]
