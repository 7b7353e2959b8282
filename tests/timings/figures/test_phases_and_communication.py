"""Phases and communication, against sleeps that were planted and the wall clock of the loop."""

import numpy as np
import pytest
from levels import in_soak
from true_figures import BEGIN, HEARD, causes

import workbench as wb
from workbench.cluster import TextSink
from workbench.timings.derive import columns
from workbench.timings.summary import notes, summarize
from workbench.widgets.cluster_source import ClusterSource
from workbench.widgets.runs import run_table
from workbench.widgets.source import TimingsReading
from workbench.widgets.tables import summary_text
from workbench.widgets.views import Causes, timings_view
from workbench.wire import Flag

UNHEARD = {
    "RPC": """
import socket
from torch.distributed import rpc
if not rpc._is_current_rpc_agent_set():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = hvd.broadcast_object(probe.getsockname()[1], name="rpc")
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}")
    rpc.init_rpc(
        f"worker{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
def call(m): rpc.rpc_sync(f"worker{1 - rank}", torch.add, args=(torch.ones(2), 1))
m = net(); train(m, sgd(m), reduce=call)""",
}


@pytest.mark.soak
@pytest.mark.timing
def test_a_pause_after_the_step_is_other_and_explained(trained):
    """200 ms slept outside any loader are no data loading, and are reported as far as known."""
    values, rows = trained(
        """
m = net(); marks = []
def mark(m): marks.append(time.perf_counter() * 1e6)
_ = train(m, distributed(m), reduce=mark, after=0.2)
marks[-1] - marks[0]
"""
    )
    found = summarize(rows)
    assert found.phases_us["data"] == 0
    assert found.phases_us["other"] > 199_000
    # the wall clock of the loop from the first step to the last
    assert found.iteration_us * 7 == pytest.approx(np.mean(list(values.values())), rel=0.05)
    assert sum(found.phases_us.values()) == pytest.approx(found.iteration_us, rel=1e-6)
    said = causes(rows)
    assert "data loading" not in said
    other = said["time in no phase (other)"]
    assert "between optimizer.step() and the next forward" in other.evidence
    assert "outside any DataLoader" in other.evidence
    assert other.saving_us > 199_000


def test_a_pause_before_the_step_differs_from_one_after_it(trained):
    """What lies between the backward and the step is said to lie there."""
    _, rows = trained("m = net(); train(m, sgd(m), reduce=lambda m: time.sleep(0.02))")
    assert "between the backward and optimizer.step()" in (
        causes(rows)["time in no phase (other)"].evidence
    )


@pytest.mark.timing
def test_a_loaders_time_is_data_and_another_pause_is_not(trained):
    """30 ms in a DataLoader and 20 ms after the step: each in its own phase."""
    values, rows = trained(
        """
slept = {0.03: [], 0.02: []}
def nap(seconds):
    began = time.perf_counter()
    time.sleep(seconds)
    slept[seconds].append((time.perf_counter() - began) * 1e6)
class Slow(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        nap(0.03)
        return i
m = net(); optimizer = distributed(m)
for _ in DataLoader(Slow(), batch_size=1):
    optimizer.zero_grad(); loss_of(m).backward(); optimizer.step()
    nap(0.02)
[slept[0.03][1:], slept[0.02][:-1]]
"""
    )
    found = summarize(rows)
    # how long the loops of both ranks really slept, in the same iterations
    data, other = np.mean([values[0], values[1]], axis=(0, 2))
    assert data <= found.phases_us["data"] < data + 15_000
    assert other <= found.phases_us["other"] < other + 15_000
    assert {"data loading", "time in no phase (other)"} <= causes(rows).keys()


@pytest.mark.parametrize("how", UNHEARD)
def test_communication_that_is_not_timed_is_said(cluster, trained, how):
    """It is not shown as none: in the rows, the table, the summary, the view and `%explain`."""
    _, rows = trained(UNHEARD[how])
    found = summarize(rows)
    assert found.unheard == found.iterations == 7
    assert np.isnan(found.exposed_us)
    assert np.isnan(found.exposed_share)
    assert np.isnan(columns(rows)["communication_us"]).sum() >= 2 * 7
    first = next(iter(causes(rows).values()))
    assert first.name == "communication that is not timed"
    assert repr(Causes([first])).startswith(f"unknown: {first.saving_us.reason}  communication")
    reading = TimingsReading.take(ClusterSource(cluster), 14)
    assert "is not timed" in reading.status.message
    shown = ClusterSource(cluster).details(found.iteration - 6, found.iteration).summary
    assert "is not timed" in shown.exposed_us.reason
    assert "is not timed" in shown.busbw_gbps.reason
    assert "is not timed" in summary_text(reading)
    assert "is not timed" in timings_view(cluster, "summary")._repr_html_()


@pytest.mark.parametrize("how", HEARD)
def test_communication_that_is_timed_is_not_called_unseen(cluster, trained, how):
    """Horovod's, DDP's with its hooks, and all collectives of torch.distributed."""
    _, rows = trained(HEARD[how])
    found = summarize(rows)
    assert found.unheard == 0
    assert found.communication_us > 0
    assert notes(found) == ("The first iteration is left out: it warms up.",)
    no_gradients = "No gradient was exchanged" if how == "a list of objects" else ""
    assert cluster.timings.remark.partition(" in ")[0] == no_gradients


@pytest.mark.slow
def test_a_stored_run_says_so_too():
    """The flag is kept on disk."""
    with wb.Cluster(n=2) as cluster:
        cluster.run(BEGIN + UNHEARD["RPC"], sink=TextSink())
    run = wb.open_run(cluster.timings.path)
    assert run.summary().unheard == 7
    assert "is not timed" in repr(run_table(run))


@pytest.mark.timing
@pytest.mark.parametrize("unused", [False, in_soak(True)])
def test_ddp_buckets_end_when_they_end(cluster, trained, unused):
    """A bucket that one rank waits 50 ms for took 50 ms, of which hardly any was overlapped."""
    ready, rows = trained(
        f"""
ready = []
class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.m, self.idle = net(), nn.Linear(64, 64)
    def forward(self, x):
        if rank == 1: time.sleep(0.05)
        y = self.m(x) if {unused} else self.m(x) + 0 * self.idle(inputs.repeat(1, 2)).sum()
        ready.append(time.perf_counter() * 1e6)
        return y
m = DistributedDataParallel(Late(), find_unused_parameters={unused})
train(m, sgd(m))
ready
"""
    )
    warm = rows[(rows["rank"] == 0) & (rows["flags"] & int(Flag.FIRST_OF_CELL) == 0)]
    early = columns(warm)
    # by how much rank 0 really was first: on a busy machine it may be late itself
    lead_us = (np.array(ready[1]) - np.array(ready[0]))[-len(warm) :]
    first = lead_us > 25_000
    assert first.sum() >= 3
    table = cluster.timings.collectives()
    buckets = table[table["iteration"].isin(warm["iteration"]) & (table["rank"] == 0)]
    took = (buckets["finished_us"] - buckets["submitted_us"]).groupby(buckets["iteration"]).max()
    for waited_us in (early["exposed_us"], early["communication_us"], took.to_numpy()):
        assert np.median((waited_us / lead_us)[first]) > 0.8
    assert np.median(early["overlap"][first]) < 0.2
