"""The figures of a plan, each with its formula."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from workbench.fabric.fit import FittedFabric
from workbench.fabric.model_size import ModelSize
from workbench.fabric.models import busbw_factor, ring_us
from workbench.fabric.plan_record import (
    ACTIVATION_USES,
    GRADIENT_USES,
    PARAMETER_USES,
    STATE_USES,
    Figure,
    Roofline,
    ScalingRow,
)
from workbench.fabric.quantities import format_quantity
from workbench.resources import Unknown

_FORWARD = 1 / 3
"""Share of the forward in the time of compute: a backward takes about twice as long."""


@dataclass(frozen=True)
class PlanInputs:
    """The checked arguments of a plan."""

    size: ModelSize
    batch: int
    epochs: int
    samples: int | None
    fixed: int | None
    gbps: float | None
    latency_us: float
    fabric: FittedFabric | None
    ranks_per_vm: int
    local_gbps: float | None
    compute_s: float | None
    bytes_each: tuple[int, int, int, int]
    states: int

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return self.size.trainable * self.bytes_each[1]

    @property
    def limit_s(self) -> float:
        """Seconds of an allreduce over very many ranks at the nominal rate; NaN without one."""
        rate = math.nan if self.gbps is None else self.gbps
        return 2 * self.gradient_bytes * 8 / (rate * 1e9)

    def rate_gbps(self, vms: int) -> float | None:
        """Return the rate of the slowest hop of the ring, in one direction."""
        inside = math.inf if self.ranks_per_vm == 1 else self.local_gbps
        if vms == 1:
            return inside
        if self.gbps is None or inside is None:  # else only the rate between the VMs is known
            return self.gbps
        return min(self.gbps, inside)

    def iterations(self, ranks: int) -> int | None:
        """Return the iterations per epoch, if they are known."""
        if self.samples is None:
            return self.fixed
        return math.ceil(self.samples / (self.batch * ranks))

    def row(self, vms: int) -> ScalingRow:
        """Return the prediction for a number of VMs."""
        ranks = vms * self.ranks_per_vm
        nominal = self._nominal_s(vms, ranks)
        calibrated = self._calibrated_s(ranks)
        spent = nominal if calibrated is None else calibrated
        overlapped = sequential = efficiency = epoch = None
        if spent is not None and self.compute_s is not None:
            overlapped = fully_overlapped(self.compute_s, spent)
            sequential = self.compute_s + spent
            efficiency = self.compute_s / sequential
        iterations = self.iterations(ranks)
        if sequential is not None and iterations is not None:
            epoch = sequential * iterations
        return ScalingRow(
            *(vms, ranks, iterations, nominal, calibrated),
            *(overlapped, sequential, efficiency, epoch),
        )

    def _nominal_s(self, vms: int, ranks: int) -> float | None:
        rate = self.rate_gbps(vms)
        if ranks == 1:
            return 0.0
        if rate is None:
            return None
        return ring_us(self.gradient_bytes, ranks, rate, self.latency_us) / 1e6

    def _calibrated_s(self, ranks: int) -> float | None:
        if self.fabric is None:
            return None
        if ranks == 1:
            return 0.0
        return self.fabric.predict_us(self.gradient_bytes, ranks) / 1e6


def fully_overlapped(compute: float, communication: float) -> float:
    """Return the time of an iteration whose communication starts as soon as its backward."""
    return max(compute, compute * _FORWARD + communication)


def gradients(job: PlanInputs, last: ScalingRow) -> Iterator[Figure]:
    """Yield what is communicated in an iteration."""
    size, count, total = job.bytes_each[1], job.size.trainable, job.gradient_bytes
    yield Figure("parameters", job.size.parameters, "", "counted in the model, or given")
    yield Figure("gradients", total, "B", f"{_number(count)} × {size} B")
    for ranks in dict.fromkeys((2, last.ranks)):
        if ranks > 1:
            yield Figure(
                f"moved per iteration, {ranks} ranks",
                busbw_factor("allreduce", ranks) * total,
                "B",
                f"2 (n - 1) / n × {_bytes(total)}, sent by each rank, n = {ranks}",
            )
    yield Figure("moved in the limit", 2 * total, "B", f"2 × {_bytes(total)}, many ranks")
    if job.gbps is not None:
        yield Figure(
            "communication in the limit",
            job.limit_s,
            "s",
            f"{_bytes(2 * total)} × 8 / {job.gbps:g} Gbit/s",
        )


def compute(job: PlanInputs, tflops: float | None) -> Iterator[Figure]:
    """Yield the operations of an iteration, and the batch that hides communication."""
    if job.compute_s is not None:
        formula = "given"
        if tflops is not None:
            formula = f"operations of an iteration / {tflops:g} TFLOP/s"
        yield Figure("compute per iteration", job.compute_s, "s", formula)
    each = job.size.training_flop
    if not (each and job.size.forward_flop):
        return
    operations = each * job.batch
    yield Figure(
        "operations per iteration",
        operations,
        "FLOP",
        f"3 × {format_quantity(job.size.forward_flop, 'FLOP')} × {job.batch} samples (a backward "
        "counts as two forwards)",
    )
    moved = 2 * job.gradient_bytes
    yield Figure(
        "operations per byte moved", operations / moved, "", f"operations / {_bytes(moved)}"
    )
    if tflops is None or job.gbps is None:
        return
    balance = tflops * 1e12 / (job.gbps * 1e9 / 8)
    yield Figure(
        "balance of the fabric",
        balance,
        "",
        f"{tflops:g} TFLOP/s / ({job.gbps:g} Gbit/s / 8): with fewer operations per byte, "
        "communication takes longer than compute",
    )
    yield Figure(
        "batch at the balance",
        math.ceil(balance * moved / each),
        "",
        f"{balance:,.0f} × {_bytes(moved)} / operations per sample",
    )


def duration(job: PlanInputs, last: ScalingRow) -> Iterator[Figure]:
    """Yield the iterations, and the communication of an epoch and of the training."""
    count = job.iterations(1)
    if count is None:
        return
    formula = "given"
    if job.samples is not None:
        formula = f"{_number(job.samples)} samples / batch of {job.batch}, rounded up, one rank"
    yield Figure("iterations per epoch", count, "", formula)
    if job.gbps is not None and job.samples is None:
        yield from _communication(job, "in the limit", job.limit_s, count)
    if last.communication_s and last.iterations:
        name = f"{last.ranks} ranks"
        yield from _communication(job, name, last.communication_s, last.iterations)
    if last.epoch_s is not None:
        yield Figure(
            f"training, {last.ranks} ranks",
            last.epoch_s * job.epochs,
            "s",
            f"{format_quantity(last.epoch_s, 's')} × {job.epochs} epochs, without overlap, "
            f"{'calibrated' if job.fabric else 'nominal'}",
        )


def _communication(job: PlanInputs, name: str, each_s: float, count: int) -> Iterator[Figure]:
    """Yield the communication of an epoch and of all epochs, of `each_s` per iteration."""
    each = f"{format_quantity(each_s, 's')} × {_number(count)} iterations, nominal"
    epochs = f"{format_quantity(each_s, 's')} × {_number(count)} × {job.epochs} epochs, nominal"
    yield Figure(f"communication per epoch, {name}", each_s * count, "s", each)
    yield Figure(f"communication in total, {name}", each_s * count * job.epochs, "s", epochs)


def memory(job: PlanInputs, precision: str, optimizer: str) -> Iterator[Figure]:
    """Yield the memory of a rank; the last figure is their sum."""
    value, gradient, state, copy = job.bytes_each
    count, trainable = job.size.parameters, job.size.trainable
    kept = job.states * state + copy
    parts = [
        Figure("memory of parameters", count * value, "B", f"{_number(count)} × {value} B"),
        Figure(
            "memory of gradients", trainable * gradient, "B", f"{_number(trainable)} × {gradient} B"
        ),
        Figure(
            "memory of the optimizer",
            trainable * kept,
            "B",
            f"{_number(trainable)} × {kept} B ({optimizer}, {precision})",
        ),
    ]
    if job.size.activation_bytes is not None:
        each = job.size.activation_bytes
        parts.append(
            Figure(
                "memory of activations",
                each * job.batch,
                "B",
                f"{_bytes(each)} per sample, measured, × {job.batch}",
            )
        )
    yield from parts
    left_out = "" if job.size.activation_bytes is not None else "; activations are not known"
    yield Figure("memory", sum(one.value for one in parts), "B", f"sum of the above{left_out}")


def roofline(
    job: PlanInputs, tflops: float | None, memory_gb_per_s: float | Unknown, board: str = ""
) -> Roofline | Unknown:
    """Return the roofline of a plan; unknown if one of its inputs is.

    `board` names the board whose nominal bandwidth `memory_gb_per_s` is, if it is one.
    """
    size = job.size
    if not size.training_flop or size.activation_bytes is None:
        return Unknown(
            "the model's operations and activations are unknown. Give the model and an example"
        )
    if tflops is None:
        return Unknown("the rate of operations of one rank is unknown. Give tflops")
    if isinstance(memory_gb_per_s, Unknown):
        return Unknown(
            f"the memory bandwidth is unknown: {memory_gb_per_s.reason}. Give memory_gb_per_s"
        )
    value, gradient, state, copy = job.bytes_each
    moved = (
        PARAMETER_USES * size.parameters * value
        + GRADIENT_USES * size.trainable * gradient
        + STATE_USES * size.trainable * (job.states * state + copy)
        + ACTIVATION_USES * size.activation_bytes * job.batch
    )
    return Roofline(size.training_flop * job.batch, moved, tflops, memory_gb_per_s, board)


def _number(count: float) -> str:
    return format_quantity(count, "")


def _bytes(count: float) -> str:
    return format_quantity(count, "B")
