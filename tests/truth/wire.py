"""Two VMs over shaped links, against captured packets, NIC counters, and clocks in the script.

All processes of test VMs share one clock, so that stamps of packets, of both ranks and of this
process can be compared.
"""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
from timers import eventually

import workbench as wb
from tests.truth import START_S
from tests.truth.capture import stream_bytes
from workbench.cluster import TextSink
from workbench.errors import VmsUnavailable
from workbench.fabric import tcp_efficiency
from workbench.testbed import vms, why_not

RATES = (0.25, 0.5, 1.0)
ITERATIONS, ELEMENTS = 12, 2 << 20
PACKET_BYTES = 1024
"""Packets with less payload are those of Horovod's negotiation, or carry only an answer."""
CELL_S = 120
TRAIN = """
import os, pathlib, time, torch
from torch import nn
torch.set_num_threads(1)
now = time.perf_counter_ns
class Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, seconds):
        ctx.seconds = seconds
        return hidden.view_as(hidden)
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None
class Net(nn.Module):
    def __init__(self, elements):
        super().__init__()
        self.flat = nn.Parameter(torch.zeros(elements))
    def forward(self, hidden, tail_s): return Wait.apply(hidden, tail_s) + self.flat[:1]
def train(iterations, elements, tail_s=0.0, late=-1, late_s=0.0):
    model, stamps, ready = Net(elements), [], []
    model.flat.register_post_accumulate_grad_hook(lambda _: ready.append(now()))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4), named_parameters=model.named_parameters())
    inputs = torch.ones(1, requires_grad=True)
    for _ in range(iterations):
        optimizer.zero_grad()
        if rank == late: time.sleep(late_s)
        loss = model(inputs, tail_s).sum()
        one = [now()]
        loss.backward()
        one.append(now())
        optimizer.synchronize()
        one.append(now())
        with optimizer.skip_synchronize():
            optimizer.step()
        stamps.append([ready[-1], *one])
        time.sleep(0.02)
    return stamps
def sent():
    nic = pathlib.Path("/sys/class/net") / os.environ["HOROVOD_GLOO_IFACE"] / "statistics"
    return int((nic / "tx_bytes").read_text())
train(2, 1024)
"""
CASES = {
    "both ranks alike": {},
    "rank 1 late": {"late": 1, "late_s": 0.04},
    "hidden by the backward": {"tail_s": 0.06},
    "long cycles": {},
}
LONG_CYCLE_MS = "40"
SAMPLER = """
import json, os, time
from workbench.resources.counters import Sampler
os.nice(-10)  # its stamps are to be those of its readings
with Sampler() as sampler:
    for _ in range(200):
        now = time.perf_counter_ns()
        sample = sampler.sample()
        (nic,) = [one for one in sample.nics if one.name == "eth0"]
        rates = [one if isinstance(one, float) else None
                 for one in (nic.tx_bytes_per_s, nic.rx_bytes_per_s)]
        print(json.dumps([now, *rates]), flush=True)
        time.sleep(1)
"""


def measure(table):
    """Train over links of several rates, and in cases with planted waits."""
    if (reason := why_not()) is not None:
        raise VmsUnavailable(reason)
    with (
        vms(2, gbps=1.0) as machines,
        wb.Cluster(
            hosts=machines.hosts(1), ssh_config=machines.ssh_config, start_timeout_s=START_S
        ) as cluster,
    ):
        run(cluster, TRAIN)
        for gbps in RATES:
            for name in machines.names:
                machines.shape(name, gbps)
            rate(table, machines, cluster, gbps)
        for name, case in CASES.items():
            if name == "long cycles":
                variable = f"os.environ['HOROVOD_CYCLE_TIME'] = '{LONG_CYCLE_MS}'"
                run(cluster, f"{variable}; hvd.shutdown()")
                run(cluster, "train(2, 1024)")
            iterations(table, *trained(machines, cluster, **case))
        clocks(table, cluster)


def run(cluster, source):
    """Run a cell; return its values by rank."""
    return cluster.run(source, sink=TextSink(), timeout=CELL_S).values


@contextmanager
def captured(machines):
    """Yield a list that has the packets of each VM at the end of the block, by time."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{name}.npy") for name in machines.names]
        started = [
            subprocess.Popen(
                machines.inside(name, [sys.executable, "-m", "tests.truth.capture", "eth0", path]),
                cwd=Path(__file__).parents[2],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name, path in zip(machines.names, paths, strict=True)
        ]
        found = []
        try:
            for one in started:
                assert one.stdout.readline() == "ready\n"
            yield found
            time.sleep(0.1)
        finally:
            said = [one.communicate()[0] for one in started]
        assert said == ["0\n"] * len(said), f"packets were lost: {said}"
        for path in paths:
            packets = np.sort(np.load(path), order="time_ns")
            found.append(packets[packets["peer"] < 250])  # not those of the kernel's host


def trained(machines, cluster, elements=ELEMENTS, **case):
    """Train; return the stamps and packets by rank, and the iterations and their collectives."""
    options = "".join(f", {name}={value!r}" for name, value in case.items())
    source = f"before = sent()\n[train({ITERATIONS}, {elements}{options}), sent() - before]"
    with captured(machines) as packets:
        values = run(cluster, source)
    rows = cluster.timings.to_frame()
    rows = rows[rows["iteration"] > rows["iteration"].max() - ITERATIONS]
    return values, packets, rows, own_collectives(cluster, rows)


def own_collectives(cluster, rows):
    """Return the collectives of some rows, with their times on the common clock in ns."""
    first = int(rows["iteration"].min())
    table = cluster.timings.collectives(first, int(rows["iteration"].max()))
    starts = {
        (one.iteration, one.rank): one.record.start_ns
        for one in cluster.timings.records(first, int(rows["iteration"].max()))
    }
    start = np.array([starts[key] for key in zip(table["iteration"], table["rank"], strict=True)])
    for name in ("submitted", "began", "ended", "finished"):
        table[f"{name}_ns"] = start + table[f"{name}_us"] * 1e3
    return table


def rate(table, machines, cluster, gbps):
    """Bytes and transfers over links of one rate, and the rates of a NIC meanwhile."""
    command = machines.inside("vm1", [sys.executable, "-c", SAMPLER])
    sampler = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        values, packets, rows, collectives = trained(machines, cluster)
    finally:
        sampler.terminate()
    samples = [json.loads(line) for line in sampler.communicate()[0].splitlines()]
    nic(table, samples, packets[0])
    for rank, (own, counted) in values.items():
        size = rows.loc[rows["rank"] == rank, "bytes"].sum()
        table.add("bytes of gradients", [size], [stream_bytes(sent_between(own, packets[rank]))])
        table.add("bytes of gradients, with headers", [size], [counted])
    first = collectives[collectives["rank"] == 0]
    expected_us = first["bytes"] * 8 / 1e3 / gbps / tcp_efficiency(1500, 14)
    table.add("transfer time of a buffer", first["service_us"], expected_us)
    payload = gbps * tcp_efficiency(1500, 14)
    table.add("bus bandwidth of a buffer", first["busbw_gbps"], [payload] * len(first))
    stamps = {rank: own for rank, (own, _) in values.items()}
    moments(table, stamps, packets, collectives)


def sent_between(stamps, packets):
    """Return the packets that were sent from the first gradient to the end of the last step."""
    at = packets["time_ns"]
    return packets[(packets["sent"] == 1) & (at >= stamps[0][0]) & (at <= stamps[-1][-1])]


def nic(table, samples, packets):
    """The rates of each interval between two samples, against the packets of that interval."""
    for (begin, *_), (end, *shown) in pairwise(samples[1:]):
        chosen = packets[(packets["time_ns"] >= begin) & (packets["time_ns"] < end)]
        for sent, value in zip((1, 0), shown, strict=True):
            true = chosen["frame"][chosen["sent"] == sent].sum() / (end - begin) * 1e9
            if true > 1e6:
                table.add("rate of a NIC", [value], [true])


def transfers(stamps, packets):
    """Return when each iteration's first packet left and its last came, by rank, in ns."""
    starts = np.array([min(own[0] for own in both) for both in zip(*stamps.values(), strict=True)])
    ends = np.append(starts[1:], np.iinfo(np.int64).max)
    found = []
    for rank in stamps:
        large = packets[rank][packets[rank]["payload"] >= PACKET_BYTES]
        spans = []
        for begin, end in zip(starts, ends, strict=True):
            own = large[(large["time_ns"] >= begin) & (large["time_ns"] < end)]
            left, came = (own["time_ns"][own["sent"] == which] for which in (1, 0))
            spans.append((left.min(), came.max()))
        found.append(np.array(spans))
    return found


def moments(table, stamps, packets, collectives):
    """When collectives were submitted, began and ended."""
    spans = transfers(stamps, packets)
    for rank, own in stamps.items():
        shown = collectives[collectives["rank"] == rank].sort_values("iteration")
        ready = [one[0] / 1e6 for one in own]
        table.add("submitted", shown["submitted_ns"] / 1e6, ready)
        table.add("transfer began", shown["began_ns"] / 1e6, spans[rank][:, 0] / 1e6)
        table.add("transfer ended", shown["ended_ns"] / 1e6, spans[rank][:, 1] / 1e6)
    return spans


def iterations(table, values, packets, rows, collectives):
    """What communication cost each iteration, and why."""
    stamps = {rank: own for rank, (own, _) in values.items()}
    spans = moments(table, stamps, packets, collectives)
    ready = np.array([[one[0] for one in own] for own in stamps.values()])
    begun = np.min([span[:, 0] for span in spans], axis=0)
    for rank, own in stamps.items():
        at, last = np.array(own), spans[rank][:, 1]
        backward, stopped, free = at[:, 1:].T
        shown = rows[rows["rank"] == rank].sort_values("iteration")
        # what the last rank costs: it may have come before training was stopped
        waiting = np.minimum(ready.max(axis=0) - at[:, 0], free - stopped)
        moving = overlap(stopped + waiting, free, begun, last)
        parts = {
            "communication": (shown["communication_us"], last - at[:, 0]),
            "overlapped with the backward": (
                shown["communication_us"] * shown["overlap"],
                overlap(at[:, 0], last, backward, stopped),
            ),
            "exposed: waiting": (shown["wait_us"], waiting),
            "exposed: transfer": (shown["transfer_us"], moving),
            "exposed: queueing": (shown["queued_us"], free - stopped - waiting - moving),
        }
        for name, (found_us, true_ns) in parts.items():
            table.add(name, found_us / 1e3, true_ns / 1e6)


def overlap(begin, end, other_begin, other_end):
    """Return the length of what two spans have in common."""
    return np.maximum(np.minimum(end, other_end) - np.maximum(begin, other_begin), 0)


def clocks(table, cluster):
    """The offsets of the ranks' clocks, and the arrivals that follow from them."""
    known = cluster.timings.clocks.current
    assert eventually(lambda: known.ranks == [0, 1])
    for _ in range(20):
        for rank in known.ranks:
            now = time.perf_counter_ns()
            found, uncertain = known.to_kernel(rank, now)
            table.add("offset of a VM's clock", [(found - now) / 1e6], [0.0])
            table.add("uncertainty of a VM's clock", [abs(found - now) <= uncertain], [True])
        time.sleep(0.1)
    stamps = run(cluster, f"train({ITERATIONS}, 1024, late=1, late_s=0.03)")
    arrivals = cluster.timings.arrivals()
    newest = arrivals["iteration"].max()
    for rank, own in stamps.items():
        shown = arrivals[(arrivals["rank"] == rank) & (arrivals["iteration"] > newest - ITERATIONS)]
        first = np.min([[one[0] for one in each] for each in stamps.values()], axis=0)
        true = np.array([one[0] for one in own]) - first
        table.add("arrival of a late rank", shown["late_us"] / 1e3, true / 1e6)
