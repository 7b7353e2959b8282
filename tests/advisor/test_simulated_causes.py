"""Causes whose saving is simulated: settings of Horovod, links, overlap, work, placement."""

from dataclasses import replace
from pathlib import Path

import pytest
from explained import BACKWARD_US, Trained, link, work

import workbench as wb
from workbench.advisor.interval import MIN_ITERATIONS
from workbench.fabric import fit, tcp_efficiency
from workbench.fabric.overlap import simulate
from workbench.wire.transport import Transport

EXAMPLES = Path(__file__).parents[2] / "notebooks" / "examples"
MB = 1 << 20
SIZES = [MB] * 6 + [2 * MB] * 2


def named(training):
    """The causes by name."""
    return {one.name: one for one in wb.explain(training)}


def calibrated(gbps, n=2, fixed_us=300.0):
    """A calibration whose bytes have that bus bandwidth."""
    sizes = [1_000, 1_000_000, 10_000_000]
    per_byte = 2 * (n - 1) / n * 8e-3 / gbps
    return fit(sizes, [fixed_us + size * per_byte for size in sizes], n)


def saves(training, model, work=None):
    """What an iteration of the training would really save over another model or work."""
    return training.true.iteration_us - simulate(work or training.work, model).iteration_us


def test_a_link_that_is_slower_than_it_was_calibrated_to_be():
    """The saving is that of its calibrated rate, and in the interval."""
    training = Trained(work(SIZES), link(0.5), fabric=calibrated(2.0))
    found = named(training)["communication slower than the fabric"]
    true_us = saves(training, link(2.0))
    assert found.saving_us == pytest.approx(true_us, rel=0.1)
    assert found.low_us - 1 <= true_us <= found.high_us + 1  # times are in ticks of 0.1 us
    assert "when the fabric was calibrated" in found.evidence
    assert "%fabric matrix" in found.measure
    assert wb.explain(training)[0] == found


def test_a_link_at_its_rate_is_no_cause_but_its_bytes_are():
    """What half the bytes and what a faster link save are both said."""
    training = Trained(work(SIZES), link(0.5), fabric=calibrated(0.5))
    found = named(training)
    assert "communication slower than the fabric" not in found
    halved = replace(training.work, sizes_bytes=tuple(size / 2 for size in SIZES))
    wire = found["bytes on the wire"]
    assert wire.saving_us == pytest.approx(saves(training, link(0.5), halved), rel=0.15)
    assert "a link of twice the rate would save" in wire.evidence


@pytest.mark.parametrize(("fabric", "why"), [
    (None, "run cluster.calibrate()"),
    (calibrated(2.0, n=4), "the calibration is of 4 ranks, the training of 2"),
    (fit([1_000, 100_000, 1_000_000], [3_000, 500, 4_100], 2), "calibration is unreliable"),
], ids=["none", "other-ranks", "unreliable"])  # fmt: skip
def test_without_a_calibration_of_these_ranks_it_says_what_to_measure(fabric, why):
    found = named(Trained(work(SIZES), link(0.5), fabric=fabric))
    assert "communication slower than the fabric" not in found
    assert why in found["exposed communication"].evidence
    assert "%fabric calibrate" in found["exposed communication"].measure


def vm(**nic):
    """The snapshot of an example VM, with other values of its NICs."""
    snapshot = wb.Snapshot.load(EXAMPLES / "vm1.json")
    nics = tuple(replace(one, **nic) if one.name == "ens192" else one for one in snapshot.nics)
    return replace(snapshot, gpus=(), nics=nics)


@pytest.mark.parametrize(("kind", "rate", "is_cause"), [
    ("physical", 10.0, True), ("physical", 1.0, False), ("virtual", 10.0, False),
])  # fmt: skip
def test_a_link_below_its_nominal_rate(kind, rate, is_cause):
    """The hop is named; the rate of a virtual interface is none that it promises."""
    snapshots = dict.fromkeys(("vm1", "vm2"), vm(kind=kind, rate_gbps=rate, state="up"))
    training = Trained(work(SIZES), link(0.9), fabric=calibrated(0.9), snapshots=snapshots)
    found = named(training)
    assert ("link below nominal" in found) == is_cause
    if is_cause:
        cause = found["link below nominal"]
        assert "NIC ens192 of vm1, 10 Gbit/s" in cause.evidence
        assert cause.saving_us == pytest.approx(
            saves(training, link(10.0 * tcp_efficiency())), rel=0.1
        )


def test_small_tensors_without_fusion():
    """The number of buffers is the cause, and the threshold that saves it is named."""
    sizes = [64 * 1024] * 20 + [128 * 1024] * 20
    ready = [20_000.0 + BACKWARD_US * 0.8 + place for place in range(40)]
    training = Trained(
        work(sizes, ready), link(10.0, fixed_us=2000.0, fusion_bytes=1), fabric=calibrated(10.0)
    )
    found = wb.explain(training)[0]
    assert found.name == "fusion threshold"
    assert "40 gradients travel in 40 buffers" in found.evidence
    assert "HOROVOD_FUSION_THRESHOLD=" in found.change
    true_us = saves(training, link(10.0, fixed_us=2000.0))
    assert found.saving_us == pytest.approx(true_us, rel=0.1)
    fused = Trained(work(sizes, ready), link(10.0, fixed_us=2000.0), fabric=calibrated(10.0))
    assert "fusion threshold" not in named(fused)


def test_a_fusion_threshold_that_is_better_than_the_usual_ones():
    """All values that are tried are slower: there is nothing to advise."""
    sizes = [(1 << 17) << (2 * place % 3) for place in range(16)]
    training = Trained(
        work(sizes, [41_000.0 + 4_300 * place for place in range(16)], compute_us=105_000.0),
        link(0.24, fixed_us=30.0, fusion_bytes=917_504, copy_us_per_byte=1e-3, burst_bytes=120_000),
        fabric=calibrated(0.24),
    )
    found = named(training)
    assert found
    assert "fusion threshold" not in found


@pytest.mark.parametrize("count", [1, 8])
def test_gradients_that_are_all_ready_at_the_end(count):
    """One flat parameter, or a reduction after the backward: nothing overlaps."""
    sizes = [8 * MB // count] * count
    late = work(sizes, [80_000.0] * count)
    training = Trained(late, link(2.0), fabric=calibrated(2.0))
    found = wb.explain(training)[0]
    assert found.name == "no overlap with the backward"
    true_us = saves(training, link(2.0), work([MB] * 8))
    assert found.saving_us == pytest.approx(true_us, rel=0.15)
    assert "no overlap with the backward" not in named(Trained(work([MB] * 8), link(2.0)))


def test_too_little_work_per_rank():
    """Twice the batch hides nothing, but the latency counts once for both."""
    few = work([4096], [BACKWARD_US], compute_us=BACKWARD_US)
    training = Trained(few, link(2.0, fixed_us=150_000.0), fabric=calibrated(2.0))
    found = named(training)
    cause = found["too little work per rank"]
    true_us = training.true.iteration_us - (training.true.iteration_us + BACKWARD_US) / 2
    assert cause.saving_us == pytest.approx(true_us, rel=0.1)
    assert not {"queueing", "latency of communication"} & set(found)


def test_a_ring_that_crosses_vms_too_often():
    """Ranks in turn on two VMs cross four links where two would do."""
    far = named(Trained(work(SIZES), link(0.5), vms=("vm1", "vm2", "vm1", "vm2")))
    near = named(Trained(work(SIZES), link(0.5), vms=("vm1", "vm1", "vm2", "vm2")))
    assert "leaves VMs 4 times, and 2 would do" in far["poor placement"].evidence
    assert far["poor placement"].saving_us > 0
    assert "poor placement" not in near
    nccl = Trained(work(SIZES), link(0.5), vms=("vm1", "vm2", "vm1", "vm2"))
    nccl.transports = {rank: (Transport("NCCL", "TCP", ("ens192",)),) for rank in range(4)}
    assert "poor placement" not in named(nccl)  # its rings are ordered by VM


def test_a_simulation_that_is_off_gives_a_bound_only():
    """The cause says by how much the simulation is off."""
    training = Trained(work(SIZES), link(0.5), fabric=calibrated(2.0), exposed_ms=70)
    found = named(training)["communication slower than the fabric"]
    assert found.bound
    assert "simulated, the measured iteration is +" in found.evidence
    assert found.low_us < found.saving_us < found.high_us


def test_too_few_iterations_give_no_interval():
    """The reason is in every text."""
    training = Trained(work(SIZES), link(0.5))
    found = wb.explain(training, latest=MIN_ITERATIONS - 1)[0]
    assert str(found).count("unknown: fewer than 8 iterations do not show how much it varies") == 1
    assert "nan" not in str(found)
    known = wb.explain(training)[0]
    assert known.low_us <= known.saving_us <= known.high_us
