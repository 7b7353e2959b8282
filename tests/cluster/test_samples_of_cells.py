"""Samples of a real cluster's VMs: stored with its run, and added up as use."""

import pytest
from timers import eventually

import workbench as wb
from workbench.resources.use import UseStore

TRAIN = """
import time
import torch
import torch.distributed as dist
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(200, 200))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end = time.monotonic() + {seconds}
more = torch.ones(1)
while more.item():
    model(torch.randn(64, 200)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    more = torch.tensor([float(time.monotonic() < end)])
    dist.broadcast(more, 0)
"""


@pytest.fixture
def state_home(tmp_path, monkeypatch):
    """Where this test's use is stored."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.soak
def test_a_cell_is_sampled_although_nobody_watches(state_home):
    """The run has samples of each VM, and the use of its ranks is stored."""
    with wb.Cluster(n=2, backend="ddp") as cluster:
        cluster.run(TRAIN.format(seconds=7))
        path, vm = cluster.timings.path, cluster.ranks[0].vm
    run = wb.open_run(path)
    found = run.recorded_samples()
    assert len(found) >= 2
    assert {one.vm for one in found} == {vm}
    frame = run.samples()
    cpu = frame[(frame.device == "cpu") & (frame.figure == "percent")].value.dropna()
    assert cpu.max() > 0
    store = UseStore(state_home / "gradient-workbench" / "use.sqlite")
    assert eventually(lambda: store.path.exists() and store.read(1))
    (one,) = store.read(1)
    assert (one.cluster, one.vm, one.device) == (cluster.name, vm, "CPU ranks")
    assert 0 < one.used_s <= one.measured_s <= one.allocated_s
    assert 0 < one.cells_s <= one.allocated_s
    assert one.allocated_s <= 2 * (one.last_s - one.first_s) + 1


@pytest.mark.soak
def test_nothing_is_sampled_without_recording(state_home, monkeypatch):
    """With recording and use off, a cluster samples nothing and stores nothing."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_USE", "off")
    with wb.Cluster(n=2, backend="ddp", record=False) as cluster:
        cluster.run(TRAIN.format(seconds=3))
        assert cluster.timings.samples.take() == []
    assert not state_home.exists()
