"""Figures without ranks: plans, topology files, and costs of records, worked out by hand."""

import itertools
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from recorded import MS, PHASES_MS, SIZES, recorded
from topology_files import aws_p4d, azure_ndv4

import workbench as wb
from workbench.cluster.use_meter import CPU_RANKS, UseMeter
from workbench.fabric import plan
from workbench.ranks import RankInfo
from workbench.resources import Unknown
from workbench.resources.usage import CpuUse, MemoryUse, ProcessUse, Rate, Sample
from workbench.resources.use import UseStore
from workbench.timings.store import Store
from workbench.timings.summary import summarize
from workbench.wire import Flag, IterationRecord

BRIDGE = "0x0604"


def measure(table):
    """Compare all of them."""
    plans(table)
    topologies(table)
    records(table)
    progress(table)
    use(table)
    rates(table)


def plans(table):
    """BERT-Large, ImageNet, GPT-3: the numbers of their papers, and of a ring's formula."""
    bert = plan("340M", iterations=30_000, epochs=100, gbps=25, vms=4)
    adam, mixed = plan("340M"), plan("340M", precision="mixed")
    slow = plan("1M", gbps=10, latency_us=50, vms=3)
    compute = plan("1M", gbps=10, vms=2, compute_ms=5, samples=1000, batch=10, epochs=3)
    images = plan("25.6M", samples="1.28M", batch=32, vms=4)
    pairs = [
        (bert["gradients"].value, 1.36e9),
        (bert["moved in the limit"].value, 2.72e9),
        (bert["moved per iteration, 2 ranks"].value, 1.36e9),
        (bert["moved per iteration, 4 ranks"].value, 2.04e9),
        (bert["communication in the limit"].value, 0.8704),
        (bert["communication per epoch, in the limit"].value, 26_112),
        (bert["communication in total, in the limit"].value, 2_611_200),
        (bert.scaling[0].communication_s, 0),
        (bert.scaling[1].communication_s, 0.4352),
        (bert.scaling[3].communication_s, 0.6528),
        (plan("175B")["gradients"].value, 700e9),
        (slow.scaling[1].communication_s, 4e6 * 8 / 10e9 + 2 * 50e-6),
        (slow.scaling[2].communication_s, 4 / 3 * 4e6 * 8 / 10e9 + 4 * 50e-6),
        (images["iterations per epoch"].value, 40_000),
        *zip((row.iterations for row in images.scaling), (40_000, 20_000, 13_334, 10_000),
             strict=True),
        (adam["memory of parameters"].value, 1.36e9),
        (adam["memory of gradients"].value, 1.36e9),
        (adam["memory of the optimizer"].value, 2.72e9),
        (adam["memory"].value, 5.44e9),
        (mixed["memory of the optimizer"].value, 4.08e9),
        (mixed["memory"].value, 5.44e9),
        (compute.scaling[1].efficiency, 5 / (5 + 3.2)),
        (compute.scaling[1].epoch_s, 50 * 8.2e-3),
        (compute["training, 2 ranks"].value, 3 * 50 * 8.2e-3),
    ]  # fmt: skip
    table.add("plan: bytes, times, iterations, memory", *zip(*pairs, strict=True))


def topologies(table):
    """All pairs of devices of two vendors' files, by the tree of their XML."""
    with tempfile.TemporaryDirectory() as folder:
        for text in (azure_ndv4(), aws_p4d()):
            path = Path(folder) / "topology.xml"
            path.write_text(text)
            snapshot = wb.Snapshot.from_nccl_topology(path)
            truth = distances(text)
            shown = [snapshot.pcie.distance(*pair).distance for pair in truth]
            table.add("distance of two devices", shown, truth.values())


def distances(text):
    """Return the distance of each pair of devices in a topology file, as NCCL defines it."""
    root = ElementTree.fromstring(text)
    above = {child: parent for parent in root.iter() for child in parent}
    devices = {
        one.get("busid"): one for one in root.iter("pci") if not one.get("class").startswith(BRIDGE)
    }

    def path(node):
        return [node, *(path(above[node]) if node in above else [])]

    found = {}
    for (a, one), (b, other) in itertools.combinations(devices.items(), 2):
        ends = path(other)
        common = next(node for node in path(one) if node in ends)
        if common.tag == "pci":
            direct = above[one] is common and above[other] is common
            found[a, b] = "PIX" if direct else "PXB"
        else:
            found[a, b] = {"cpu": "PHB", "system": "SYS"}[common.tag]
    return found


def records(table):
    """Records of two ranks of which one is late by 3 ms."""
    late, count = 3.0, 20
    timings = recorded(count, late_ms=late)
    found = timings.summary()
    iteration_ms = sum(PHASES_MS.values())
    communication_ms = 11 - late / 2
    bits = sum(SIZES) * 8
    exposed_ms = PHASES_MS["exposed"] - late / 2
    pairs = [
        (found.iteration_us, iteration_ms * 1e3),
        (found.iterations_per_s, 1e3 / iteration_ms),
        (found.phases_us["data"], (PHASES_MS["data"] + late / 2) * 1e3),
        (found.phases_us["backward"], PHASES_MS["backward"] * 1e3),
        (found.exposed_us, exposed_ms * 1e3),
        (found.exposed_share, exposed_ms / iteration_ms),
        (found.communication_us, communication_ms * 1e3),
        (found.overlapped_us, (communication_ms - exposed_ms) * 1e3),
        (found.algbw_gbps, bits / communication_ms / 1e6),
        (found.busbw_gbps, bits / communication_ms / 1e6),
        (found.bytes, sum(SIZES)),
        (found.tensors, 3),
        (found.iterations, count - 1),
    ]
    table.add("summary of an iteration's records", *zip(*pairs, strict=True))


def progress(table):
    """Records of 20 batches of 16 samples of an epoch of 30, of 20 and 25 ms on two ranks."""
    filled = Store()
    for index in range(20):
        for rank in (0, 1):
            whole, exposed = (20 + 5 * rank) * MS, (1 + rank) * MS
            spent = {"data": 0, "copy": 0, "forward": 0, "backward": whole - exposed,
                     "exposed": exposed, "optimizer": 0, "other": 0}  # fmt: skip
            flags = Flag.NONE if index else Flag.FIRST_OF_CELL
            record = IterationRecord(
                1, index, index * whole, whole,
                **{f"{name}_ns": value for name, value in spent.items()},
                communication_ns=exposed, overlapped_ns=0, size_bytes=4, tensors=1, world_size=2,
                flags=flags, samples=16, batch=index + 1, batches=30,
            )  # fmt: skip
            filled.add(rank, record)
    found = summarize(filled.rows()).progress
    shown = found.samples_per_s, found.epochs, found.epoch_left_s
    table.add(
        "samples, epochs, time left of records",
        shown,
        (16 / 0.020 + 16 / 0.025, 20 / 30, 10 * 0.0225),
    )
    table.add("hours lost of records", [found.exposed_hours], [20 * 1.5e-3 / 3600])


def use(table):
    """Two ranks of a VM for 4 periods of 2 s, in a cell for two of them; one uses a core."""
    now = [1e9]
    ranks = [RankInfo(n, "vm1", 10 + n, "CPU", "any", "eth0", "ready", 1) for n in (0, 1)]
    nothing = Unknown("not read")
    processes = tuple(
        ProcessUse(10 + n, "python", "rank", None, None, "c", n, percent, 0, ())
        for n, percent in enumerate((100.0, 25.0))
    )
    sample = Sample(0.0, CpuUse(nothing), MemoryUse(nothing, nothing), (), (), processes)
    with tempfile.TemporaryDirectory() as folder:
        store = UseStore(Path(folder) / "use.sqlite")
        meter = UseMeter("c", store, lambda: now[0])
        for in_cell in (True, True, False, False, False):
            meter.add(ranks, {"vm1": sample}, in_cell=in_cell)
            now[0] += 2.0
        meter.flush()
        (found,) = store.read(1)
    assert found.device == CPU_RANKS
    shown = found.allocated_s, found.measured_s, found.cells_s, found.used_s, found.share
    table.add("GPU-hours and rank-hours of samples", shown, (16, 16, 8, 10, 0.625))


def rates(table):
    """A counter that is read three times."""
    counter = Rate()
    counter.update(1000, 10.0)
    shown = counter.update(1500, 10.5), counter.update(1600, 12.5)
    table.add("rate of a counter", shown, (1000, 50))
