"""Recording is switched off and on between cells: no hook remains, and all else goes on."""

import os
import signal
import time

import forked_kernels
import pytest
from clusters import SHARED_MODEL, quiet, training
from levels import in_soak
from timers import FAR_S, PROCESS_S, eventually, later, when

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import CellInterrupted, RanksFailed, UsageError

INSPECT = """
import inspect, threading, torch
import horovod.torch, horovod.torch.functions, horovod.torch.optimizer, horovod.torch.mpi_ops
import torch.distributed
from torch.nn.modules import module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optim
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.data import dataloader
OWNERS = [
    horovod.torch, horovod.torch.mpi_ops, horovod.torch.optimizer, horovod.torch.functions,
    horovod.torch.optimizer._DistributedOptimizer, torch.autograd, torch.optim.Optimizer,
    torch.optim.SGD, torch.nn.Module, torch.Tensor, dataloader.DataLoader,
    dataloader._BaseDataLoaderIter, CheckpointFunction, DistributedDataParallel,
    torch.distributed, torch.distributed.ProcessGroup, torch.distributed.Work,
    *([type(optimizer)] if 'optimizer' in globals() else []),
]
def of_ours(value):
    code = getattr(value, '__code__', None)
    return code is not None and '/workbench/rank/recording/' in code.co_filename \\
        or code is not None and code.co_filename.endswith(
            ('horovod_hooks.py', 'ddp_hooks.py', 'torch_collectives.py', 'torch_calls.py',
             'recording/patches.py'))
def hooks():
    found = {f'{owner.__name__}.{name}' for owner in OWNERS
             for name, value in vars(owner).items() if of_ours(value)}
    for name in ('_global_optimizer_pre_hooks', '_global_optimizer_post_hooks'):
        found |= {name for _ in getattr(optim, name)}
    for name in ('_global_forward_pre_hooks', '_global_forward_hooks'):
        found |= {name for _ in getattr(module, name)}
    if 'model' in globals():
        found |= {'model' for one in model.modules()
                  if one._forward_pre_hooks or one._forward_hooks}
    return found | {one.name for one in threading.enumerate() if one.name == 'workbench-timings'}
"""
"""A cell's beginning: `hooks()` returns all that recording has installed on this rank."""

LOADER = """
from torch.utils.data import DataLoader
def load(iterations):
    for batch in DataLoader(torch.ones(4 * iterations, 8), batch_size=4):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""


@pytest.fixture
def switched(clean_cluster):
    """The cluster without what earlier tests have left; recording is on again after the test."""
    yield clean_cluster
    eventually(lambda: clean_cluster.state != "running")
    clean_cluster.recording = True


def hooks(cluster):
    """What is installed on each rank during a cell."""
    quiet(cluster, INSPECT)
    return quiet(cluster, "hooks()").values


def iterations(cluster, source):
    """How many iterations of a cell each rank has recorded."""
    start = len(cluster.timings)
    quiet(cluster, source)
    ranks = cluster.timings.rows(start)["rank"].tolist()
    return {rank: ranks.count(rank) for rank in range(cluster.n)}


def test_every_hook_is_removed_and_installed_again(switched):
    """Functions are the originals while recording is off, also those of an earlier optimizer."""
    quiet(switched, training(3) + LOADER)
    on = hooks(switched)[0]
    assert {"torch.autograd.backward", "SGD.synchronize", "Optimizer.zero_grad"} <= on
    assert {"horovod.torch.synchronize", "_BaseDataLoaderIter.__next__"} <= on
    assert {"_global_optimizer_pre_hooks", "_global_forward_pre_hooks"} <= on
    assert "workbench-timings" in on
    switched.recording = False
    assert not switched.recording
    assert hooks(switched) == {0: set(), 1: set()}
    assert quiet(switched, "load(3)\nhooks()").values == {0: set(), 1: set()}
    switched.recording = True
    assert hooks(switched) == {0: on, 1: on}


def test_only_cells_with_recording_have_iterations(switched):
    """The counts are exact, of optimizers created before, while, and after recording was off."""
    start = len(switched.timings)
    assert iterations(switched, training(5)) == {0: 5, 1: 5}
    switched.recording = False
    assert iterations(switched, "train(4)") == {0: 0, 1: 0}
    assert "Recording is off" in switched.timings.unrecorded
    assert iterations(switched, training(3) + LOADER) == {0: 0, 1: 0}
    switched.recording = True
    assert iterations(switched, "train(6)") == {0: 6, 1: 6}
    assert switched.timings.unrecorded == ""
    assert iterations(switched, "load(7)") == {0: 7, 1: 7}
    table = switched.timings.collectives()
    last = table[table["iteration"] == table["iteration"].max()]
    assert set(last["by"]) == {"optimizer"}
    assert sorted(set(last["name"])) == ["bias", "weight"]
    assert (switched.timings.rows(start)["exposed_ns"] > 0).all()


def test_a_cell_trains_the_same_with_and_without(switched):
    """An optimizer that is created again reduces each gradient once, also without recording."""
    source = "import torch\ntorch.manual_seed(0)\n" + training(4) + "\nmodel.weight.tolist()"
    on = quiet(switched, source).values
    switched.recording = False
    assert quiet(switched, source).values == on
    assert quiet(switched, source).values == on
    switched.recording = True
    assert quiet(switched, source).values == on


def test_a_function_that_a_cell_has_replaced_stays(switched):
    """A cell's own wrapper is kept; with recording on again, nothing is counted twice."""
    quiet(switched, training(2))
    quiet(
        switched,
        "usual = torch.optim.Optimizer.zero_grad\n"
        "def mine(self, *given, **named):\n    calls.append(1)\n"
        "    return usual(self, *given, **named)\n"
        "calls = []\ntorch.optim.Optimizer.zero_grad = mine",
    )
    switched.recording = False
    assert iterations(switched, "train(3)") == {0: 0, 1: 0}
    switched.recording = True
    assert iterations(switched, "train(3)") == {0: 3, 1: 3}
    assert quiet(switched, "len(calls), torch.optim.Optimizer.zero_grad is mine").values == {
        0: (6, True),
        1: (6, True),
    }
    quiet(switched, "torch.optim.Optimizer.zero_grad = usual")
    rows = switched.timings.to_frame()
    phases = [
        name
        for name in rows.columns
        if name
        in {
            f"{phase}_us"
            for phase in ("data", "copy", "forward", "backward", "exposed", "optimizer", "other")
        }
    ]
    total = rows[phases].sum(axis=1).to_numpy()
    assert total == pytest.approx(rows["iteration_us"].to_numpy(), rel=0.001)


DDP = (
    SHARED_MODEL
    + """
inputs = torch.randn(64, 32) + rank
def step(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
"""
)


def test_models_of_ddp(switched):
    """Models wrapped before, while and after recording was off have buckets when it is on."""
    quiet(switched, DDP + "early = DistributedDataParallel(net()); step(early, 3)")
    switched.recording = False
    assert iterations(switched, "step(early, 2)") == {0: 0, 1: 0}
    quiet(switched, "late = DistributedDataParallel(net()); step(late, 5)")
    assert hooks(switched)[0] <= {
        "torch.distributed._register_comm_hook",
        "torch.distributed._register_builtin_comm_hook",
    }
    switched.recording = True
    for model in ("early", "late"):
        start = switched.timings.rows()["iteration"].max() + 1
        assert iterations(switched, f"step({model}, 4)") == {0: 4, 1: 4}
        table = switched.timings.collectives()
        found = table[(table["iteration"] >= start) & (table["by"] == "ddp")]
        assert len(found) == 8
    quiet(switched, "step(early, 1)")
    values = quiet(switched, "weights(early) == weights(late)").values
    assert not any(values.values())  # early has trained for ten steps, late for nine
    quiet(switched, "step(late, 1)")
    assert quiet(switched, "weights(early) == weights(late)").values == {0: True, 1: True}


def test_a_hook_of_the_user_for_a_model_of_ddp(switched):
    """It can be registered while recording is off, with a model that was wrapped before."""
    quiet(switched, DDP + "model = DistributedDataParallel(net())")
    switched.recording = False
    source = """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
called = []
def hook(state, bucket):
    called.append(state)
    return default_hooks.allreduce_hook(None, bucket)
model.register_comm_hook('mine', hook)
step(model, 3)
called
"""
    assert quiet(switched, source).values == {0: ["mine"] * 3, 1: ["mine"] * 3}
    switched.recording = True
    assert iterations(switched, "step(model, 2)") == {0: 2, 1: 2}
    assert quiet(switched, "len(called)").values == {0: 5, 1: 5}


def test_ranks_that_are_started_later(switched):
    """Replaced and additional ranks do not record either, and record when it is on again."""
    switched.recording = False
    switched.restart("1")
    assert hooks(switched) == {0: set(), 1: set()}
    switched.resize(3)
    assert iterations(switched, training(2)) == {0: 0, 1: 0, 2: 0}
    assert hooks(switched) == {0: set(), 1: set(), 2: set()}
    switched.recording = True
    assert iterations(switched, training(3)) == {0: 3, 1: 3, 2: 3}
    switched.resize(2)
    assert iterations(switched, "train(2)") == {0: 2, 1: 2}


def test_a_cell_on_some_ranks(switched):
    """A rank that has run no cell since the switch follows it with its next one."""
    quiet(switched, "import torch")
    switched.recording = False
    quiet(switched, "1", ranks="0")
    switched.recording = True
    assert iterations(switched, training(3)) == {0: 3, 1: 3}


def test_while_a_cell_runs(switched):
    """The switch and the measurement are refused; the running cell is not affected."""
    run = switched.run_in_background("import time; time.sleep(30)", sink=TextSink())
    assert eventually(lambda: switched.state == "running")
    with pytest.raises(UsageError, match="Cannot switch recording off: a cell runs"):
        switched.recording = False
    with pytest.raises(UsageError, match="Cannot measure the overhead: a cell runs"):
        switched.measure_overhead()
    run.interrupt()
    with pytest.raises(CellInterrupted):
        run.result(100)
    assert switched.recording


def test_invalid_settings(switched):
    """Only a bool is accepted, by the property and the argument."""
    with pytest.raises(UsageError, match="recording='off': not a bool"):
        switched.recording = "off"
    with pytest.raises(UsageError, match="record='no': not a bool"):
        wb.Cluster(n=1, record="no")


def test_a_blocked_rank_is_freed_and_named(switched):
    """A rank that waits for one that has ended or failed is freed, and its collective is named."""
    switched.recording = False
    quiet(switched, "import torch\nkept = rank")
    for source, says in (
        ("if rank: hvd.allreduce(torch.ones(2), name='n')", "rank 1 waits in 'n'"),
        ("if rank: hvd.barrier()", r"rank 1 waits in 'barrier\(\)'"),
        ("if rank: hvd.join()", r"rank 1 waits in 'join\(\)'"),
        ("if rank: hvd.allreduce(torch.ones(2))\nelse: 1 / 0", "ZeroDivisionError"),
    ):
        with pytest.raises(RanksFailed, match=says):
            quiet(switched, source, timeout=FAR_S)
    assert quiet(switched, "kept").values == {0: 0, 1: 1}
    assert hooks(switched) == {0: set(), 1: set()}


def test_a_dead_rank_frees_the_others(switched):
    """A rank that is killed in a collective is replaced; recording stays off."""
    switched.recording = False
    quiet(switched, "import torch\nkept = rank")
    pid = switched.ranks[1].pid
    source = "if rank == 0: hvd.allreduce(torch.ones(2), name='n')\nelse:\n import time\n"
    with later(1.0, lambda: os.kill(pid, signal.SIGKILL)), pytest.raises(RanksFailed):
        quiet(switched, source + " time.sleep(30)", timeout=FAR_S)
    switched.restart()
    assert quiet(switched, "kept", ranks="0").values == {0: 0}
    assert hooks(switched) == {0: set(), 1: set()}


def test_an_interrupt_and_a_time_limit(switched):
    """A training and a rank that waits for another can be stopped; the ring is rebuilt."""
    switched.recording = False
    quiet(switched, training(1))
    waits = "if rank: hvd.allreduce(torch.ones(2), name='n')\nimport time; time.sleep(30)"
    for source in ("train(10**6)", waits):
        run = switched.run_in_background(source, sink=TextSink())
        assert eventually(lambda: switched.state == "running")
        time.sleep(1.0)
        run.interrupt()
        with pytest.raises(CellInterrupted, match="variables are kept"):
            run.result(100)
    quiet(switched, "hvd.shutdown()\nhvd.init()")
    assert iterations(switched, "train(2)") == {0: 0, 1: 0}
    switched.recording = True
    assert iterations(switched, "train(2)") == {0: 2, 1: 2}


def test_a_long_wait_is_reported(tmp_path):
    """The report names the collective, and the cluster starts without recording."""
    sink, mark = TextSink(), tmp_path / "mark"
    waiter = when(lambda: "it is at:" in sink.text, mark.touch)
    with wb.Cluster(n=2, record=False, hang_after_s=1.0) as cluster:
        assert not cluster.recording
        assert cluster.timings.unrecorded == "Recording is off: switch it on with %timings on."
        source = f"while rank and not os.path.exists({str(mark)!r}): time.sleep(0.05)\n"
        source += "hvd.allreduce(torch.ones(2), name='n')"
        cluster.run(f"import os, time, torch\n{source}", sink=sink, timeout=FAR_S)
        waiter.join()
        assert "waiting for other ranks: [rank 0] in 'n'" in sink.text
        assert "Rank 1 is missing; it is at:" in sink.text
        assert hooks(cluster) == {0: set(), 1: set()}
        assert iterations(cluster, training(2)) == {0: 0, 1: 0}
        cluster.recording = True
        assert iterations(cluster, "train(3)") == {0: 3, 1: 3}


KERNEL = """
import sys, workbench as wb
from workbench.cluster import TextSink
cluster = wb.Cluster(n=2, keep="600s", record={record}).start()
cluster.run({source!r}, sink=TextSink())
cluster.recording = {after}
print(cluster.name)
"""


@pytest.mark.parametrize(("record", "after"), [(True, False), in_soak(False, True)])
def test_a_kernel_that_attaches_knows_the_setting(record, after):
    """It is that of the last switch, not that of the start."""
    source = KERNEL.format(record=record, after=after, source=training(2))
    done = forked_kernels.run(source, os.environ, PROCESS_S)
    assert done.returncode == 0, done.stderr
    cluster = wb.Cluster.attach(done.stdout.strip())
    try:
        assert cluster.recording is after
        assert iterations(cluster, "train(3)") == dict.fromkeys(range(2), 3 * after)
    finally:
        cluster.stop()


def test_the_setting_outlasts_a_stop(switched):
    """A cluster that is stopped and started again does not record either."""
    switched.recording = False
    switched.stop()
    assert not switched.recording
    switched.start()
    assert iterations(switched, training(2)) == {0: 0, 1: 0}
