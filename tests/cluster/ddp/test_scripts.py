"""Scripts for torchrun run in cells unchanged."""

import psutil
import pytest
from clusters import quiet
from timers import FAR_S

from workbench.errors import RanksFailed

from .cells import SUM, TRAIN

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


def test_a_model_is_freed_after_its_group(ranks, tmp_path):
    """A thread of Gloo still frees a tensor of a collective then, which needs Python's lock."""
    source = f"""
import os, threading, time, torch, weakref
import torch.distributed as dist
freed, left = [], threading.Event()
def free():
    freed.append("begun")
    if rank:
        left.wait({FAR_S / 2})  # the group is left before this ends
        time.sleep(0.3)  # the model is freed meanwhile
    freed.append("done")
def wait_for(name):
    while not os.path.exists(f"{tmp_path}/{{name}}"):
        time.sleep(0.001)
def main():
    dist.init_process_group("cpu:gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    tensor = torch.ones(1)
    weakref.finalize(tensor, free)
    if rank == 0:  # the other ranks no longer refer to their tensor when it is reduced
        wait_for(1)
        wait_for(2)
    dist.all_reduce(tensor, async_op=True)
    del tensor
    open(f"{tmp_path}/{{rank}}", "w").close()
    while not freed:
        time.sleep(0.001)
    dist.destroy_process_group()
    freed_until_then = list(freed)
    left.set()
    return freed_until_then
rank = dist.get_rank()
main()
"""
    freed = quiet(ranks, source, timeout=FAR_S).values
    assert freed[1] == freed[2] == ["begun"]


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


def test_a_group_that_ended_in_a_cell(ranks):
    """Where a cell catches the error of its collective, the next one has a new group."""
    quiet(
        ranks,
        "import datetime\ndist.init_process_group('gloo', timeout=datetime.timedelta(seconds=1))\n"
        "try:\n    if rank: dist.barrier()\nexcept RuntimeError: caught = True\ncaught",
        ranks="1-2",
        timeout=60,
    )


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
