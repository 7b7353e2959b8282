"""torch.distributed across VMs."""

import psutil
from clusters import CELL_S, quiet
from combinations import BACKENDS

import workbench as wb
from workbench.testbed import vms

SETUP = BACKENDS["ddp"].cells + "import socket; kept = rank * 10; make()"


def test_ranks_of_two_vms(machines):
    """They have torchrun's variables, and train over their interfaces."""
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
    assert {process.pid for process in psutil.Process().children()} <= before


def test_a_send_that_takes_longer_than_its_cell():
    """The rank that receives is not freed because the other has ended the cell."""
    with (
        vms(2, gbps=0.02) as machines,
        wb.Cluster(hosts=machines.hosts(1), ssh_config=machines.ssh_config, backend="ddp") as pair,
    ):
        source = """
import torch
x = torch.full((3 << 20,), float(rank))
work = dist.isend(x, 1) if rank == 0 else None
if rank == 1: dist.recv(x, 0)
float(x.sum())
"""
        assert quiet(pair, source, timeout=CELL_S).values == {0: 0.0, 1: 0.0}
