"""Ranks that torch.distributed joins: `backend="ddp"`."""

import os
import re
import secrets
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from clusters import quiet
from timers import later, within

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import CellInterrupted, ClusterStopped, RanksFailed

SUM = "import torch; x = torch.ones(1); dist.all_reduce(x); (globals().get('kept'), float(x))"
SETUP = "import os, signal, sys, time, torch\nkept = rank * 10"
TRAIN = """
from torch import nn
from torch.nn.parallel import DistributedDataParallel
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
def train(model, steps=5):
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 32)).square().sum().backward()
        optimizer.step()
def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
"""
BYTES = 4 * (32 * 64 + 64 + 64 * 8 + 8)


def interrupt():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.fixture(scope="module")
def ddp():
    """Three ranks for all tests of this file."""
    with wb.Cluster(n=3, backend="ddp", hang_after_s=1) as found:
        yield found


@pytest.fixture
def ranks(ddp):
    """The same, with `kept` on each rank; the ring works afterwards."""
    if ddp.state != "ready":
        ddp.restart()
    quiet(ddp, SETUP, timeout=30)
    yield ddp
    assert within(20, lambda: ddp.state == "ready"), ddp.message
    found = quiet(ddp, SUM, timeout=30).values
    n = ddp.n
    assert {rank: total for rank, (_, total) in found.items()} == dict.fromkeys(range(n), float(n))


def test_the_namespace(ranks):
    """A cell has the variables of every backend, a ready group, and what torchrun sets."""
    found = quiet(
        ranks,
        "import os\n"
        "variables = {n: os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE',"
        " 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'TORCHELASTIC_USE_AGENT_STORE')}\n"
        "(rank, local_rank, world_size, str(device), dist.get_rank(), dist.get_backend(),"
        " variables, 'hvd' in globals(), 'horovod' in sys.modules)",
    ).values
    for rank, values in found.items():
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_WORLD_SIZE": "3",
            "GROUP_RANK": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        assert values == (rank, rank, 3, "cpu", rank, "gloo", variables, False, False)


def test_a_training_is_timed(ranks):
    """Weights are equal; each iteration has its phases and its bucket."""
    iterations = ranks.timings.to_frame()["iteration"]
    before = iterations.max() if len(iterations) else -1
    cell = TRAIN + "model = DistributedDataParallel(net())\ntrain(model)\nweights(model)"
    values = quiet(ranks, cell).values
    assert values[0] == values[1] == values[2]
    rows = ranks.timings.to_frame()
    rows = rows[rows["iteration"] > before]
    assert len(rows) == 3 * 5
    assert set(rows["bytes"]) == {BYTES}
    assert (rows["communication_us"] > 0).all()
    table = ranks.timings.collectives()
    table = table[(table["cell"] == table["cell"].max()) & (table["by"] == "ddp")]
    buckets = table[table["kind"] == "allreduce"]
    assert buckets["name"].str.endswith("bucket 0").all()
    assert set(buckets["ranks"]) == {3}


def test_collectives_of_a_cell_are_recorded(ranks):
    """Those that it calls itself, with their bytes and ranks; a sub-group is distinguished."""
    quiet(
        ranks,
        "group = dist.new_group([0, 1])\n"
        "dist.all_reduce(torch.ones(256))\ndist.broadcast(torch.ones(16), 0)\n"
        "if rank < 2: dist.all_reduce(torch.ones(8), group=group)\n",
    )
    table = ranks.timings.collectives()
    table = table[(table["cell"] == table["cell"].max()) & (table["rank"] == 0)]
    found = set(zip(table["kind"], table["bytes"], table["ranks"], strict=True))
    assert found >= {("allreduce", 1024, 3), ("broadcast", 64, 3), ("allreduce", 32, 2)}


# failures


def test_an_error_frees_the_others(ranks):
    """Ranks that wait for the rank that failed are freed; the error is named once."""
    began = time.monotonic()
    with pytest.raises(RanksFailed, match="ValueError: boom") as caught:
        quiet(ranks, "if rank == 1: raise ValueError('boom')\ndist.barrier()", timeout=60)
    assert time.monotonic() - began < 30
    assert list(caught.value.errors) == [1]
    assert "[ranks 0,2] freed from a collective; variables are kept" in str(caught.value)
    assert ranks["kept"] == [0, 10, 20]


def test_an_error_in_a_training_frees_the_others(ranks):
    """Also those that wait in a backward for a bucket, in code of PyTorch."""
    cell = TRAIN + "model = DistributedDataParallel(net())\nif rank == 2: 1 / 0\ntrain(model)"
    with pytest.raises(RanksFailed, match="ZeroDivisionError") as caught:
        quiet(ranks, cell, timeout=60)
    assert list(caught.value.errors) == [2]


def test_models_go_on_in_the_next_ring(ranks):
    """A DDP model, its comm hook and its bucket times remain, after an error in its backward."""
    quiet(
        ranks,
        TRAIN
        + """
calls = []
def hook(state, bucket):
    calls.append(bucket.index())
    return dist.all_reduce(bucket.buffer(), group=state, async_op=True).get_future().then(
        lambda future: future.value()[0] / world_size)
model, hooked = DistributedDataParallel(net()), DistributedDataParallel(net())
hooked.register_comm_hook(dist.group.WORLD, hook)
train(model), train(hooked)
""",
    )
    with pytest.raises(RanksFailed, match="boom"):
        quiet(
            ranks,
            "class Fails(torch.autograd.Function):\n"
            "    @staticmethod\n"
            "    def forward(context, x): return x.clone()\n"
            "    @staticmethod\n"
            "    def backward(context, x): raise ValueError('boom')\n"
            "x = model(torch.randn(4, 32))\n"
            "(Fails.apply(x) if rank == 1 else x).sum().backward()",
            timeout=60,
        )
    for name in ("model", "hooked"):
        calls = quiet(ranks, "calls.clear()").values
        values = quiet(ranks, f"train({name}), weights({name})", timeout=60).values
        assert values[0] == values[1] == values[2]
        calls = quiet(ranks, "len(calls)").values
        assert set(calls.values()) == {0 if name == "model" else 5}
        table = ranks.timings.collectives()
        table = table[(table["by"] == "ddp") & (table["kind"] == "allreduce")]
        last = table[table["iteration"] == table["iteration"].max()]
        assert set(last["bytes"]) == {BYTES}


def test_an_interrupt_frees_ranks(ranks):
    """Of a cell whose ranks wait for each other."""
    with later(1, interrupt), pytest.raises(CellInterrupted, match="variables are kept"):
        quiet(ranks, "if rank: dist.barrier()\nelse: time.sleep(60)", timeout=60)
    assert ranks["kept"] == [0, 10, 20]


def explained(cluster, source, text, action=None):
    """Return the output of a cell, in which a file `shown` appears when it contains a text."""
    sink, shown = TextSink(), Path(os.environ["GRADIENT_WORKBENCH_RUNS"]) / secrets.token_hex(4)

    def follow():
        if within(60, lambda: text in sink.text):
            (action or shown.touch)()

    thread = threading.Thread(target=follow)
    thread.start()
    held = f"def held():\n    while not os.path.exists({str(shown)!r}): time.sleep(0.02)\n"
    try:
        cluster.run(held + source, sink=sink, timeout=60)
    except (RanksFailed, CellInterrupted) as error:
        return f"{sink.text}\n{error}"
    finally:
        thread.join()
    return sink.text


@pytest.mark.parametrize("recording", [True, False])
def test_a_wait_is_explained(ranks, recording):
    """Which ranks wait, in which collective, and where the missing one is."""
    ranks.recording = recording
    try:
        source = "if rank == 1:\n    held()  # late\ndist.broadcast(torch.ones(1), 0)"
        text = explained(ranks, source, "Rank 1 is missing; it is at:")
    finally:
        ranks.recording = True
    assert "in 'broadcast " in text
    assert "held()  # late" in text


def test_different_collectives_are_explained(ranks):
    """No rank goes on: who waits where is reported, and an interrupt frees all."""
    source = "if rank == 0: dist.barrier()\nelse: dist.all_reduce(torch.ones(1))\ndist.barrier()"
    text = explained(ranks, source, "All ranks wait, in different collectives", interrupt)
    assert re.search(r"\[rank 0\] in 'barrier (\d+)'; \[ranks 1-2\] in 'all_reduce \1'", text)


def test_batch_counts_differ(ranks):
    """The ranks that wait for one that has ended the cell are freed, with the reason."""
    source = "for batch in range(4 + rank): dist.all_reduce(torch.ones(1))"
    with pytest.raises(RanksFailed, match=r"rank 0 ended the cell while .* wait") as caught:
        quiet(ranks, source, timeout=60)
    assert "Join([model])" in str(caught.value)


@pytest.mark.parametrize(
    ("waits", "name"),
    [
        ("dist.recv(torch.ones(1), 1)", "recv(src=1)"),
        ("dist.irecv(torch.ones(1), 1).wait()", "recv(src=1)"),
        ("dist.monitored_barrier()", "monitored_barrier()"),
    ],
)
def test_a_missing_peer(ranks, waits, name):
    """A call that the Flight Recorder lacks is named, and freed when its peer has failed."""
    source = f"if rank == 1: held(); raise ValueError('boom')\nif rank == 0: {waits}"
    text = explained(ranks, source, f"[rank 0] in {name!r}")
    assert "[rank 1] ValueError: boom" in text
    assert "[rank 0] freed from a collective" in text


FOUND = """
import threading
from workbench.rank.backends import torch_waits
main, calls, done = threading.main_thread().ident, [], threading.Event()
def watch(paths):
    while paths and not done.is_set():
        call = torch_waits.find(sys._current_frames()[main])
        if call is not None and call.name and call not in calls:
            calls.append(call)
            open(paths.pop(0), "w").close()
def watched(wait, paths):
    watcher = threading.Thread(target=watch, args=(paths,))
    watcher.start()
    try:
        wait()
    finally:
        done.set()
        watcher.join()
    return [(call.name, call.ranks) for call in calls], len({call.began for call in calls})
def await_file(path):
    while not os.path.exists(path): time.sleep(0.01)
"""


def test_each_receive_is_a_wait_of_its_own(ranks, tmp_path):
    """It has begun when it was called, and needs its peer, which may be rank 0."""
    paths = [str(tmp_path / name) for name in "ab"]
    values = quiet(
        ranks,
        FOUND
        + f"paths, result = {paths}, None\n"
        + "if rank == 1:\n"
        + "    result = watched(lambda: [dist.recv(torch.ones(1), 0) for _ in paths], [*paths])\n"
        + "elif rank == 0:\n"
        + "    for path in paths: await_file(path); dist.send(torch.ones(1), 1)\n"
        + "result",
        timeout=60,
    ).values
    assert values == {0: None, 1: ([("recv(src=0)", (0, 1))] * 2, 2), 2: None}


def test_a_new_group_needs_its_ranks(ranks, tmp_path):
    """The others do not wait in it."""
    path = str(tmp_path / "a")
    values = quiet(
        ranks,
        FOUND
        + "def form(): dist.new_group([0, 1])\n"
        + f"if rank == 1: await_file({path!r}); form()\n"
        + "if rank == 2: form()\n"
        + f"watched(form, [{path!r}]) if rank == 0 else None",
        timeout=60,
    ).values
    assert values == {0: ([("new_group()", (0, 1))], 1), 1: None, 2: None}


def test_ranks_that_go_on_are_not_freed(ranks):
    """Two ranks that send to each other all the time do not wait for one that has ended."""
    source = (
        "x = torch.zeros(1 << 18)\n"
        "end, more = time.monotonic() + 5, rank < 2\n"
        "while more:\n"
        "    if rank == 0:\n"
        "        x[0] = time.monotonic() < end\n"
        "        dist.send(x, 1)\n"
        "        dist.recv(x, 1)\n"
        "    else:\n"
        "        dist.recv(x, 0)\n"
        "        dist.send(x, 0)\n"
        "    more = bool(x[0])\n"
    )
    quiet(ranks, source, timeout=60)


def test_a_stopped_rank(ranks):
    """A process that was stopped (SIGSTOP) is named; an interrupt frees the others."""
    pid = ranks.ranks[1].pid
    source = "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ndist.barrier()"
    said = "Rank 1 is missing and does not answer: its process is stopped"
    try:
        text = explained(ranks, source, said, interrupt)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "rank 1 did not react" in text


def test_a_group_that_ended_in_a_cell(ranks):
    """Where a cell catches the error of its collective, the next one has a new group."""
    quiet(
        ranks,
        "import datetime\ndist.init_process_group('gloo', timeout=datetime.timedelta(seconds=1))\n"
        "try:\n    if rank: dist.barrier()\nexcept RuntimeError: caught = True\ncaught",
        ranks="1-2",
        timeout=60,
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_dead_rank_is_replaced(ranks, rank):
    """Also rank 0, which has served the store; the others keep their variables."""
    with pytest.raises(RanksFailed, match="SIGKILL") as caught:
        quiet(ranks, f"if rank == {rank}: os.kill(os.getpid(), 9)\ndist.barrier()", timeout=60)
    assert list(caught.value.errors) == [rank]
    with pytest.raises(ClusterStopped, match=f"%cluster restart --ranks {rank}"):
        quiet(ranks, "1")
    ranks.restart()
    kept = [0, 10, 20]
    kept[rank] = None
    assert [row[0] for row in quiet(ranks, SUM).values.values()] == kept


def test_resize(ranks):
    """Models go on with another number of ranks."""
    quiet(ranks, TRAIN + "model = DistributedDataParallel(net())\ntrain(model)")
    ranks.resize(2)
    values = quiet(ranks, "train(model)\n(world_size, os.environ['WORLD_SIZE'], weights(model))")
    assert values.values[0] == values.values[1]
    assert values.values[0][:2] == (2, "2")
    ranks.resize(3)
    assert quiet(ranks, "world_size, 'model' in globals()").values == {
        0: (3, True),
        1: (3, True),
        2: (3, False),
    }


# scripts for torchrun

SCRIPT = """
import os, torch
import torch.distributed as dist
from torch.distributed import init_process_group, destroy_process_group
def main():
    init_process_group({arguments})
    assert dist.get_rank() == int(os.environ["RANK"])
    assert dist.get_world_size() == int(os.environ["WORLD_SIZE"])
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4) + dist.get_rank()).sum().backward()
    total = torch.ones(1)
    dist.all_reduce(total)
    result = dist.get_backend(), float(total), model.module.weight.grad.sum().item()
    destroy_process_group()
    return result
"""


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "'gloo'",
        "backend='gloo', init_method='env://'",
        "'gloo', timeout=__import__('datetime').timedelta(seconds=60)",
        "'gloo', rank=int(os.environ['RANK']), world_size=int(os.environ['WORLD_SIZE'])",
        "'cpu:gloo'",
        "'gloo', None, None, -1, -1, None",
        "'cpu:gloo', store=None, init_method='env://'",
    ],
)
def test_a_script_for_torchrun(ranks, arguments):
    """It runs unchanged, several times in a cell, and in the next cell."""
    source = SCRIPT.format(arguments=arguments)
    for _ in range(2):
        values = quiet(ranks, source + "[main() for _ in range(2)]", timeout=60).values
        assert values[0] == values[1] == values[2]
        assert {found[1:] for found in values[0]} == {(3.0, 64.0)}


def test_an_init_with_a_file(ranks, tmp_path):
    """A script may use a store of its own."""
    init = f"'gloo', init_method='file://{tmp_path}/store', rank=rank, world_size=world_size"
    values = quiet(ranks, SCRIPT.format(arguments=init) + "main()", timeout=60).values
    assert {found[1:] for found in values.values()} == {(3.0, 64.0)}


def test_an_init_with_a_store_of_its_own(ranks, tmp_path):
    """All arguments may be positional."""
    init = f"'gloo', None, None, 3, rank, dist.FileStore('{tmp_path}/store', 3)"
    values = quiet(ranks, SCRIPT.format(arguments=init) + "main()", timeout=60).values
    assert {found[1:] for found in values.values()} == {(3.0, 64.0)}


def test_a_model_goes_on_after_an_init(ranks):
    """A DDP model of an earlier cell uses the group that a later cell has formed."""
    quiet(ranks, TRAIN + "model = DistributedDataParallel(net())\ntrain(model)")
    source = "dist.init_process_group('cpu:gloo')\ntrain(model)\n"
    values = quiet(ranks, f"{source}model.process_group is dist.group.WORLD, weights(model)")
    assert values.values[0] == values.values[1] == values.values[2]
    assert values.values[0][0]


def test_a_script_that_leaves_its_group(ranks):
    """The next cells use it, and can run the script again."""
    source = "import torch.distributed as dist\ndist.init_process_group('cpu:gloo')\n"
    for _ in range(2):
        assert quiet(ranks, f"{source}dist.get_world_size()").values == {0: 3, 1: 3, 2: 3}
        quiet(ranks, "dist.barrier()", timeout=30)


@pytest.mark.parametrize("missing", range(3))
def test_one_rank_misses_an_init(ranks, missing):
    """The others wait in it, and are freed; the ring is formed again."""
    source = f"if rank == {missing}: raise ValueError('boom')\ndist.init_process_group('cpu:gloo')"
    for _ in range(3):
        with pytest.raises(RanksFailed, match="boom") as caught:
            quiet(ranks, source, timeout=30)
        assert list(caught.value.errors) == [missing]
        assert [row[1] for row in quiet(ranks, SUM, timeout=30).values.values()] == [3.0] * 3


def test_one_rank_misses_a_new_group(ranks):
    """The same for a sub-group, whose members must all form it."""
    with pytest.raises(RanksFailed, match="boom") as caught:
        quiet(
            ranks,
            "if rank == 1: raise ValueError('boom')\ndist.new_group([0, 1, 2])",
            timeout=30,
        )
    assert list(caught.value.errors) == [1]


def test_one_rank_misses_the_collective_of_a_group(ranks):
    """Only its members are needed, and shown."""
    source = (
        "group = dist.new_group([0, 1])\nif rank == 1: held()\n"
        "if rank < 2: dist.all_reduce(torch.ones(1), group=group)"
    )
    text = explained(ranks, source, "Rank 1 is missing; it is at:")
    assert "[rank 0] in 'all_reduce 1'" in text
    assert "ank 2" not in text


def test_the_store_listens_on_one_interface(ranks):
    """No process of the cluster listens on all interfaces for it."""
    own = {child.pid for child in psutil.Process().children(recursive=True)}
    pids = {info.pid for info in ranks.ranks}
    assert pids <= own
    for pid in pids:
        listening = [
            one.laddr.ip
            for one in psutil.Process(pid).net_connections("inet")
            if one.status == psutil.CONN_LISTEN
        ]
        assert listening
        assert set(listening) == {"127.0.0.1"}


def test_fsdp2(ranks):
    """Its collectives are recorded as its own."""
    quiet(
        ranks,
        TRAIN
        + "from torch.distributed.fsdp import fully_shard\n"
        + "model = net()\nfor layer in model: fully_shard(layer)\nfully_shard(model)\n"
        + "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        + "for _ in range(3):\n"
        + "    optimizer.zero_grad(); model(torch.randn(4, 32)).sum().backward(); optimizer.step()",
        timeout=60,
    )
    table = ranks.timings.collectives()
    table = table[(table["cell"] == table["cell"].max()) & (table["by"] == "fsdp")]
    assert {"allgather", "reducescatter"} <= set(table["kind"])
