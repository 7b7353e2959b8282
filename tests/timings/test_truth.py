"""What the timings say, against what is not our code: Horovod's Timeline and the NIC's counters.

Two ranks on two VMs train over links of known rates.
"""

from dataclasses import replace

import numpy as np
import pytest
from horovod_timeline import spans, whole_timeline
from levels import in_soak
from timers import FAR_S
from vm_sets import vms

import workbench as wb
from workbench.cluster import TextSink
from workbench.hosts import parse_hosts
from workbench.testbed import why_not

pytestmark = [
    pytest.mark.timing,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
ITERATIONS = 12
PARAMETERS = 8 << 20

TRAIN = """
import os, pathlib, torch
from torch import nn
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(1 << 20)) for _ in range(8)])
    def forward(self):
        return sum(part[0] for part in self.parts)
model = Model()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1e-3), named_parameters=model.named_parameters())
def train(iterations):
    for _ in range(iterations):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
def counters():
    nic = pathlib.Path("/sys/class/net") / os.environ["HOROVOD_GLOO_IFACE"] / "statistics"
    return {name: int((nic / name).read_text()) for name in ("tx_bytes", "tx_packets")}
train(2)
"""
MEASURE = """
hvd.barrier()
before = counters()
hvd.start_timeline({path!r})
hvd.barrier()
train({iterations})
hvd.barrier()
hvd.stop_timeline()
hvd.barrier()
{{name: count - before[name] for name, count in counters().items()}}
"""


@pytest.fixture(scope="module")
def machines():
    """Two VMs."""
    with vms(2, gbps=1.0) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(machines):
    """A rank on each, which may be asked for Horovod's Timeline at any time.

    With a cache of its answers Horovod would not log its negotiations.
    """
    timeline = {"HOROVOD_TIMELINE": "DYNAMIC", "HOROVOD_CACHE_CAPACITY": "0"}
    hosts = [replace(host, environment=timeline) for host in parse_hosts(machines.hosts(1))]
    with wb.Cluster(hosts=hosts, ssh_config=machines.ssh_config) as running:
        running.run(TRAIN, sink=TextSink())
        yield running


RATES = [
    in_soak(0.5, id="0.5-Gbit/s"),
    pytest.param(1.0, id="1-Gbit/s"),
    in_soak(2.0, id="2-Gbit/s"),
]


@pytest.fixture(scope="module", params=RATES)
def measured(request, machines, cluster, tmp_path_factory):
    """Some iterations over links of one rate: NIC counters by rank, the Timeline, the timings."""
    for vm in ("vm1", "vm2"):
        machines.shape(vm, request.param)
    path = tmp_path_factory.mktemp("timeline") / "timeline.json"
    cell = MEASURE.format(path=str(path), iterations=ITERATIONS)
    counts = cluster.run(cell, sink=TextSink(), timeout=FAR_S).values
    rows = cluster.timings.to_frame()
    rows = rows[rows["iteration"] > rows["iteration"].max() - ITERATIONS]
    collectives = cluster.timings.collectives()
    collectives = collectives[collectives["iteration"].isin(rows["iteration"])]
    return counts, whole_timeline(path), rows, collectives


def reduced_us(text):
    """How long each iteration reduced, by a Timeline.

    All tensors are submitted before the first is reduced: from when all ranks
    have announced the first one, to the end of the last one, Horovod reduces, or
    negotiates what comes next.
    """
    found = spans(text)
    ready = [[end for _, end in own] for own in found["NEGOTIATE_ALLREDUCE"].values()]
    reduced = [[end for _, end in own] for own in found["ALLREDUCE"].values()]
    assert {len(times) for times in (*ready, *reduced)} == {ITERATIONS}
    return [
        max(ends) - min(begins)
        for begins, ends in zip(zip(*ready, strict=True), zip(*reduced, strict=True), strict=True)
    ]


def test_collectives_run_as_long_as_in_horovods_timeline(measured):
    """What collectives take without queueing is within 5 % of what Horovod itself logs.

    In a quarter of the iterations at least: where ranks outnumber cores, a rank's Horovod
    comes to what it was handed tens of milliseconds late, and logs none of that.
    """
    _, timeline, _, collectives = measured
    timeline_us = reduced_us(timeline)
    by_iteration = collectives[collectives["rank"] == 0].groupby("iteration")
    ours_us = by_iteration["finished_us"].max() - by_iteration["responded_us"].min()
    assert (ours_us / timeline_us - 1).abs().quantile(0.25) < 0.05


def test_transfers_begin_and_end_as_in_horovods_timeline(measured, cluster):
    """Of rank 0, which writes the Timeline, whose clock begins when it was started."""
    _, timeline, rows, _ = measured
    found = spans(timeline)["GLOO_ALLREDUCE"]
    ends = [one for own in found.values() for one in own]
    own = [
        (one.record.start_ns / 1e3 + began / 10, one.record.start_ns / 1e3 + ended / 10)
        for one in cluster.timings.records()
        if one.rank == 0 and one.iteration >= rows["iteration"].min()
        for began, ended in zip(one.record.began, one.record.ended, strict=True)
    ]
    assert len(own) == len(ends) == 8 * ITERATIONS
    apart = np.sort(np.array(own), axis=0) - np.sort(np.array(ends, float), axis=0)
    apart = np.abs(apart - np.median(apart))
    assert np.median(apart) <= 20
    assert np.quantile(apart, 0.95) <= 100


def test_a_transfer_takes_its_bytes_over_the_rate_of_the_link(request, measured):
    """Two ranks send each byte of a buffer once, in frames of 1,514 bytes with 1,448 of payload."""
    _, _, _, collectives = measured
    gbps = request.node.callspec.params["measured"]
    if gbps > 1:
        pytest.skip("two cores do not fill a link of 2 Gbit/s: a transfer takes 10 % longer there")
    buffers = collectives.groupby(["iteration", "buffer"]).agg(
        bytes=("bytes", lambda sizes: sizes.sum() / 2), us=("service_us", "first")
    )
    large = buffers[buffers["bytes"] >= 16e6]
    assert len(large)
    expected_us = large["bytes"] * 8 / gbps / 1e3 * 1514 / 1448
    # no transfer is faster than its link; those of a rank without a core are slower
    assert (large["us"] / expected_us).min() == pytest.approx(1, abs=0.05)


def test_bytes_are_those_of_the_nic(measured):
    """What two ranks sum goes over each NIC once; its counter says the same, headers included."""
    counts, _, rows, _ = measured
    for rank, counted in counts.items():
        own = rows.loc[rows["rank"] == rank, "bytes"].sum()
        assert own >= 4 * PARAMETERS * ITERATIONS
        assert own == pytest.approx(counted["tx_bytes"], rel=0.03)


def test_phases_add_up(measured):
    """All phases of every iteration are the iteration, within 1 %."""
    _, _, rows, _ = measured
    assert len(rows) == 2 * ITERATIONS
    phases = ["data", "copy", "forward", "backward", "exposed", "optimizer", "other"]
    total = rows[[f"{phase}_us" for phase in phases]].fillna(0).sum(axis=1)
    assert total.to_numpy() == pytest.approx(rows["iteration_us"].to_numpy(), rel=0.01)
