"""The records of a VM's ranks come to the kernel in one stream."""

import os
import signal
from dataclasses import replace

import psutil
import pytest
from recorded_training import layout, record
from timers import FAR_S, InThread, eventually

from workbench.agent.record_stream import NAME, merge
from workbench.cluster import Cluster
from workbench.errors import WireError
from workbench.timings import Timings
from workbench.wire import Outbox
from workbench.wire.address import of_vm
from workbench.wire.rank_messages import Records
from workbench.wire.vm_messages import VmRecords

RANKS = 8
TRAIN = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
for _ in range(20):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


class Stream:
    """A VM's stream in this process, and its ranks."""

    def __init__(self, timings, folder):
        self.endpoint = f"ipc://{folder}/records.sock"
        self.address = timings.address_for(of_vm(0))
        self.ranks = [
            Outbox(timings.address_for(rank).with_endpoint(self.endpoint)) for rank in range(RANKS)
        ]
        self.begin()

    def begin(self):
        self.goes_on = True
        self.thread = InThread(merge, self.endpoint, self.address, lambda: self.goes_on)

    def end(self):
        self.goes_on = False
        self.thread.join()

    def close(self):
        for rank in self.ranks:
            rank.close()
        self.end()


@pytest.fixture
def stream(timings, tmp_path):
    one = Stream(timings, tmp_path)
    yield one
    one.close()


def connections(timings):
    port = int(timings.address_for(0).endpoint.rpartition(":")[2])
    return [
        one
        for one in psutil.Process().net_connections()
        if one.status == "ESTABLISHED" and one.laddr.port == port
    ]


def test_all_ranks_share_a_connection(timings, stream):
    """Every record arrives with its rank's names, also where a layout's number is used again."""
    timings.begin_cell(1)
    for turn, names in enumerate([("a", "b"), ("c",)]):
        for number, rank in enumerate(stream.ranks):
            own = layout(*names) if number % 2 else layout(*(f"{name}{number}" for name in names))
            rank.send(own)
            at = range(turn * 30, turn * 30 + 30)
            rank.send(Records(tuple(record(index, collectives=len(names)).pack() for index in at)))
    assert timings.end_cell(1, dict.fromkeys(range(RANKS), 60), timeout_s=FAR_S)
    assert len(connections(timings)) == 1
    assert timings.errors == []
    for one in timings.records():
        names = ("a", "b") if one.iteration < 30 else ("c",)
        even = tuple(f"{name}{one.rank}" for name in names)
        assert one.layout.names == (names if one.rank % 2 else even)
    rows = timings.rows()
    assert sorted(zip(rows["iteration"].tolist(), rows["rank"].tolist(), strict=True)) == [
        (index, rank) for index in range(60) for rank in range(RANKS)
    ]


def test_ranks_wait_for_a_stream_that_begins_again(timings, stream):
    """What they send meanwhile arrives afterwards."""
    timings.begin_cell(1)
    for rank in stream.ranks:
        rank.send(Records((record(0).pack(),)))
    assert eventually(lambda: len(timings) == RANKS)
    stream.end()
    for rank in stream.ranks:
        rank.send(Records((record(1).pack(),)))
    stream.begin()
    assert timings.end_cell(1, dict.fromkeys(range(RANKS), 2), timeout_s=FAR_S)


def test_the_stream_goes_on_with_the_next_kernel(timings, stream):
    """It connects to the port that another kernel has taken over."""
    timings.begin_cell(1)
    for rank in stream.ranks:
        rank.send(Records((record(0).pack(),)))
    assert eventually(lambda: len(timings) == RANKS)
    state = timings.to_state()
    timings.close()
    following = Timings()
    following.listen(state=state)
    try:
        following.begin_cell(2)
        for rank in stream.ranks:
            rank.send(Records((record(0, cell=2).pack(),)))
        assert following.end_cell(2, dict.fromkeys(range(RANKS), 1), timeout_s=FAR_S)
        assert len(connections(following)) == 1
    finally:
        following.close()


@pytest.mark.parametrize(
    "changed",
    [{"sizes": (1,)}, {"sizes": (-1, 401)}, {"ranks": (0,)}, {"ranks": (0, -1)}, {"records": b""}],
)
def test_a_damaged_message_is_refused(changed):
    """Ranks, sizes and bytes must fit each other."""
    message = VmRecords.of((0, 1), (bytes(200), bytes(200)))
    assert message.split() == [bytes(200), bytes(200)]
    with pytest.raises(WireError, match="damaged"):
        replace(message, **changed).split()


@pytest.mark.soak
def test_the_agent_starts_the_stream_again():
    """If its process is killed, the records of the next cell arrive."""
    with Cluster(n=3) as cluster:
        cluster.run(TRAIN)
        agent = psutil.Process(cluster.agents[0].hello.pid)
        ranks = {info.pid for info in cluster.ranks}
        (one,) = {child.pid for child in agent.children() if child.name() == NAME}
        os.kill(one, signal.SIGKILL)
        assert eventually(lambda: {c.pid for c in agent.children()} - ranks - {one})
        cluster.run(TRAIN)
        assert len(cluster.timings) == 120
        assert cluster.timings.dropped == 0
        others = {child.pid for child in agent.children()}
    assert eventually(lambda: not any(map(psutil.pid_exists, others)))
