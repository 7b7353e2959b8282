"""Two ranks on this machine, against clocks in the user's script, its own counts, and /proc."""

import os
import time
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from timers import eventually

import workbench as wb
from tests.truth import START_S
from workbench.cluster import TextSink
from workbench.resources.counters import Sampler
from workbench.resources.use import UseStore
from workbench.server.metrics import PREFIX, TimingsCollector

PHASES = ("data", "forward", "backward", "exposed", "optimizer", "other")
BATCH, BATCHES, EXTRA = 16, 40, 20
"""Samples of a batch, batches of an epoch; the loop runs two epochs and so many batches."""
CELL_S = 150
SAMPLE_S, SAMPLES = 2.0, 4
TRAIN = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
now = time.perf_counter_ns
class Items(Dataset):
    def __init__(self, batches): self.size = 16 * batches
    def __len__(self): return self.size
    def __getitem__(self, place):
        if place % 16 == 0: time.sleep(0.004)
        return torch.ones(256)
class Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden):
        time.sleep(0.005)
        return hidden.view_as(hidden)
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.008)
        return gradient
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
    def forward(self, hidden): return Wait.apply(self.layers(hidden))
model = Net()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1e-4), named_parameters=model.named_parameters())
def train(batches, count):
    stamps, done = [], 0
    loader = DataLoader(Items(batches), batch_size=16)
    while done < count:
        batches = iter(loader)
        for _ in range(min(len(loader), count - done)):
            one = [now()]
            x = next(batches)
            one.append(now())
            optimizer.zero_grad()
            one.append(now())
            loss = model(x).sum()
            one.append(now())
            loss.backward()
            one.append(now())
            optimizer.synchronize()
            one.append(now())
            with optimizer.skip_synchronize():
                optimizer.step()
            one.append(now())
            time.sleep(0.003)
            stamps.append(one)
            done += 1
    return stamps
sizes = [p.numel() * 4 for p in model.parameters()]
"""
BUSY = """
import time
until = time.monotonic() + {seconds}
while time.monotonic() < until:
    busy = time.monotonic() + (0.05 if rank == 0 else 0.02)
    while time.monotonic() < busy: pass
    if rank == 1: time.sleep(0.03)
"""


def measure(table):
    """Train, and compare all that is shown of it."""
    UseStore().path.unlink(missing_ok=True)
    with wb.Cluster(n=2, start_timeout_s=START_S) as cluster:
        began = time.monotonic()
        run(cluster, TRAIN)
        stamps = run(cluster, f"train({BATCHES}, {2 * BATCHES + EXTRA})")
        cells_s = time.monotonic() - began
        rows = cluster.timings.to_frame()
        phases(table, rows, stamps)
        progress(table, cluster, stamps)
        prometheus(table, cluster, rows, stamps)
        sizes = run(cluster, "sizes")
        for rank in (0, 1):
            own = rows[rows["rank"] == rank]
            table.add("bytes and tensors of an iteration",
                      zip(own["bytes"], own["tensors"], strict=True),
                      [(sum(sizes[rank]), len(sizes[rank]))] * len(own))  # fmt: skip
        cells_s += time_left(table, cluster) + hardware(table, cluster)
        took_s = time.monotonic() - began
    use(table, took_s, cells_s)
    recorded(table, cluster)


def run(cluster, source):
    """Run a cell; return its values by rank."""
    return cluster.run(source, sink=TextSink(), timeout=CELL_S).values


def truths(stamps):
    """Return what a rank's own stamps say of its iterations but the first, by phase, in ms."""
    at = np.array(stamps) / 1e6
    loading, loaded, forward, backward, stopped, stepping, end = at[1:].T
    found = {
        "data": loaded - loading,
        "forward": backward - forward,
        "backward": stopped - backward,
        "exposed": stepping - stopped,
        "optimizer": end - stepping,
        "iteration": end - at[:-1, -1],
    }
    rest = sum(found[phase] for phase in PHASES[:-1])
    return found | {"other": found["iteration"] - rest}


def phases(table, rows, stamps):
    """Each iteration of each rank but the first, which begins in the middle."""
    for rank, own in stamps.items():
        truth = truths(own)
        shown = rows[rows["rank"] == rank]
        table.add("number of iterations", [len(shown)], [len(own)])
        shown = shown.iloc[1:]
        for phase in PHASES:
            table.add(f"phase: {phase}", shown[f"{phase}_us"] / 1e3, truth[phase])
        table.add("iteration time", shown["iteration_us"] / 1e3, truth["iteration"])
        added = shown[[f"{phase}_us" for phase in (*PHASES, "copy")]].fillna(0).sum(axis=1)
        table.add("sum of the phases", added / 1e3, truth["iteration"])


def progress(table, cluster, stamps):
    """What adds up over the loop, whose batches and seconds the loop knows."""
    found = cluster.timings.summary()
    spans = [(own[-1][-1] - own[0][-1]) / 1e9 for own in stamps.values()]
    count = len(stamps[0]) - 1
    table.add("iterations per second", [found.iterations_per_s], [count / np.mean(spans)])
    table.add("samples per second", [found.progress.samples_per_s],
              [sum(count * BATCH / span for span in spans)])  # fmt: skip
    table.add("epochs", [found.progress.epochs], [len(stamps[0]) / BATCHES])
    exposed = [sum(one[5] - one[4] for one in own) / 3.6e12 for own in stamps.values()]
    table.add("hours lost to exposed communication", [found.progress.exposed_hours],
              [np.mean(exposed)])  # fmt: skip


def prometheus(table, cluster, rows, stamps):
    """What a scrape returns, against the rows, and against the script's own clocks."""
    collectors = CollectorRegistry()
    collectors.register(TimingsCollector())

    def scraped():
        found = {}
        for family in text_string_to_metric_families(generate_latest(collectors).decode()):
            for one in family.samples:
                labels = one.labels.get("rank"), one.labels.get("phase")
                found[(one.name.removeprefix(PREFIX), *labels)] = one.value
        counts = [found.get(("iterations_total", str(rank), None)) for rank in stamps]
        return found if counts == [len(own) for own in stamps.values()] else None

    found = eventually(scraped) or {}
    for rank, own in stamps.items():
        mine, name = rows[rows["rank"] == rank], str(rank)
        totals = {
            "iterations_total": len(mine),
            "bytes_total": mine["bytes"].sum(),
            "communication_seconds_total": mine["communication_us"].sum() / 1e6,
            "iteration": mine["iteration"].max(),
        }
        shown = [found.get((metric, name, None), np.nan) for metric in totals]
        table.add("Prometheus: totals", shown, totals.values())
        table.add("number of iterations", [found.get(("iterations_total", name, None))], [len(own)])
        truth = truths(own)
        first = np.diff(np.array(own[0]) / 1e6)  # the first iteration, without a pause before it
        parts = dict(zip(("data", "", "forward", "backward", "exposed", "optimizer"), first,
                         strict=True))  # fmt: skip
        for phase in PHASES[:-1]:
            shown_ms = found.get(("phase_seconds_total", name, phase), np.nan) * 1e3
            true_ms = truth[phase].sum() + parts[phase]
            table.add("Prometheus: seconds by phase", [shown_ms / len(own)], [true_ms / len(own)])


def time_left(table, cluster, batches=200):
    """The time left as it is shown during an epoch; return the seconds of the cell."""
    began = time.monotonic()
    running = cluster.run_in_background(
        f"train({batches}, {batches})", sink=TextSink(), timeout=CELL_S
    )
    first, seen = len(cluster.timings), []
    while not running.done():
        time.sleep(0.25)
        if len(cluster.timings) > first + 60:
            seen.append((time.perf_counter(), cluster.timings.summary(50).progress.epoch_left_s))
    end = running.result().values[0][-1][-1] / 1e9
    took_s = time.monotonic() - began
    chosen = [(left, end - at) for at, left in seen if end - at > 1]
    table.add("time left in the epoch", *zip(*chosen, strict=True))
    return took_s


def hardware(table, cluster):
    """Ranks of which one uses a core and the other less; return the seconds of the cell."""
    pids = {info.rank: info.pid for info in cluster.ranks}
    began = time.monotonic()
    source = BUSY.format(seconds=SAMPLE_S * (SAMPLES + 1))
    running = cluster.run_in_background(source, sink=TextSink(), timeout=CELL_S)
    with Sampler() as sampler:
        before = None
        for _ in range(SAMPLES):
            first = clocks(pids)
            sample = sampler.sample()
            now = [np.mean(pair, axis=0) for pair in zip(first, clocks(pids), strict=True)]
            if before is not None:
                uses(table, sample, pids, before, now)
            table.add("memory of a VM", [sample.memory.used_bytes], [memory()])
            before = now
            time.sleep(SAMPLE_S)
    for rank, size in cluster.memory_bytes().items():
        table.add("memory of a rank", [size], [resident(pids[rank])])
    running.result()
    return time.monotonic() - began


def clocks(pids):
    """Return time, CPU seconds of the machine, and of each rank."""
    columns = Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    busy = sum(int(columns[place]) for place in (0, 1, 2, 5, 6))
    spent = []
    for pid in pids.values():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent.append(int(fields[11]) + int(fields[12]))
    return [np.array([time.monotonic()]), np.array([busy, *spent]) / os.sysconf("SC_CLK_TCK")]


def uses(table, sample, pids, before, now):
    """Compare a sample with the readings around it and around the one before."""
    elapsed = (now[0] - before[0])[0]
    shares = (now[1] - before[1]) / elapsed * 100
    table.add("CPU of a VM", [sample.cpu.percent], [shares[0] / len(os.sched_getaffinity(0))])
    shown = {one.pid: one for one in sample.processes}
    for (rank, pid), share in zip(pids.items(), shares[1:], strict=True):
        one = shown[pid]
        assert one.rank == rank
        table.add("CPU of a rank", [one.cpu_percent], [share])
        table.add("memory of a rank", [one.memory_bytes], [resident(pid)])


def memory():
    """Return the bytes of this machine that are not available."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    return total - free


def resident(pid):
    """Return the resident bytes of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(one.split()[1]) << 10 for one in lines if one.startswith("VmRSS:"))


def use(table, took_s, cells_s):
    """The stored use of the CPU ranks: while the cluster was up, and while cells ran."""
    (found,) = UseStore().read(1)
    shown = found.allocated_s / 2, found.cells_s / 2
    table.add("rank-hours allocated and in cells", shown, (took_s, cells_s))


def recorded(table, cluster):
    """The run on disk has the figures that the cluster had."""
    shown, truth = wb.open_run(cluster.timings.path).to_frame(), cluster.timings.to_frame()
    assert list(shown) == list(truth)
    for name in truth:
        both = shown[name].notna() | truth[name].notna()
        table.add("a recorded run", shown.loc[both, name], truth.loc[both, name])
