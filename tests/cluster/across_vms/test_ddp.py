"""torch.distributed across VMs."""

import psutil
import pytest
from clusters import CELL_S, quiet
from combinations import BACKENDS
from timers import eventually

import workbench as wb

SETUP = BACKENDS["ddp"].cells + "import socket; kept = rank * 10; make()"
SLOW_GBPS = 0.02


@pytest.fixture(scope="module")
def cluster(machines):
    """Two ranks on the first VM, one on the second; no process is left here afterwards."""
    options = {"ssh_config": machines.ssh_config, "backend": "ddp"}
    before = {process.pid for process in psutil.Process().children()}
    with wb.Cluster(hosts="vm1:2,vm2:1", **options) as cluster:
        quiet(cluster, SETUP, timeout=60)
        yield cluster
    assert eventually(lambda: {process.pid for process in psutil.Process().children()} <= before)


def test_ranks_of_two_vms(cluster, machines):
    """They have torchrun's variables, and train over their interfaces."""
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


@pytest.mark.soak
def test_a_send_that_takes_longer_than_its_cell(cluster, machines):
    """The rank that receives is not freed because the other has ended the cell."""
    source = """
x = torch.full((3 << 20,), float(rank))
work = dist.isend(x, 2) if rank == 0 else None
if rank == 2: dist.recv(x, 0)
float(x.sum())
"""
    for name in ("vm1", "vm2"):
        machines.shape(name, SLOW_GBPS)
    try:
        values = quiet(cluster, source, timeout=CELL_S).values
    finally:
        for name in ("vm1", "vm2"):
            machines.shape(name, 1.0)
    assert (values[0], values[2]) == (0.0, 0.0)
