"""Predictions from the records of a training whose fabric is known."""

import math
from array import array

import numpy as np
import pytest
from recorded import MS, recorded
from training_loops import MODEL, PLAIN

import workbench as wb
from workbench.advisor.measured_training import measure
from workbench.advisor.what_if import link_gbps
from workbench.errors import UsageError
from workbench.fabric import rdma_efficiency, tcp_efficiency
from workbench.fabric.overlap import CommunicationModel, Workload, simulate
from workbench.timings.store import Store
from workbench.wire import Flag, IterationRecord, Layout

COUNT, APART_US, SIZE = 12, 8000.0, 1 << 20
ITERATIONS = 6


class Recorded:
    """A training over a simulated fabric, as its ranks would have recorded it."""

    def __init__(
        self, model, *, ranks=2, kinds="allreduce", by="optimizer", compute_us=None, per_vm=1,
        exposed=None, process_set=None, network="", early_us=0.0, library="GLOO_ALLREDUCE",
    ):  # fmt: skip
        self.store, self.layout = Store(), _layout(ranks, kinds, by, process_set, library)
        self.per_vm, self.exposed, self.early_us = per_vm, exposed, early_us
        if network:
            self.ranks = [{"rank": rank, "transport": network} for rank in range(ranks)]
        self.work = Workload(
            tuple(APART_US * (place + 1) for place in range(COUNT)), (SIZE,) * COUNT,
            compute_us or APART_US * COUNT, 3000.0,
        )  # fmt: skip
        self.true = simulate(self.work, model)
        for rank in range(ranks):
            self.store.add_layout(rank, self.layout)
        for index in range(ITERATIONS):
            for rank in range(ranks):
                self.store.add(rank, self._record(index, ranks, early_us * (rank > 0)))

    def _record(self, index, ranks, early_us):
        times = {name: array("I") for name in ("responded", "began", "ended", "finished")}
        for (begin, end), size in zip(self.true.transfers_us, self.true.buffer_bytes, strict=True):
            for name, at in zip(times, (begin, begin, end, end), strict=True):
                times[name].extend([round((at + early_us) * 10)] * round(size / SIZE))
        compute, exposed = round(self.work.compute_us * 1e3), round(self.true.exposed_us * 1e3)
        exposed = exposed if self.exposed is None else self.exposed
        duration = compute + exposed + round(self.work.tail_us * 1e3)
        return IterationRecord(
            1, index, 10**12 + index * duration, duration, data_ns=0, copy_ns=0,
            forward_ns=2 * MS, backward_ns=compute - 2 * MS, exposed_ns=exposed,
            optimizer_ns=round(self.work.tail_us * 1e3), other_ns=0,
            communication_ns=duration // 2, overlapped_ns=0, size_bytes=COUNT * SIZE,
            tensors=COUNT, world_size=ranks,
            flags=Flag.TRANSFERS_SEEN | (Flag.NONE if index else Flag.FIRST_OF_CELL),
            submitted=array("I", [round((us + early_us) * 10) for us in self.work.ready_us]),
            **times,
        )  # fmt: skip

    def rows(self, start=0):
        return self.store.rows(start)

    def records(self, first=None, last=None):
        return self.store.collectives.between(first, last)

    def vm_names(self):
        return {rank: f"vm{rank // self.per_vm}" for rank in range(len(self.layout.ranks))}


def _layout(ranks, kind, by, process_set, library):
    names = tuple(f"layer{place}" for place in range(COUNT))
    number, ranks = process_set or (0, ranks)
    return Layout(
        0, names, (SIZE,) * COUNT, (1,) * COUNT, (kind,) * COUNT, (number,) * COUNT,
        (ranks,) * COUNT,
        (by,) * COUNT, (library,) * COUNT,
    )  # fmt: skip


def fabric(gbps, ranks=2, **options):
    """A ring's model: its bytes at that bus bandwidth, and a negotiation of 0.3 ms."""
    per_byte = 2 * (ranks - 1) / ranks * 8e-3 / gbps
    return CommunicationModel(0.0, per_byte, negotiation_us=300.0, **options)


@pytest.mark.parametrize("gbps", [0.5, 1.0, 2.0])
def test_no_change_is_the_measured_iteration(gbps):
    """The simulation of what was measured is measured against it, and corrected by its error."""
    training = Recorded(fabric(gbps))
    found = wb.what_if(training)
    assert found.predicted_us == pytest.approx(found.measured_us)
    assert found.measured_us == pytest.approx(training.true.iteration_us, rel=1e-3)
    assert abs(found.replay_error) < 0.02
    assert found.reliable
    assert found.predicted_exposed_us == pytest.approx(training.true.exposed_us, abs=10)


CHANGES = [
    ({"gbps": 0.5}, fabric(0.5)),
    ({"gbps": 4.0}, fabric(4.0)),
    ({"ranks": 4}, fabric(1.0, 4)),
    ({"fusion_threshold_bytes": 2 * SIZE}, fabric(1.0, fusion_bytes=2 * SIZE)),
    ({"fusion_threshold_bytes": 0}, fabric(1.0, fusion_bytes=0)),
    ({"cycle_time_ms": 20}, fabric(1.0, cycle_us=20e3)),
]


@pytest.mark.parametrize(("change", "truth"), CHANGES, ids=lambda value: str(value)[:40])
def test_a_change_is_predicted_as_the_fabric_would_be(change, truth):
    """A training at 1 Gbit/s says how the same training fares elsewhere."""
    training = Recorded(fabric(1.0))
    if "gbps" in change:  # nominal rates include headers
        change = {"gbps": change["gbps"], "measured_gbps": 1.0 / tcp_efficiency()}
        truth = fabric(change["gbps"] * tcp_efficiency())
    true_us = simulate(training.work, truth).iteration_us
    assert wb.what_if(training, **change).predicted_us == pytest.approx(true_us, rel=0.02)


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_a_limit_passes_after_idle_time_is_no_rate(ranks):
    """The burst of a token bucket is told from the rate, and is bytes of the link, as it is."""
    burst = SIZE / 2
    training = Recorded(fabric(0.5, burst_bytes=burst))
    found = wb.what_if(training, gbps=0.25, measured_gbps=0.5 / tcp_efficiency(), ranks=ranks)
    steps = 2 * (ranks - 1) / ranks
    truth = fabric(0.25 * tcp_efficiency(), ranks, burst_bytes=burst / steps)
    true_us = simulate(training.work, truth).iteration_us
    assert found.predicted_us == pytest.approx(true_us, rel=0.01)
    assert abs(found.replay_error) < 0.01


def test_ranks_that_begin_an_iteration_at_other_times_have_one_clock():
    """Their times are since their own begin; they finish each transfer together."""
    even, uneven = Recorded(fabric(0.5)), Recorded(fabric(0.5), early_us=5000.0)
    expected, found = wb.what_if(even, gbps=0.2), wb.what_if(uneven, gbps=0.2)
    assert found.replay_error == pytest.approx(expected.replay_error, abs=0.001)
    assert found.predicted_us == pytest.approx(expected.predicted_us, rel=0.001)


def test_half_the_bytes_and_a_larger_batch_hide_more():
    """Compression and a larger batch reduce the exposed share; neither adds to the transfers."""
    training = Recorded(fabric(0.5))
    as_is, halved, larger = (
        wb.what_if(training, **change)
        for change in ({}, {"compression": "fp16"}, {"batch_scale": 3})
    )
    assert halved.predicted_transfer_us == pytest.approx(as_is.predicted_transfer_us / 2, rel=0.01)
    assert halved.exposed_share < as_is.exposed_share
    assert larger.exposed_share < as_is.exposed_share
    assert larger.predicted_us > as_is.predicted_us


def test_placement_needs_the_rate_within_a_vm():
    """Ranks of one VM first reduce among themselves; the network then has fewer steps."""
    training = Recorded(fabric(1.0))
    with pytest.raises(UsageError, match="Give vm_gbps"):
        wb.what_if(training, ranks=8, ranks_per_vm=8)
    flat = wb.what_if(training, ranks=8, ranks_per_vm=4)
    levels = wb.what_if(training, ranks=8, ranks_per_vm=4, hierarchical=True, vm_gbps=1000)
    inside = wb.what_if(training, ranks=8, ranks_per_vm=8, vm_gbps=1000)
    assert inside.predicted_us < levels.predicted_us < flat.predicted_us


def test_ranks_of_one_vm_do_not_measure_a_network():
    """More VMs need the rate of their link, whether `ranks` or `ranks_per_vm` asks for them."""
    training = Recorded(fabric(1.0), per_vm=2)
    for change in ({"ranks": 8}, {"ranks_per_vm": 1}):
        with pytest.raises(UsageError, match="no link between VMs was measured"):
            wb.what_if(training, **change)
    within = wb.what_if(training, ranks=8, ranks_per_vm=8)
    network = wb.what_if(training, ranks=8, gbps=np.int64(1))
    assert within.predicted_transfer_us < network.predicted_transfer_us


@pytest.mark.parametrize(
    ("options", "payload"),
    [
        ({}, tcp_efficiency()),
        ({"network": "Gloo: TCP eth0"}, tcp_efficiency()),
        ({"network": "Gloo: TCP eth0, NCCL: RoCE mlx5_0:1"}, rdma_efficiency()),
        ({"network": "NCCL: InfiniBand mlx5_0:1"}, rdma_efficiency(link_layer="InfiniBand")),
        ({"per_vm": 2}, 1.0),
    ],
    ids=str,
)
def test_headers_are_those_of_the_transport(options, payload):
    """A nominal rate has the headers of TCP or RDMA; within a VM there are none."""
    measured = measure(Recorded(fabric(1.0), **options))
    assert link_gbps(measured) * payload == pytest.approx(1.0, rel=0.01)


def test_an_iteration_that_is_not_reproduced_gives_no_negative_prediction():
    """Nearly no exposed time was measured where the transfers do not fit into compute."""
    training = Recorded(fabric(0.5), exposed=10_000)
    found = wb.what_if(training, gbps=10_000)
    assert not found.reliable
    assert 0 <= found.predicted_exposed_us <= found.measured_exposed_us
    assert found.predicted_us == pytest.approx(found.measured_us, rel=0.01)
    for text in (repr(found), found._repr_html_()):
        assert "not reliable" in text
        assert "This is no prediction" in text


def test_ddp_that_is_not_reproduced_is_refused():
    """When a bucket of DDP begins its transfer is not recorded: the exposed time is no guess."""
    with pytest.raises(UsageError, match=r"Cannot predict this DDP training: .* off"):
        wb.what_if(Recorded(fabric(0.5), by="ddp", library="", exposed=10_000))
    as_is = wb.what_if(Recorded(fabric(1.0), by="ddp", library=""))
    assert as_is.reliable


def test_a_result_says_what_it_assumes():
    """Text and HTML have the figures, their error and the assumptions."""
    found = wb.what_if(Recorded(fabric(1.0)), gbps=10)
    for text in (repr(found), found._repr_html_()):
        assert "gbps=10" in text
        assert f"{found.predicted_us / 1e3:,.2f} ms" in text
        assert "The measured figures are medians of the newest iterations" in text
        assert "Simulated, the measured iteration is" in text
        assert "The link limits the measured transfers" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gbps": 0}, "gbps=0: must be a positive number"),
        ({"gbps": -1}, "gbps=-1"),
        ({"gbps": math.nan}, "gbps=nan"),
        ({"gbps": "fast"}, "gbps='fast': must be a positive number"),
        ({"ranks": 1}, "ranks=1: must be an integer of 2 or more"),
        ({"ranks": 2.5}, "ranks"),
        ({"latency_us": math.inf}, "latency_us=inf"),
        ({"latency_us": False}, "latency_us=False"),
        ({"compression": "zip"}, "compression='zip': not known"),
        ({"batch_scale": 0}, "batch_scale=0"),
        ({"ranks": 4, "ranks_per_vm": 3}, "4 ranks are no multiple"),
        ({"hierarchical": True}, "Give vm_gbps"),
        ({"speed": 3}, "no change is named speed"),
    ],
)  # fmt: skip
def test_a_change_out_of_range_is_refused(change, said):
    """Each error names what was given."""
    with pytest.raises(UsageError, match=said):
        wb.what_if(Recorded(fabric(1.0)), **change)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        (lambda: Recorded(fabric(1.0), kinds="allgather", by="fsdp"), "of allgather, fsdp: only"),
        (lambda: recorded(collectives=False), "no iteration has the times"),
        (lambda: recorded(0), "no iteration was recorded"),
        (object, "not a training"),
        (lambda: Recorded(fabric(1.0), ranks=1), "ran on 1 rank"),
        (lambda: Recorded(fabric(1.0), process_set=(1, 1)), "its process set has 1 rank"),
    ],
)
def test_what_cannot_be_simulated_is_refused(training, said):
    """Without collectives of gradients on several ranks there is nothing to simulate."""
    with pytest.raises(UsageError, match=said):
        wb.what_if(training(), gbps=10)


def test_a_real_training_is_simulated_from_its_records(cluster):
    """Horovod's records of two real ranks have what a prediction needs."""
    cluster.run(MODEL + PLAIN)
    same, more = wb.what_if(cluster), wb.what_if(cluster.timings, ranks=8, ranks_per_vm=8)
    assert same.predicted_us == pytest.approx(same.measured_us)
    assert 0 < same.measured_transfer_us < more.predicted_transfer_us
    assert more.predicted_us >= same.predicted_us


def test_a_record_that_arrives_meanwhile():
    """In mid-cell, the newest iteration's record of one rank may come after its rows were read."""

    class Growing(Recorded):
        def rows(self, start=0):
            return super().rows(start)[:-1]

    model = CommunicationModel(fixed_us=50.0, us_per_byte=8e-3, negotiation_us=300.0)
    whole, growing = (measure(kind(model)) for kind in (Recorded, Growing))
    assert growing.iterations == whole.iterations - 1
    assert growing.iteration_us == whole.iteration_us
