"""Trainings for cells, records of trainings by formula, and what is said of them."""

from types import SimpleNamespace

from clusters import SHARED_MODEL
from recorded import MS

from workbench.advisor import explain
from workbench.timings.store import Store
from workbench.wire import Flag, IterationRecord

BEGIN = (
    SHARED_MODEL
    + """
inputs, targets = torch.randn(64, 32), torch.randint(0, 8, (64,))
def loss_of(m): return nn.functional.cross_entropy(m(inputs), targets)
def sgd(m): return torch.optim.SGD(m.parameters(), lr=0.01)
def distributed(m): return hvd.DistributedOptimizer(sgd(m), named_parameters=m.named_parameters())
took = []
def train(m, optimizer, steps=8, reduce=None, after=0.0):
    took.clear()
    for _ in range(steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss_of(m).backward()
        if reduce: reduce(m)
        optimizer.step()
        time.sleep(after)
        took.append(time.perf_counter() - began)
    return list(took)
def by_hand(m):
    for p in m.parameters(): dist.all_reduce(p.grad)
"""
)


HEARD = {
    "by hand": "m = net(); train(m, sgd(m), reduce=by_hand)",
    "a list of objects": """
def gather(m): dist.all_gather_object([None] * world_size, 1)
m = net(); train(m, sgd(m), reduce=gather)""",
    "FSDP2": """
from torch.distributed.fsdp import fully_shard
m = net()
fully_shard(m)
train(m, sgd(m))""",
    "ZeRO": """
from torch.distributed.optim import ZeroRedundancyOptimizer
m = net()
train(m, ZeroRedundancyOptimizer(m.parameters(), torch.optim.SGD, lr=0.01))""",
    "functional": """
import torch.distributed._functional_collectives as functional
def reduce(m):
    for p in m.parameters(): functional.all_reduce(p.grad, "sum", dist.group.WORLD).wait()
m = net(); train(m, sgd(m), reduce=reduce)""",
    "Horovod": "m = net(); train(m, distributed(m))",
    "DDP": "m = DistributedDataParallel(net()); train(m, sgd(m))",
    "DDP with a hook that reduces twice": """
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
m = DistributedDataParallel(net())
state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
m.register_comm_hook(state, power.powerSGD_hook)
train(m, sgd(m))""",
    "Horovod after a broadcast by torch.distributed": """
m = net(); optimizer = distributed(m)
for p in m.parameters(): dist.broadcast(p.data, 0)
train(m, optimizer)""",
}


def causes(rows, fabric=None):
    """What `explain` says of rows."""
    found = explain(SimpleNamespace(timings=SimpleNamespace(rows=lambda: rows), fabric=fabric))
    return {cause.name: cause for cause in found}


def record(index, exposed=4.0, other=0.0, flags=Flag.NONE, size=1_000_000):
    """An iteration of 16 ms and what is exposed or in no phase; its phases add up."""
    spent = {"data": 1, "copy": 0, "forward": 5, "backward": 8, "optimizer": 2}
    phases = {f"{name}_ns": ms * MS for name, ms in spent.items()}
    phases |= {"exposed_ns": round(exposed * MS), "other_ns": round(other * MS)}
    total = sum(phases.values())
    return IterationRecord(
        1, index, index * total, total, **phases, communication_ns=round((exposed + 2) * MS),
        overlapped_ns=2 * MS, size_bytes=size, tensors=6, world_size=2, flags=flags,
    )  # fmt: skip


def rows_of(exposed, **options):
    """Rows of two ranks whose exposed time is that, an iteration each; the first warms up."""
    filled = Store()
    for index, ms in enumerate((500.0, *exposed)):
        for rank in (0, 1):
            flags = Flag.NONE if index else Flag.FIRST_OF_CELL
            filled.add(rank, record(index, ms, flags=flags, **options))
    return filled.rows()
