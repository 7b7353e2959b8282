"""How collectives are carried: read from logs of NCCL, and from the connections of a real ring."""

import os
from pathlib import Path

import pytest
from clusters import quiet, training
from levels import in_soak
from vm_sets import vms

import workbench as wb
from workbench.rank.backends.transports import NcclLog, read_nccl_log
from workbench.testbed import why_not
from workbench.wire.transport import Transport

LOGS = Path(__file__).parents[1] / "support" / "nccl_logs"
"""Lines of single processes, from public issues."""
P2P, SHM = "P2P/IPC", "direct shared memory"
ROCE, ANY = "RoCE", "InfiniBand or RoCE"
SILENT = "it has not logged its connections"

DDP = """
import torch
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""
TRAININGS = {"horovod": training(1), "ddp": DDP}


def nccl(network, devices, gpudirect, within=(), unknown=""):
    return Transport("NCCL", network, devices, gpudirect, within, unknown)


@pytest.mark.parametrize(
    ("log", "source", "found"),
    [
        ("roce-2.5", "NVIDIA/nccl/issues/392", nccl(ROCE, ("mlx5_0:1",), "none", (P2P, SHM))),
        ("roce-2.7", "NVIDIA/nccl/issues/380", nccl(ROCE, ("mlx5_1:1",), "none")),
        ("gpudirect-a100", "NVIDIA/nccl/issues/707", nccl(ANY, ("device 4", "device 5"), "all")),
        (
            "gpudirect-h20",
            "NVIDIA/nccl/issues/1189",
            nccl(ANY, ("device 2",), "all", ("P2P/CUMEM",)),
        ),
        (
            "sockets-h100",
            "NVIDIA/nccl/issues/952",
            nccl("TCP", ("interface 3",), "", ("P2P/IPC/read",)),
        ),
        ("ring-2.4", "NVIDIA/nccl/issues/226", nccl("TCP", ("interface 0",), "")),
        ("plugin-ib", "NVIDIA/nccl/issues/1814", nccl(ANY, ("device 4", "device 7"), "none")),
        ("libfabric", "aws/aws-ofi-nccl/issues/24", nccl("AWS Libfabric", ("device 0",), "none")),
        ("one-vm", "NVIDIA/nccl-tests/issues/213", nccl("", (), "", ("P2P/direct pointer",))),
        ("sockets-chosen-2.7", "NVIDIA/nccl/issues/447", nccl("", (), "", (), SILENT)),
        ("plugin-roce-2.22", "NVIDIA/nccl/issues/1538", nccl("", (), "", (), SILENT)),
    ],
)
def test_logs_of_nccl(log, source, found):
    """Each is from the issue `source`; what it does not contain is not guessed."""
    assert read_nccl_log((LOGS / f"{log}.txt").read_text()) == found, source


def test_devices_are_named_where_the_log_lists_them():
    """The list of a plugin's devices is that of InfiniBand; connections may differ in GPUDirect."""
    listed = (LOGS / "plugin-roce-2.22.txt").read_text()
    over = (LOGS / "plugin-ib.txt").read_text()
    found = read_nccl_log(listed + over + over.replace("v8/4", "v8/4/GDRDMA"))
    assert found == nccl(ROCE, ("mlx5_4:1", "mlx5_7:1"), "some")
    assert str(found) == "NCCL: RoCE mlx5_4:1 mlx5_7:1, partly GPUDirect RDMA"
    chosen = (LOGS / "sockets-chosen-2.7.txt").read_text()
    over = (LOGS / "ring-2.4.txt").read_text()
    assert str(read_nccl_log(chosen + over)) == "NCCL: TCP eth0"


@pytest.mark.parametrize("text", ["", "\0" * 100, "no log", "via NET/", "[0] NCCL INFO via"])
def test_what_is_no_log(text):
    """NCCL was not used, or has not connected ranks yet."""
    assert read_nccl_log(text) is None


def test_nccl_writes_its_log_where_it_is_read(monkeypatch):
    """It is read when NCCL has connected ranks, and again when it has connected others."""
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    monkeypatch.delenv("NCCL_DEBUG_FILE", raising=False)
    log = NcclLog(gpu=True)
    assert os.environ["NCCL_DEBUG"] == "INFO"
    assert log.transport() is None
    with Path(os.environ["NCCL_DEBUG_FILE"]).open("w") as written:
        written.write((LOGS / "sockets-chosen-2.7.txt").read_text())
        written.flush()
        assert str(log.transport()) == f"NCCL: unknown ({SILENT})"
        written.write((LOGS / "ring-2.4.txt").read_text())
        written.flush()
        assert str(log.transport()) == "NCCL: TCP eth0"
        log.begin_ring()
        assert log.transport() is None
        written.write((LOGS / "one-vm.txt").read_text())
        written.flush()
        assert str(log.transport()) == "NCCL: P2P/direct pointer"
    Path(os.environ["NCCL_DEBUG_FILE"]).write_text((LOGS / "ring-2.4.txt").read_text())
    assert "another process has written to its log" in str(log.transport())


def test_the_users_own_log_of_nccl(monkeypatch, tmp_path):
    """A file is read; without one, the log is in the cell's output, and nothing is changed."""
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_DEBUG_FILE", f"{tmp_path}/nccl.%h.%p")
    log = NcclLog(gpu=True)
    assert "No such file" in str(log.transport())
    os.mkfifo(file := tmp_path / f"nccl.{os.uname().nodename}.{os.getpid()}")
    assert "is not a regular file" in str(log.transport())
    file.unlink()
    file.write_text((LOGS / "one-vm.txt").read_text())
    assert str(log.transport()) == "NCCL: P2P/direct pointer"
    monkeypatch.delenv("NCCL_DEBUG_FILE")
    for level in ("INFO", "WARN"):
        monkeypatch.setenv("NCCL_DEBUG", level)
        found = str(NcclLog(gpu=True).transport())
        assert f"NCCL: unknown (NCCL_DEBUG is set to '{level}': unset it, or" in found
    assert "NCCL_DEBUG_FILE" not in os.environ


def test_nothing_uses_nccl_without_a_gpu(monkeypatch):
    """No variable is set, and nothing is reported."""
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    assert NcclLog(gpu=False).transport() is None
    assert "NCCL_DEBUG" not in os.environ


@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_the_ring_of_one_machine(backend):
    """Gloo's own connections are read; the run on disk has the same."""
    with wb.Cluster(n=2, backend=backend) as cluster:
        assert [info.transport for info in cluster.ranks] == ["Gloo: TCP lo"] * 2
        quiet(cluster, TRAININGS[backend])
        cluster.resize(1)
        assert [info.transport for info in cluster.ranks] == ["Gloo: no connections"]
        cluster.resize(2)
    assert [one["transport"] for one in wb.open_run(cluster.name).ranks] == ["Gloo: TCP lo"] * 2


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("backend", ["horovod", in_soak("ddp")])
def test_the_interface_of_each_vm(backend):
    """Each rank reports the interface of its own VM."""
    with (
        vms(2, interfaces=("eth0", "ens192")) as machines,
        wb.Cluster(
            hosts=machines.hosts(), ssh_config=machines.ssh_config, backend=backend
        ) as cluster,
    ):
        found = [info.transport for info in cluster.ranks]
    assert found == ["Gloo: TCP eth0", "Gloo: TCP ens192"]
