"""Libraries that train in a cell as in a script for torchrun, with the same weights."""

import json
import os
import socket
import subprocess
import sys

import pytest
from clusters import quiet
from levels import in_soak
from timers import FAR_S

import workbench as wb
from workbench.cluster import TextSink

SAID = "No gradient was exchanged in"
RESULT = "\nresult = [float(p.detach().double().sum()) for p in model.parameters()]\n"

DATA = """
import os, warnings, logging
warnings.simplefilter("ignore")
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
"""
LIGHTNING = (
    DATA
    + """
import lightning
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True, sync_dist=True)
        return loss
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
model = Model()
trainer = lightning.Trainer({strategy}devices=2, accelerator="cpu", max_epochs=1, logger=False,
                            enable_checkpointing=False{options})
trainer.fit(model, DataLoader(data, batch_size=8))
"""
)
ACCELERATE = (
    DATA
    + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = nn.Linear(16, 4)
model, optimizer, loader = accelerator.prepare(
    net, torch.optim.SGD(net.parameters(), lr=0.1), DataLoader(data, batch_size=8))
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step(); optimizer.zero_grad()
"""
)
TRANSFORMERS = (
    DATA
    + """
import tempfile
from transformers import Trainer, TrainingArguments
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, place): return {"x": data[place][0], "labels": data[place][1]}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)
    def forward(self, x, labels):
        scores = self.net(x)
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}
model = Model()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, num_train_epochs=1, per_device_train_batch_size=8,
        use_cpu=True, report_to=[], save_strategy="no", logging_steps=2, disable_tqdm=False)
    Trainer(model, arguments, train_dataset=Rows()).train()
"""
)
IGNITE = (
    DATA
    + """
import ignite.distributed as idist
from ignite.engine import Engine
def train(local_rank):
    global model
    model = idist.auto_model(nn.Linear(16, 4))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    loader = idist.auto_dataloader(data, batch_size=16, shuffle=False)
    def update(engine, batch):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()
    trainer = Engine(update)
    trainer.run(loader, max_epochs=1)
with idist.Parallel(backend="gloo") as parallel: parallel.run(train)
"""
)


@pytest.fixture(scope="module")
def ddp():
    """Two ranks in a process group of torch.distributed."""
    with wb.Cluster(n=2, backend="ddp") as cluster:
        yield cluster


def as_script(source):
    """The result of each of two processes that torchrun's variables connect."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    code = "import torch.distributed as dist\nimport torch\ntorch.set_num_threads(1)\n" + source
    code += "import json, os\nprint('RESULT', json.dumps(result), flush=True)\nos._exit(0)\n"
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "none", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    texts = [process.communicate(timeout=2 * FAR_S)[0] for process in processes]
    assert all("RESULT" in text for text in texts), texts
    return [json.loads(text.partition("RESULT ")[2].splitlines()[0]) for text in texts]


def same_as_script(cluster, source):
    """Train in a cell and as a script; return the recorded iterations of the cell."""
    before = len(cluster.timings)
    sink = TextSink()
    values = cluster.run(source + RESULT + "result", sink=sink, timeout=2 * FAR_S).values
    assert list(values.values()) == as_script(source + RESULT)
    assert SAID not in sink.text
    return cluster.timings.to_frame().iloc[before:]


def lightning(strategy="strategy='ddp', ", options=""):
    """A training with Lightning."""
    return LIGHTNING.replace("{strategy}", strategy).replace("{options}", options)


@pytest.mark.parametrize(
    ("source", "iterations"),
    [
        in_soak(lightning(), 4, id="Lightning, with its progress bar"),
        in_soak(lightning(""), 4, id="Lightning, strategy not given"),
        in_soak(lightning("strategy='auto', "), 4, id="Lightning, strategy auto"),
        in_soak(
            lightning(options=", enable_progress_bar=False, enable_model_summary=False"),
            4,
            id="Lightning without a progress bar",
        ),
        in_soak(ACCELERATE, 2, id="accelerate"),
        in_soak(TRANSFORMERS, 4, id="Trainer of transformers"),
        in_soak(IGNITE, 4, id="ignite"),
    ],
)
def test_the_weights_are_those_of_a_script(ddp, source, iterations):
    """All iterations exchange gradients, and the next cell has its process group."""
    table = same_as_script(ddp, source)
    assert len(table) == 2 * iterations
    assert (table["bytes"] > 0).all()
    total = "t = torch.ones(1); dist.all_reduce(t); float(t)"
    assert quiet(ddp, total).values == {0: 2.0, 1: 2.0}


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["ddp_notebook", "ddp_fork", "ddp_spawn"])
def test_strategies_that_start_processes_are_refused(ddp, strategy):
    """With the strategy that works."""
    with pytest.raises(wb.RanksFailed, match=r"Use Trainer\(strategy='ddp', devices=2\)"):
        quiet(ddp, lightning(f"strategy='{strategy}', "))


@pytest.mark.soak
def test_the_launcher_of_accelerate_is_refused(ddp):
    """Its function can be called itself."""
    code = "from accelerate import notebook_launcher\ndef train(): pass\n"
    with pytest.raises(wb.RanksFailed, match=r"Call train\(\) itself"):
        quiet(ddp, code + "notebook_launcher(train, num_processes=2)")


@pytest.mark.soak
def test_lightning_in_a_ring_of_horovod(cluster):
    """It starts no process, and the error names the cluster that it needs."""
    with pytest.raises(wb.RanksFailed, match="--backend ddp"):
        quiet(cluster, lightning())


def test_a_rank_is_no_interactive_console(ddp):
    """Libraries ask for Python's prompt; IPython's functions in a cell work without it."""
    code = "import sys\nprint([hasattr(sys, f'ps{n}') for n in (1, 2, 3)])\n"
    code += "get_ipython().run_cell('print(1 + 1)')\n%time x = 1"
    lines = quiet(ddp, code).output.splitlines()
    assert lines[:2] == ["[ranks 0-1] [False, False, False]", "[ranks 0-1] 2"]


NET = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
net = torch.nn.Linear(64, 8)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def step(model, exchange=lambda: None, opt=opt):
    opt.zero_grad()
    model(torch.randn(8, 64)).pow(2).mean().backward()
    exchange()
    opt.step()
"""


@pytest.mark.parametrize(
    "code",
    [
        "for _ in range(4): step(net)",
        "ddp = DDP(net)\nfor _ in range(9): step(net)",
        in_soak("ddp = DDP(net)\nwith ddp.no_sync():\n    for _ in range(4): step(ddp)"),
    ],
)
def test_separate_trainings(ddp, code):
    """A model that is not wrapped, or that is called without its wrapper."""
    sink = TextSink()
    ddp.run(NET + code, sink=sink)
    assert SAID in sink.text
    assert "DistributedDataParallel(model)" in sink.text


@pytest.mark.parametrize(
    "code",
    [
        "ddp = DDP(net)\nfor _ in range(4): step(ddp)",
        """
ddp = DDP(net)
for number in range(6):
    if number % 3:
        with ddp.no_sync(): step(ddp)
    else: step(ddp)
""",
        """
def average():
    for p in net.parameters(): dist.group.WORLD.allreduce([p.grad]).wait()
for _ in range(4): step(net, average)
""",
        """
import torch.distributed._functional_collectives as collectives
def average():
    for p in net.parameters():
        p.grad = collectives.wait_tensor(collectives.all_reduce(p.grad, "sum", dist.group.WORLD))
for _ in range(4): step(net, average)
""",
        in_soak("""
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
model = fully_shard(torch.nn.Linear(64, 8), mesh=init_device_mesh("cpu", (2,)))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4): step(model, opt=opt)
"""),
        in_soak("""
from torch.distributed.optim import ZeroRedundancyOptimizer
ddp = DDP(net)
opt = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
for _ in range(4): step(ddp, opt=opt)
"""),
        in_soak("""
for number in range(6):
    step(net)
    if number % 3 == 0:
        for p in net.parameters(): dist.all_reduce(p.data)
"""),
        in_soak("""
for _ in range(4): step(net)
for p in net.parameters(): dist.all_reduce(p.data)
"""),
        in_soak("""
group = dist.new_group([0])
if rank == 0:
    for _ in range(4): step(net)
"""),
        in_soak("""
def average():
    for p in net.parameters():
        every = [None] * 2
        dist.all_gather_object(every, p.grad)
        p.grad = sum(every) / 2
for _ in range(4): step(net, average)
"""),
    ],
)
def test_trainings_that_exchange_gradients(ddp, code):
    """Nothing is said of any kind of exchange, also one that is not recorded."""
    sink = TextSink()
    ddp.run(NET + code, sink=sink)
    assert SAID not in sink.text
