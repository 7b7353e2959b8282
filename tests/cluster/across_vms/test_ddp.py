"""torch.distributed across VMs."""

import psutil
import pytest
from clusters import quiet

import workbench as wb
from workbench.errors import RanksFailed

SETUP = """
import os, socket, psutil, torch
kept = rank * 10
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(iterations):
    for _ in range(iterations):
        optimizer.zero_grad()
        model(torch.ones(2, 4) + rank).square().sum().backward()
        optimizer.step()
    return model.module.weight.tolist()
"""


def test_ranks_of_two_vms(machines):
    """They have torchrun's variables, train over their interfaces, and survive a lost rank."""
    options = {"ssh_config": machines.ssh_config, "backend": "ddp"}
    before = {process.pid for process in psutil.Process().children()}
    with wb.Cluster(hosts="vm1:2,vm2:1", **options) as cluster:
        quiet(cluster, SETUP, timeout=60)
        names = "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"
        found = quiet(cluster, f"socket.gethostname(), [os.environ[n] for n in {names}]").values
        assert found == {
            0: ("vm1", ["0", "0", "2", "0", "2"]),
            1: ("vm1", ["1", "1", "2", "0", "2"]),
            2: ("vm2", ["2", "0", "1", "1", "2"]),
        }
        listening = (
            "[one.laddr.ip for one in psutil.Process().net_connections('inet')"
            " if one.status == 'LISTEN'], os.environ['MASTER_ADDR']"
        )
        for rank, (addresses, master) in quiet(cluster, listening).values.items():
            assert master == machines.address("vm1")
            assert set(addresses) <= {machines.address("vm2" if rank == 2 else "vm1")}
        values = quiet(cluster, "train(3)", timeout=60).values
        assert values[0] == values[1] == values[2]
        with pytest.raises(RanksFailed, match="SIGKILL"):
            quiet(cluster, "if rank == 2: os.kill(os.getpid(), 9)\ntrain(3)", timeout=60)
        cluster.restart()
        assert quiet(cluster, "globals().get('kept')").values == {0: 0, 1: 10, 2: None}
        assert quiet(cluster, "dist.barrier(); world_size").values == {0: 3, 1: 3, 2: 3}
    assert {process.pid for process in psutil.Process().children()} <= before
