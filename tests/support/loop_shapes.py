"""Training loops with a known time in each phase, and with known samples.

Each shape sleeps `T_S` once in a phase, unless its figures say otherwise. The first iteration is
left out of the phases, since it begins with its first batch or forward.
"""

from typing import Any, NamedTuple

T_S = 0.1
"""Each planted sleep."""

PRELUDE = f"""
import contextlib, queue, threading, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
torch.manual_seed(0)
T = {T_S}
class Rows(Dataset):
    def __init__(self, batches=5, size=4, seconds=T, rest=0):
        self.count, self.size, self.seconds = batches * size + rest, size, seconds
    def __len__(self): return self.count
    def __getitem__(self, i):
        if i % self.size == 0: time.sleep(self.seconds)
        return torch.ones(16), torch.tensor(i % 4)
def loader(batches=5, size=4, seconds=T, kind=DataLoader, rest=0, **more):
    return kind(Rows(batches, size, seconds, rest), batch_size=size, **more)
class Net(nn.Module):
    def __init__(self, seconds=T):
        super().__init__()
        self.linear, self.seconds = nn.Linear(16, 4), seconds
    def forward(self, x):
        time.sleep(self.seconds)
        return self.linear(x)
class SleepInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss): return loss.clone()
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(T)
        return gradient
def wrapped(net, **options):
    if 'hvd' in globals():
        sgd = torch.optim.SGD(net.parameters(), lr=0.01)
        return net, hvd.DistributedOptimizer(
            sgd, named_parameters=net.named_parameters(), **options)
    model = nn.parallel.DistributedDataParallel(net)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)
def loss_of(output, y): return SleepInBackward.apply(nn.functional.cross_entropy(output, y))
def step(x, y):
    optimizer.zero_grad()
    loss_of(net(x), y).backward()
    optimizer.step()
net, optimizer = wrapped(Net())
"""


class Shape(NamedTuple):
    """A loop.

    Attributes
    ----------
    source
        The cell, after `PRELUDE`.
    sleeps
        How many times `T_S` each phase has in an iteration.
    samples
        The samples of each iteration; None where they are unknown.
    """

    source: str
    samples: list[int | None]
    sleeps: dict[str, float]

    def expected_us(self, phase: str) -> float:
        """Return the planted time of a phase."""
        return 1e6 * T_S * self.sleeps.get(phase, 0)


def shape(source: str, samples: Any = (4,) * 5, **sleeps: float) -> Shape:
    """Return a shape that computes once, and loads once, unless it is said otherwise."""
    return Shape(source, list(samples), {"data": 1, "forward": 1, "backward": 1} | sleeps)


ASKING = """
source = iter({loader})
batch = next(source)
while batch is not None:
    x, y = batch
    optimizer.zero_grad()
    loss = loss_of(net(x{converted}), y)
    {after_forward}
    loss.backward()
    {after_backward}
    optimizer.step()
    {after_step}
"""


def asking(where: str, *, loader: str = "loader()", converted: str = "") -> str:
    """Return a loop that asks for the next batch after the forward, the backward or the step."""
    places = dict.fromkeys(("after_forward", "after_backward", "after_step"), "")
    places[where] = "batch = next(source, None)"
    return ASKING.format(loader=loader, converted=converted, **places)


SHAPES = {
    "plain": shape("for x, y in loader(): step(x, y)"),
    "asked between forward and backward": shape(asking("after_forward")),
    "asked between backward and step": shape(asking("after_backward")),
    "asked after the step": shape(asking("after_step")),
    "read ahead, with a smaller last batch": shape(
        asking("after_forward", loader="loader(rest=2)"), [4] * 5 + [2]
    ),
    "read ahead and converted": shape(
        asking("after_forward", loader="loader(rest=2)", converted=".double().float()"),
        [4] * 5 + [2],
    ),
    "asked in the closure of the step": shape(
        """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
source = iter(loader())
def closure():
    x, y = next(source)
    optimizer.zero_grad()
    loss = loss_of(net(x), y)
    loss.backward()
    return loss
for _ in range(5): optimizer.step(closure)
"""
    ),
    "a closure that is called several times": shape(
        """
net = Net()
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.01, max_iter=2, max_eval=2)
for x, y in loader():
    def closure():
        optimizer.zero_grad()
        loss = loss_of(net(x), y)
        loss.backward()
        return loss
    optimizer.step(closure)
""",
        forward=2,
        backward=2,
    ),
    "an iterator that takes long to make": shape(
        """
class Sampler:
    def __iter__(self):
        time.sleep(T)
        return iter([[0, 1, 2, 3]])
    def __len__(self): return 1
for _ in range(5):
    for x, y in DataLoader(Rows(seconds=0), batch_sampler=Sampler()): step(x, y)
"""
    ),
    "a teacher without gradients": shape(
        """
teacher = Net()
for x, y in loader():
    with torch.no_grad(): teacher(x)
    step(x, y)
""",
        other=1,
    ),
    "a teacher in eval mode with gradients": shape(
        """
teacher = Net().eval()
for x, y in loader():
    teacher(x).detach()
    step(x, y)
""",
        other=1,
    ),
    "two passes over one batch": shape(
        """
for x, y in loader():
    loss_of(net(x), y).backward()
    if hasattr(optimizer, 'synchronize'): optimizer.synchronize()
    optimizer.zero_grad()
    loss_of(net(x), y).backward()
    optimizer.step()
""",
        forward=2,
        backward=2,
    ),
    "an evaluation in eval mode with gradients": shape(
        """
for x, y in loader(seconds=0):
    step(x, y)
    net.eval()
    for vx, vy in loader(2, 16): net(vx)
    net.train()
""",
        data=0,
        other=4,
    ),
    "an evaluation without gradients, converted": shape(
        """
for x, y in loader():
    step(x, y)
    with torch.no_grad():
        for vx, vy in loader(1, 16): net(vx.double().float())
""",
        other=2,
    ),
    "every second batch is skipped": shape(
        """
for place, (x, y) in enumerate(loader(10)):
    if place % 2 == 0: step(x, y)
""",
        data=2,
    ),
    "skipped, and converted": shape(
        """
for place, (x, y) in enumerate(loader(10)):
    if place % 2: step(x.double().float(), y)
""",
        data=2,
    ),
    "the first batches are skipped": shape(
        "for place, (x, y) in enumerate(loader(12)):\n    if place >= 7: step(x, y)"
    ),
    "a thread reads ahead": shape(
        """
batches = queue.Queue(2)
def read():
    for batch in loader(): batches.put(batch)
    batches.put(None)
thread = threading.Thread(target=read, daemon=True); thread.start()
while (batch := batches.get()) is not None: step(*batch)
thread.join()
""",
        data=0,
    ),
    "a thread evaluates with a loader of its own": shape(
        """
other, stop = Net(0.001), threading.Event()
def evaluate():
    while not stop.is_set():
        with torch.no_grad():
            for vx, vy in loader(2, 16, 0.002): other(vx)
thread = threading.Thread(target=evaluate, daemon=True); thread.start()
for x, y in loader(): step(x, y)
stop.set(); thread.join()
"""
    ),
    "a subclass with a generator": shape(
        """
class Moved(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            time.sleep(T)
            yield batch
for x, y in loader(kind=Moved): step(x, y)
""",
        data=2,
    ),
    "a subclass that reads ahead": shape(
        """
class Ahead(DataLoader):
    def __iter__(self):
        source = super().__iter__()
        batch = next(source)
        for later in source:
            yield batch
            batch = later
        yield batch
for x, y in loader(kind=Ahead, rest=2): step(x, y)
""",
        [4] * 5 + [2],
    ),
    "a named generator": shape(
        """
import workbench
def batches():
    for _ in range(5):
        time.sleep(T)
        yield torch.ones(4, 16), torch.arange(4)
for x, y in workbench.data(batches()): step(x, y)
"""
    ),
    "a named class, asked with next": shape(
        """
import workbench
class Source:
    def __iter__(self):
        time.sleep(T)
        return iter([(torch.ones(4, 16), torch.arange(4))])
for _ in range(5):
    named = iter(workbench.data(Source()))
    x, y = next(named)
    step(x, y)
"""
    ),
    "two batches are accumulated": shape(
        """
if 'hvd' in globals(): net, optimizer = wrapped(Net(), backward_passes_per_step=2)
for place, (x, y) in enumerate(loader(10)):
    if place % 2 == 0: optimizer.zero_grad()
    loss_of(net(x), y).backward()
    if place % 2: optimizer.step()
""",
        [8] * 5,
        data=2,
        forward=2,
        backward=2,
    ),
    "batches of two loaders in one forward": shape(
        """
for (x, y), (u, v) in zip(loader(), loader(size=12)):
    step(torch.cat([x, u]), torch.cat([y, v]))
""",
        [16] * 5,
        data=2,
    ),
    "two batches of one loader in one forward": shape(
        """
source = iter(loader(10))
for _ in range(5):
    (x, y), (u, v) = next(source), next(source)
    step(torch.cat([x, u]), torch.cat([y, v]))
""",
        [None] * 5,
        data=2,
    ),
    "two views of a batch": shape(
        """
for x, y in loader(): step(torch.cat([x, x.flip(0)]), torch.cat([y, y]))
"""
    ),
    "a stream": shape(
        """
class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(5):
            time.sleep(T)
            yield torch.ones(4, 16), torch.arange(4)
for x, y in DataLoader(Stream(), batch_size=None): step(x, y)
"""
    ),
    "arguments by keyword": shape(
        """
class Rows2(Rows):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return {'x': x, 'y': y}
for batch in DataLoader(Rows2(), batch_size=4):
    y = batch.pop('y')
    optimizer.zero_grad()
    loss_of(net(**batch), y).backward()
    optimizer.step()
"""
    ),
    "two optimizers share a batch": shape(
        """
first, second = (net, optimizer), wrapped(Net())
for x, y in loader():
    for net, optimizer in (first, second): step(x, y)
""",
        forward=2,
        backward=2,
    ),
    "fine-tuning in eval mode": shape("net.eval()\nfor x, y in loader(): step(x, y)"),
    "batches that were kept": shape(
        """
batches = list(loader(3, seconds=0))
for _ in range(2):
    for x, y in batches: step(x, y)
""",
        [4] * 6,
        data=0,
    ),
    "a thread trains": shape(
        """
def train():
    for x, y in loader(): step(x, y)
thread = threading.Thread(target=train); thread.start(); thread.join()
"""
    ),
    "a pause after the step": shape(
        "for x, y in loader():\n    step(x, y)\n    time.sleep(T)", other=1
    ),
}
"""By name."""

REPRESENTATIVE = (
    "asked between forward and backward",
    "asked in the closure of the step",
    "a teacher without gradients",
    "an evaluation in eval mode with gradients",
    "every second batch is skipped",
    "a thread evaluates with a loader of its own",
    "a subclass that reads ahead",
    "a named generator",
)
"""The shapes of ``make test``."""
