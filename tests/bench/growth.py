"""What more ranks cost the kernel: 2 to 4,096 simulated ranks, 8 per VM, one stream per VM.

Another process sends what the agents of the VMs send: records with 161 collectives in some
eight buffers, after each iteration that has ended, at multiples of 90 ms. Measured is a process
with a kernel's `Timings`, which knows the clocks of all ranks: its processor time, all threads
counted; how long after its end an iteration is stored; its memory; and its view's messages.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from tests.bench.bounds import at_most, sized

RANKS_PER_VM = 8
COLLECTIVES = 161
CASES = sized(((2, 5), (8, 5), (64, 5), (512, 5), (4096, 5), (512, 20)), ((16, 5),))
"""Ranks, and iterations per second."""
SECONDS = sized(10, 1)
"""For each of the `PARTS`."""
PARTS = ("receive", "and write", "and view")
"""Only received and kept in memory; also written to disk and published; also shown."""
LIMIT_CORES = {(512, 20): 0.5, (4096, 5): 1.0}
LIMIT_US = 15
"""For a record, from 512 ranks on: with fewer, the time between records counts."""
LIMIT_LAG_S = 1.0
FIRST_ROW_LIMIT_S = 60
"""When the kernel stops waiting for a first record."""
_HEAD = (
    f"{'ranks':>5} {'it/s':>4} {'part':>9} {'cores':>5} {'us/rec':>6} {'lag ms':>7} {'most':>6} "
    f"{'MB/s':>5} {'MiB/h':>7} {'MiB':>5} {'view/s':>6} {'fds':>4} {'thr':>3} {'lost':>4} "
    f"{'load':>4}"
)


def measure():
    """Print a line for each size and part, and report the bounds of each size."""
    from workbench.timings.collective_records import MAX_COLLECTIVE_RECORDS
    from workbench.timings.store import MAX_STORED_ROWS, ROW

    print(
        "lag: from an iteration's end to its storage, up to 90 ms of it in the ranks\n"
        f"memory grows until {MAX_STORED_ROWS:,} rows "
        f"({MAX_STORED_ROWS * ROW.itemsize >> 20} MiB) and the "
        f"collectives of {MAX_COLLECTIVE_RECORDS:,} records "
        f"({MAX_COLLECTIVE_RECORDS * 1900 >> 20} MiB) "
        f"are kept\n{_HEAD}"
    )
    errors = []
    for ranks, per_s in CASES:
        measured = _run(ranks, per_s)
        errors += _errors(ranks, measured[1])
        yield from _report(ranks, per_s, measured)
    if errors:
        raise RuntimeError("; ".join(errors))


def _errors(ranks, result):
    """Return what went wrong in a kernel, as texts: all records have to arrive."""
    errors = [f"{ranks} ranks: {error}" for error in result["errors"]]
    if result["lost"] or result["dropped"]:
        errors.append(f"{ranks} ranks: {result['lost']} lost, {result['dropped']} dropped")
    return errors


def _run(ranks, per_s):
    spawn = multiprocessing.get_context("spawn")
    ours, its = spawn.Pipe()
    ready, stop = spawn.Event(), spawn.Event()
    kernel = spawn.Process(target=_kernel, args=(ranks, its, ready, stop), daemon=True)
    kernel.start()
    its.close()  # so that a kernel that has failed ends the waits below
    addresses = ours.recv()
    sent = spawn.Array("q", 2)
    arguments = (addresses, ranks, per_s, sent, ready, stop)
    sender = spawn.Process(target=_send, args=arguments, daemon=True)
    sender.start()
    parts = ours.recv()
    sender.join(60)
    ours.send(tuple(sent))
    result = ours.recv()
    kernel.join(60)
    return parts, result, tuple(sent)


def _report(ranks, per_s, measured):
    parts, result, (records, size) = measured
    rate = size / max(1, records)
    for name, one in zip(PARTS, parts, strict=True):
        came = max(1, one["rows"])
        print(
            f"{ranks:5} {per_s:4} {name:>9} {one['cpu'] / one['s']:5.2f} "
            f"{one['cpu'] / came * 1e6:6.1f} {one['lag'] * 1e3:7.0f} {one['most'] * 1e3:6.0f} "
            f"{came / one['s'] * rate / 1e6:5.1f} {one['mib_per_h']:7.0f} {one['mib']:5.0f} "
            f"{one['messages'] / one['s']:6.1f} {one['fds']:4} {one['threads']:3} "
            f"{result['lost']:4} {one['load']:4.1f}"
        )
    print(
        f"      first row {result['first_row_s']:.2f} s after the VMs connect; "
        f"the cell's end takes {result['end_cell_s']:.2f} s"
    )
    first, title = parts[0], f"{ranks} ranks, {per_s} it/s"
    if (ranks, per_s) in LIMIT_CORES:
        limit = LIMIT_CORES[ranks, per_s]
        yield at_most(f"{title}: to receive", first["cpu"] / first["s"], limit, "cores")
    if ranks >= 512:
        record_us = first["cpu"] / max(1, first["rows"]) * 1e6
        yield at_most(f"{title}: to receive a record", record_us, LIMIT_US, "us")
    lags = [part["most"] for part in parts]
    yield at_most(f"{title}: the largest lag", lags, LIMIT_LAG_S, "s", np.max)


# the kernel


def _kernel(ranks, pipe, ready, stop):
    """Receive as a cluster's kernel does, and report what it takes."""
    from workbench.timings import Timings
    from workbench.widgets.cluster_source import ClusterSource
    from workbench.widgets.stream import Stream
    from workbench.wire.address import of_vm

    folder = tempfile.TemporaryDirectory()
    os.environ["JUPYTER_RUNTIME_DIR"] = folder.name
    timings = Timings()
    timings.listen()
    vms = -(-ranks // RANKS_PER_VM)
    pipe.send([timings.address_for(of_vm(vm)) for vm in range(vms)])
    timings.begin_cell(1)
    for burst_s in range(60, 0, -15):  # as if the ranks had been pinged for a minute
        for rank in range(ranks):
            at = time.perf_counter_ns() - burst_s * 1_000_000_000
            timings.clocks.current.add(rank, at, at + 50_000, at + 100_000)
    ready.wait(120)
    began = time.monotonic()
    lags, messages = [], []
    while not len(timings):
        if time.monotonic() > began + FIRST_ROW_LIMIT_S:
            raise TimeoutError(f"no record was stored in {FIRST_ROW_LIMIT_S} s: {timings.errors}")
        time.sleep(0.005)
    first_row_s = time.monotonic() - began
    timings.subscribe(lambda: lags.append(timings.lag_s))
    places = [
        SimpleNamespace(rank=rank, vm=f"vm{rank // RANKS_PER_VM}", nic="eth0")
        for rank in range(ranks)
    ]
    idle = {"state": "ready", "profiling": SimpleNamespace(state="none", latest=None)}
    cluster = SimpleNamespace(
        timings=timings, ranks=places, n=ranks, fabric=None, snapshot=dict, **idle
    )
    stream = None
    time.sleep(1)
    parts = []
    for name in PARTS:
        if name == "and write":
            facts = [{"rank": place.rank, "vm": place.vm} for place in places]
            timings.keep("growth", facts, folder=folder.name)
            timings.describe("growth", {place.rank: place.vm for place in places})
        if name == "and view":
            stream = Stream(ClusterSource(cluster), messages.append, lambda: None)
            stream.start()
        time.sleep(1)
        parts.append(_part(timings, lags, messages))
    stop.set()
    if stream is not None:
        stream.close()
    pipe.send(parts)
    records, _ = pipe.recv()
    began = time.monotonic()
    timings.end_cell(1, dict.fromkeys(range(ranks), records // ranks), timeout_s=100)
    result = {
        "end_cell_s": time.monotonic() - began,
        "lost": records - len(timings),
        "dropped": timings.dropped,
        "errors": timings.errors[:1] + timings.storage_errors[:1],
        "first_row_s": first_row_s,
    }
    timings.close()
    pipe.send(result)
    folder.cleanup()


def _part(timings, lags, messages):
    import psutil

    me = psutil.Process()
    lags.clear()
    messages.clear()
    memory, rows = me.memory_info().rss, len(timings)
    used, began = time.process_time(), time.monotonic()
    time.sleep(SECONDS)
    used, took = time.process_time() - used, time.monotonic() - began
    grown = me.memory_info().rss - memory
    return {
        "cpu": used,
        "s": took,
        "rows": len(timings) - rows,
        "lag": statistics.median(lags or [float("nan")]),
        "most": max(lags, default=float("nan")),
        "mib_per_h": grown / 2**20 / took * 3600,
        "mib": me.memory_info().rss / 2**20,
        "messages": len(messages),
        "fds": me.num_fds(),
        "threads": me.num_threads(),
        "load": os.getloadavg()[0],
    }


# the VMs


def _send(addresses, ranks, per_s, sent, ready, stop):
    """Send in the name of all agents, until the kernel has measured everything."""
    import zmq

    from workbench.rank.recording.sender import DELAY_S
    from workbench.wire.vm_messages import VmLayout

    os.nice(5)
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 2048)
    vms = []
    for vm, address in enumerate(addresses):
        socket = context.socket(zmq.DEALER)
        address.connect(socket)
        own = range(vm * RANKS_PER_VM, min(ranks, (vm + 1) * RANKS_PER_VM))
        socket.send_multipart(VmLayout(tuple(own), _layout(ranks)).encode())
        vms.append((socket, own))
    pool = _pool(ranks, per_s)
    ready.set()
    period = 1 / per_s
    began, done = time.perf_counter(), 0
    while not stop.is_set():
        time.sleep(DELAY_S - time.time() % DELAY_S)
        ended = int((time.perf_counter() - began) / period)
        starts = [(index, round((began + index * period) * 1e9)) for index in range(done, ended)]
        done = ended
        for socket, own in vms if starts else ():
            frames = _frames(own, starts, pool)
            socket.send_multipart(frames)
            sent[0] += len(own) * len(starts)
            sent[1] += sum(map(len, frames))
    for socket, _ in vms:
        socket.close(linger=20_000)
    context.term()


class Batch(NamedTuple):
    """Records of the ranks of a VM, and what the product's packer takes besides them."""

    records: list[Any]
    times: np.ndarray
    buffers: Any


def _frames(own, starts, pool):
    """Return the message of a VM; its records are some of the pool, at their time."""
    from workbench.wire.vm_messages import VmRecords

    iterations = [
        _packed(pool[(own[0] * 7 + index) % len(pool)], index, start) for index, start in starts
    ]
    # rank by rank, as they arrive at the agent
    each = [(rank, records[place]) for place, rank in enumerate(own) for records in iterations]
    ranks, records = zip(*each, strict=True)
    return VmRecords.of(ranks, records).encode()


def _packed(batch, index, start_ns):
    """Return the records of a batch as bytes, as those of an iteration."""
    from workbench.wire.record import pack_all

    for record in batch.records:
        record.index = index
        record.start_ns = start_ns
    return pack_all(*batch)


def _layout(ranks):
    from workbench.wire import Layout

    count = COLLECTIVES
    return Layout(
        0, tuple(f"layer{at}.weight" for at in range(count)), (600_000,) * count, (1,) * count,
        ("allreduce",) * count, (0,) * count, (ranks,) * count, ("optimizer",) * count,
        ("NCCL_ALLREDUCE",) * count,
    )  # fmt: skip


def _pool(ranks, per_s, count=64):
    """Return batches with random times: they are as hard to compress as real ones."""
    from workbench.wire.record import Buffers

    random = np.random.default_rng(0)
    of_vm = min(ranks, RANKS_PER_VM)
    batches = []
    for _ in range(count):
        times = [_random_times(random, per_s) for _ in range(of_vm)]
        records = [_random_record(random, ranks, per_s) for _ in range(of_vm)]
        joined = np.concatenate(times, axis=1, dtype=np.uint32, casting="unsafe")
        buffers = Buffers.of(joined, np.full(of_vm, COLLECTIVES))
        batches.append(Batch(records, joined, buffers))
    return batches


def _random_times(random, per_s):
    """Return the times of an iteration's collectives in some eight buffers."""
    from workbench.wire.record import TICK_NS, TIMES

    duration = round(1e9 / per_s)
    buffers = int(random.integers(6, 11))
    submitted = np.sort(random.integers(0, duration // 2 // TICK_NS, COLLECTIVES))
    steps = random.integers(0, duration // (12 * len(TIMES)) // TICK_NS, (len(TIMES), buffers))
    of_buffer = np.arange(COLLECTIVES) * buffers // COLLECTIVES
    times = submitted[-1] + np.cumsum(steps, axis=0)[:, of_buffer]
    times[0] = submitted
    times[-1] += random.integers(0, 50, COLLECTIVES)
    return times


def _random_record(random, ranks, per_s):
    """Return the record of an iteration with random phases, whose times are packed with it."""
    from workbench.wire import IterationRecord

    duration = round(1e9 / per_s)
    phases = random.multinomial(duration, [1 / 7] * 7).tolist()
    return IterationRecord(
        1, 0, 0, duration, *phases, duration // 2, duration // 3, 600_000 * COLLECTIVES,
        COLLECTIVES, ranks,
    )  # fmt: skip
