"""The source of the cells that the steps run on ranks.

Every cell has the variables of the cluster (`rank`, `world_size`, `device`) and those of `BASE`.
On a GPU a model is large enough to keep it busy; on a CPU everything is small.
"""

BASE = '''
import gc, hashlib, os, statistics, time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

gpu = device.type == "cuda"

def finish():
    if gpu:
        torch.cuda.synchronize()

def wrapped(model):
    return DistributedDataParallel(model, device_ids=[device.index] if gpu else None)

def mlp(width, depth):
    layers = [one for _ in range(depth) for one in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))

def small_convnet(width=16):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10),
    )

def convnet():
    if not gpu:
        return small_convnet()
    from torchvision.models import resnet50
    return resnet50(num_classes=10)

class Marks:
    """Times of our own: what lies between two marks has the name of the second."""

    def __init__(self):
        self.rows = []
        self.last = None

    def mark(self, name):
        if gpu:
            now = torch.cuda.Event(enable_timing=True)
            now.record()
        else:
            now = time.perf_counter()
        if name == "data":
            self.rows.append([])
        if self.last is not None and self.rows:
            self.rows[-1].append((name, self.last, now))
        self.last = now

    def medians_us(self):
        """The median of each part and of the optimizer's two, without the first iteration."""
        finish()
        spent = {}
        for row in self.rows[1:]:
            took = {
                name: begin.elapsed_time(end) * 1e3 if gpu else (end - begin) * 1e6
                for name, begin, end in row
            }
            took |= {"optimizer": took["zero"] + took["step"], "iteration": sum(took.values())}
            for name, one in took.items():
                spent.setdefault(name, []).append(one)
        return {name: statistics.median(times) for name, times in spent.items()}

def train(model, optimizer, batches, marks=None, amp=False):
    """Train on batches that are on the host, and mark each part."""
    mark = marks.mark if marks else lambda name: None
    for inputs, targets in batches:
        mark("data")
        inputs, targets = inputs.to(device), targets.to(device)
        mark("copy")
        optimizer.zero_grad()
        mark("zero")
        with torch.autocast(device.type, torch.bfloat16, enabled=amp):
            loss = F.cross_entropy(model(inputs), targets)
        mark("forward")
        loss.backward()
        mark("backward")
        optimizer.step()
        mark("step")
    finish()
    return float(loss.detach())

def captured(once, optimizer):
    """Run an iteration some times on another stream, and capture it in a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        once()
    return graph

def loader(count, batch, *shape):
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(count * batch, *shape, generator=generator)
    targets = torch.randint(0, 10, (count * batch,), generator=generator)
    return DataLoader(TensorDataset(inputs, targets), batch_size=batch)
'''

WHERE = """
import os
import torch
import torch.distributed as dist
where = {
    "device": str(device), "torch": torch.__version__, "rank": rank, "world size": world_size,
    "backend": dist.get_backend() if dist.is_initialized() else "none",
    "visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "threads": torch.get_num_threads(),
}
if device.type == "cuda":
    where["current device"] = torch.cuda.current_device()
    where["name"] = torch.cuda.get_device_name()
    where["sum on the device"] = float(torch.ones(1000, device=device).sum())
where
"""

COLLECTIVES = """
n, right = world_size, {}
mine = torch.arange(1000.0, device=device) * (rank + 1)
total = mine.clone()
dist.all_reduce(total)
expected = torch.arange(1000.0, device=device) * (n * (n + 1) // 2)
right["all_reduce"] = bool((total == expected).all())
least = mine.clone()
dist.all_reduce(least, op=dist.ReduceOp.MIN)
right["all_reduce MIN"] = bool((least == torch.arange(1000.0, device=device)).all())
every = [torch.empty_like(mine) for _ in range(n)]
dist.all_gather(every, mine)
ones = torch.arange(1000.0, device=device)
right["all_gather"] = all(bool((one == ones * (r + 1)).all()) for r, one in enumerate(every))
sent = mine.clone()
dist.broadcast(sent, 0)
right["broadcast"] = bool((sent == torch.arange(1000.0, device=device)).all())
if dist.get_backend() != "gloo":
    part = torch.empty(1000, device=device)
    dist.reduce_scatter_tensor(part, torch.ones(1000 * n, device=device))
    right["reduce_scatter"] = bool((part == n).all())
work = dist.all_reduce(mine, async_op=True)
work.wait()
finish()
right["asynchronous"] = bool(mine[1] == n * (n + 1) // 2)
dist.barrier()
right
"""

NCCL_LOG = """
file = os.environ.get("NCCL_DEBUG_FILE", "")
lines = open(file, errors="replace").read().splitlines() if file and os.path.exists(file) else []
lines[:120]
"""

# width, depth, batch, iterations
TRAIN_MLP = """
torch.manual_seed(0)
model = wrapped(mlp({width}, {depth}).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
marks = Marks()
loss = train(model, optimizer, loader({iterations}, {batch}, {width}), marks)
{{"loss": loss, "own": marks.medians_us()}}
"""

# batch, size, iterations, amp
TRAIN_CONVNET = """
torch.manual_seed(0)
model = wrapped(convnet().to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
marks = Marks()
loss = train(model, optimizer, loader({iterations}, {batch}, 3, {size}, {size}), marks, amp={amp})
{{"loss": loss, "own": marks.medians_us()}}
"""

NEUTRALITY = """
torch.use_deterministic_algorithms(True, warn_only=True)
def graphed_parameters():
    torch.manual_seed(3)
    model = mlp(64, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, targets = torch.randn(32, 64, device=device), torch.zeros(32, device=device).long()
    def once():
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    graph = captured(once, optimizer)
    for _ in range(10):
        graph.replay()
    finish()
    return digest_of(model), 0.0
def digest_of(model):
    digest = hashlib.sha256()
    for one in model.state_dict().values():
        digest.update(one.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
def parameters_after(kind):
    if kind == "CUDA graph":
        return graphed_parameters()
    torch.manual_seed(3)
    if "convnet" in kind:
        model, shape = small_convnet().to(device), (3, 32, 32)
        if "channels-last" in kind:
            model = model.to(memory_format=torch.channels_last)
        model = wrapped(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        model, shape = wrapped(mlp(64, 3).to(device)), (64,)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compute = torch.compile(model) if kind == "torch.compile" else model
    scaler = torch.amp.GradScaler(device.type, enabled=gpu and kind == "convnet with AMP")
    batches = loader(12, 32, *shape)
    if "pinned" in kind:
        batches = DataLoader(batches.dataset, batch_size=32, pin_memory=True)
    for inputs, targets in batches:
        pinned = "pinned" in kind
        inputs = inputs.to(device, non_blocking=pinned)
        targets = targets.to(device, non_blocking=pinned)
        if "channels-last" in kind:
            inputs = inputs.to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.float16 if gpu else torch.bfloat16,
                            enabled=kind == "convnet with AMP"):
            loss = F.cross_entropy(compute(inputs).float(), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return digest_of(model), float(loss.detach())
kinds = ["MLP", "convnet with AMP", "convnet, channels-last"]
if gpu:
    kinds += ["MLP, pinned loader", "torch.compile", "CUDA graph"]
try:
    result = {kind: parameters_after(kind) for kind in kinds}
finally:
    torch.use_deterministic_algorithms(False)
result
"""

# How often an iteration waits for the GPU, by the calls that PyTorch's profiler sees.
SYNCHRONIZATIONS = """
from torch.profiler import ProfilerActivity, profile
torch.manual_seed(0)
model = wrapped(mlp(256, 4).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs, targets = torch.randn(64, 256, device=device), torch.zeros(64, device=device).long()
def steps(count):
    for _ in range(count):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
steps(5)
finish()
activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
with profile(activities=activities) as profiled:
    steps(10)
waits = ("Synchronize", "aten::item", "aten::_local_scalar_dense", "cudaMemcpy")
calls = {}
for one in profiled.events():
    if any(name in one.name for name in waits) and "Async" not in one.name:
        calls[one.name] = calls.get(one.name, 0) + 1
calls
"""

# Builds a training, whose blocks of iterations are then timed.
BLOCKS = """
def make(kind):
    torch.manual_seed(0)
    if kind == "small MLP":
        model, batch, shape = mlp(256, 4), 64, (256,)
    elif gpu:
        model, batch, shape = convnet(), 64, (3, 224, 224)
    else:
        model, batch, shape = convnet(), 16, (3, 32, 32)
    form = torch.channels_last if kind.endswith("AMP") else torch.contiguous_format
    model = wrapped(model.to(device, memory_format=form))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    inputs = torch.randn(batch, *shape, device=device)
    if len(shape) == 3:
        inputs = inputs.to(memory_format=form)
    targets = torch.randint(0, 10, (batch,), device=device)
    return model, optimizer, inputs, targets, kind.endswith("AMP")
"""

# kind, iterations
BLOCK = """
if globals().get("made_kind") != {kind!r}:
    made, made_kind = make({kind!r}), {kind!r}
model, optimizer, inputs, targets, amp = made
def steps(count):
    for _ in range(count):
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=amp):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
steps(3)
finish()
began, cpu = time.perf_counter(), time.thread_time()
steps({iterations})
cpu = time.thread_time() - cpu  # before the wait for the GPU
finish()
(time.perf_counter() - began) / {iterations} * 1e6, cpu / {iterations} * 1e6
"""

OWN_COPIES = """
def own_rate(target, source, factor):
    best = float("inf")
    for _ in range(8):
        if gpu:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            target.copy_(source, non_blocking=True)
            end.record()
            torch.cuda.synchronize()
            took = begin.elapsed_time(end) / 1e3
        else:
            began = time.perf_counter()
            target.copy_(source)
            took = time.perf_counter() - began
        best = min(best, took)
    return factor * source.numel() * source.element_size() / best / 1e9
size = (64 << 20) if gpu else (4 << 20)  # floats: 256 MB on a GPU
host = torch.zeros(size, pin_memory=gpu)
own = {"host memory": own_rate(torch.empty_like(host), host, 2)}
if gpu:
    there = torch.zeros(size, device=device)
    own["GPU memory"] = own_rate(torch.empty_like(there), there, 2)
    own["PCIe"] = own_rate(there, host, 1)
    own["device to host"] = own_rate(host, there, 1)
    del there
own
"""

MEMORY = """
def memory():
    free, total = torch.cuda.mem_get_info()
    return {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(),
            "free": free, "total": total}
memory()
"""

OUT_OF_MEMORY = """
def fill():
    kept = []
    while True:
        kept.append(torch.empty(1 << 30, dtype=torch.uint8, device=device))
torch.cuda.set_per_process_memory_fraction(0.25)
fill()
"""

ENDLESS = """
matrix = torch.randn(512, 512, device=device)
while True:
    matrix = torch.tanh(matrix @ matrix)
"""

LONG_KERNEL = """
if gpu:
    for _ in range(20):
        torch.cuda._sleep(1_000_000_000)  # half a second each
    finish()
else:
    time.sleep(10)
"""

ASSERTION = """
torch.zeros(4, device=device)[torch.tensor([1000], device=device)]
finish()
"""

LARGEST_BATCH = """
from workbench.fabric import largest_batch, measure_model
torch.manual_seed(0)
model = mlp(1024, 8).to(device)
optimizer = torch.optim.AdamW(model.parameters())
def step(batch):
    optimizer.zero_grad()
    inputs = torch.randn(batch, 1024, device=device)
    F.cross_entropy(model(inputs), torch.zeros(batch, dtype=torch.long, device=device)).backward()
    optimizer.step()
most = 64
if gpu:
    torch.cuda.set_per_process_memory_fraction(0.02)
    most = 1 << 20
began = time.perf_counter()
found = largest_batch(step, most)
took = time.perf_counter() - began
size = measure_model(model, torch.zeros(8, 1024, device=device))
result = {"largest": found, "seconds": took, "activation bytes": size.activation_bytes}
if gpu:
    free, total = torch.cuda.mem_get_info()
    optimizer.zero_grad()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    inputs = torch.randn(found // 2, 1024, device=device)
    loss = F.cross_entropy(
        model(inputs), torch.zeros(found // 2, dtype=torch.long, device=device))
    result["activations measured"] = (torch.cuda.memory_allocated() - before) / (found // 2)
    loss.backward()
    del inputs, loss
    result["limit"] = int(0.02 * total)
    result["peak of half of it"] = torch.cuda.max_memory_allocated()
    optimizer.zero_grad()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for name, batch in (("the largest", found), ("a twentieth more", found + max(1, found // 20))):
        try:
            step(batch)
            result[name] = "fits"
            result[f"peak of {name}"] = torch.cuda.max_memory_allocated()
        except torch.cuda.OutOfMemoryError:
            result[name] = "does not fit"
    torch.cuda.set_per_process_memory_fraction(1.0)
result
"""

# seconds
TRAIN_FOR = """
torch.manual_seed(0)
model = wrapped(mlp(512, 4).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches, count, until = list(loader(8, 64, 512)), 0, time.time() + {seconds}
while time.time() < until:
    inputs, targets = batches[count % 8]
    optimizer.zero_grad()
    F.cross_entropy(model(inputs.to(device)), targets.to(device)).backward()
    optimizer.step()
    finish()
    count += 1
count
"""

LIGHTNING = """
import logging, warnings
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = mlp(64, 2)
    def training_step(self, batch, index):
        inputs, targets = batch
        return F.cross_entropy(self.model(inputs), targets)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
trainer = lightning.Trainer(
    accelerator="gpu" if gpu else "cpu", devices=world_size, strategy="ddp", max_steps=20,
    max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, default_root_dir="/tmp",
)
module = Module()
trainer.fit(module, loader(20, 32, 64))
{"steps": trainer.global_step, "device": str(trainer.strategy.root_device)}
"""

# Lightning refuses its strategy "ddp" wherever Python is interactive, as in IPython.
NOT_INTERACTIVE = """
import lightning.pytorch.trainer.connectors.accelerator_connector as connector
connector._IS_INTERACTIVE = False
"""

ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=not gpu)
model = mlp(64, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, batches = accelerator.prepare(model, optimizer, loader(20, 32, 64))
for inputs, targets in batches:
    optimizer.zero_grad()
    accelerator.backward(F.cross_entropy(model(inputs), targets))
    optimizer.step()
finish()
{"device": str(accelerator.device), "model": type(model).__name__}
"""

COMPILED = """
torch.manual_seed(0)
model = wrapped(mlp(256, 4).to(device))
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train(compiled, optimizer, loader(12, 64, 256))
"""

GRAPHED = """
torch.manual_seed(0)
model = mlp(256, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
still = torch.randn(64, 256, device=device)
def once():
    optimizer.zero_grad(set_to_none=True)
    F.cross_entropy(model(still), torch.zeros(64, dtype=torch.long, device=device)).backward()
    optimizer.step()
graph = captured(once, optimizer)
before = model[0].weight.detach().clone()
for _ in range(10):
    graph.replay()
finish()
bool((model[0].weight != before).any())
"""

HOROVOD = """
import horovod.torch as hvd
torch.manual_seed(0)
known = torch.arange(1000.0, device=device) * (rank + 1)
total = hvd.allreduce(known, op=hvd.Sum, name="known")
expected = torch.arange(1000.0, device=device) * (world_size * (world_size + 1) // 2)
right = bool((total == expected).all())
width, batch = (1024, 256) if gpu else (64, 32)
model = mlp(width, 6).to(device)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters())
marks = Marks()
loss = train(model, optimizer, loader(40, batch, width), marks)
{"right": right, "NCCL": bool(hvd.nccl_built()), "loss": loss, "own": marks.medians_us()}
"""
