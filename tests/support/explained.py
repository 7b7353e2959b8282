"""Trainings over a simulated fabric, as their ranks would have recorded them, for `explain`."""

from array import array

from recorded import MS

from workbench.fabric.overlap import CommunicationModel, Workload, simulate
from workbench.ranks import RankInfo
from workbench.timings.store import Store
from workbench.wire import Flag, IterationRecord, Layout

ITERATIONS = 12
BACKWARD_US = 60_000.0


def link(gbps, **options):
    """A ring of two ranks whose bytes have that bus bandwidth."""
    return CommunicationModel(**{"fixed_us": 0.0, "us_per_byte": 8e-3 / gbps,
                                 "negotiation_us": 300.0, **options})  # fmt: skip


def work(sizes, ready_us=None, compute_us=80_000.0):
    """Compute of 80 ms whose gradients are ready evenly over the last 60 ms."""
    step = BACKWARD_US / len(sizes)
    begin = compute_us - BACKWARD_US
    ready = ready_us or [begin + step * (place + 1) for place in range(len(sizes))]
    return Workload(tuple(ready), tuple(sizes), compute_us, 2000.0)


class Trained:
    """What `explain` uses of a cluster of two ranks, without its processes."""

    def __init__(self, work, model, *, fabric=None, vms=("vm1", "vm2"), snapshots=(), **phases):
        self.fabric, self.work, self.timings = fabric, work, self
        self.model, self.true = model, simulate(work, model)
        self.store, self.vms, gpu = Store(), vms, phases.pop("gpu", "CPU")
        self.ranks = [
            RankInfo(rank, vm, 1, gpu, "0", "ens192", "ready", 2) for rank, vm in enumerate(vms)
        ]
        self.snapshots = dict(snapshots)
        every, count = len(work.sizes_bytes), len(vms)
        layout = Layout(
            0, tuple(f"layer{place}" for place in range(every)),
            tuple(map(int, work.sizes_bytes)), (1,) * every, ("allreduce",) * every, (0,) * every,
            (count,) * every, ("optimizer",) * every, ("GLOO_ALLREDUCE",) * every,
        )  # fmt: skip
        for rank in range(count):
            self.store.add_layout(rank, layout)
        for index in range(ITERATIONS):
            for rank in range(count):
                self.store.add(rank, self._record(index, rank, **phases))

    def _record(self, index, rank, copy_ms=0, slower=None, cpu_ms=0, exposed_ms=None):
        times = {name: array("I") for name in ("responded", "began", "ended", "finished")}
        places = iter(range(len(self.work.sizes_bytes)))
        for (begin, end), size in zip(self.true.transfers_us, self.true.buffer_bytes, strict=True):
            left, first = size, len(times["began"])
            while left > 0:  # sizes are multiples of 64 bytes, as Horovod rounds them
                left -= self.work.sizes_bytes[next(places)]
                for name in times:
                    times[name].append(0)
            fused = len(times["began"]) - first > 1
            rate = self.model.copy_us_per_byte if fused else self.model.single_copy_us_per_byte
            copy = size * rate / 2
            for name, at in zip(times, (begin - copy, begin, end, end + copy), strict=True):
                for place in range(first, len(times[name])):
                    times[name][place] = round(at * 10)
        longer = (slower or (lambda index, rank: 0))(index, rank) * MS
        exposed = round(self.true.exposed_us * 1e3) if exposed_ms is None else exposed_ms * MS
        backward = round(BACKWARD_US * 1e3)
        forward = round(self.work.compute_us * 1e3) - backward - copy_ms * MS
        spent = {
            "data": 0, "copy": copy_ms * MS, "forward": forward + longer, "backward": backward,
            "exposed": exposed, "optimizer": round(self.work.tail_us * 1e3), "other": 0,
        }  # fmt: skip
        total = sum(spent.values())
        return IterationRecord(
            1, index, 10**12 + index * total, total,
            **{f"{name}_ns": value for name, value in spent.items()},
            communication_ns=exposed + backward, overlapped_ns=backward,
            size_bytes=int(sum(self.work.sizes_bytes)), tensors=len(self.work.sizes_bytes),
            world_size=len(self.vms), transfer_ns=exposed,
            flags=Flag.TRANSFERS_SEEN | (Flag.NONE if index else Flag.FIRST_OF_CELL),
            communication_cpu_ns=(index + 1) * cpu_ms * MS,
            submitted=array("I", [round(us * 10) for us in self.work.ready_us]), **times,
        )  # fmt: skip

    def rows(self, start=0):
        return self.store.rows(start)

    def records(self, first=None, last=None):
        return self.store.collectives.between(first, last)

    def vm_names(self):
        return dict(enumerate(self.vms))

    def snapshot(self):
        return self.snapshots
