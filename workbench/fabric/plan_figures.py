"""Computation of the figures of a plan, each with its formula."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from workbench.fabric.fit import FittedFabric
from workbench.fabric.model_size import ModelSize
from workbench.fabric.models import busbw_factor, ring_us
from workbench.fabric.plan_record import (
    ACTIVATION_USES,
    GRADIENT_USES,
    PARAMETER_USES,
    STATE_USES,
    PlanFigure,
    Roofline,
    ScalingRow,
)
from workbench.fabric.quantities import format_quantity
from workbench.resources import Unknown

_FORWARD = 1 / 3
"""Share of the forward in the compute of an iteration: a backward takes about twice as long."""


class ValueBytes(NamedTuple):
    """Bytes per parameter.

    Attributes
    ----------
    value, gradient
        Bytes of the parameter's value, and of its gradient.
    state
        Bytes of one value of the optimizer's state.
    copy
        Bytes of the parameter's copy in full precision; 0 without a copy.
    """

    value: int
    gradient: int
    state: int
    copy: int


@dataclass(frozen=True)
class PlanInputs:
    """The checked arguments of a plan.

    Attributes
    ----------
    size
        Sizes of the model.
    batch
        Samples per rank and iteration.
    epochs
        Number of epochs.
    samples
        Samples in the data set; None if not given.
    fixed_iterations
        Iterations per epoch if they do not depend on the number of ranks; None if not given.
    gbps, local_gbps
        Rate of a VM's link, and between the ranks of a VM, in Gbit/s; None if not given.
    latency_us
        Time of an empty message, in microseconds.
    fabric
        The calibration; None if not given.
    ranks_per_vm
        Ranks on each VM.
    compute_s
        Time of an iteration on one rank without communication, in seconds; None if unknown.
    value_bytes
        Bytes per parameter.
    states
        Values that the optimizer keeps per parameter.
    """

    size: ModelSize
    batch: int
    epochs: int
    samples: int | None
    fixed_iterations: int | None
    gbps: float | None
    latency_us: float
    fabric: FittedFabric | None
    ranks_per_vm: int
    local_gbps: float | None
    compute_s: float | None
    value_bytes: ValueBytes
    states: int

    @property
    def gradient_bytes(self) -> int:
        """Size of all gradients in bytes."""
        return self.size.trainable * self.value_bytes.gradient

    @property
    def limit_s(self) -> float:
        """Seconds of an allreduce over very many ranks at the nominal rate; NaN without a rate."""
        rate = math.nan if self.gbps is None else self.gbps
        return 2 * self.gradient_bytes * 8 / (rate * 1e9)

    def rate_gbps(self, vms: int) -> float | None:
        """Return the rate of the slowest hop of the ring in one direction; None if unknown."""
        within_vm = math.inf if self.ranks_per_vm == 1 else self.local_gbps
        if vms == 1:
            return within_vm
        if self.gbps is None or within_vm is None:  # At most the rate between VMs is known then.
            return self.gbps
        return min(self.gbps, within_vm)

    def iterations(self, ranks: int) -> int | None:
        """Return the number of iterations per epoch; None if unknown."""
        if self.samples is None:
            return self.fixed_iterations
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
            vms=vms,
            ranks=ranks,
            iterations=iterations,
            communication_s=nominal,
            calibrated_s=calibrated,
            overlapped_s=overlapped,
            sequential_s=sequential,
            efficiency=efficiency,
            epoch_s=epoch,
        )

    def _nominal_s(self, vms: int, ranks: int) -> float | None:
        """Return the seconds of an allreduce of all gradients at the nominal rate."""
        rate = self.rate_gbps(vms)
        if ranks == 1:
            return 0.0
        if rate is None:
            return None
        return ring_us(self.gradient_bytes, ranks, rate, self.latency_us) / 1e6

    def _calibrated_s(self, ranks: int) -> float | None:
        """Return the seconds of an allreduce of all gradients on the calibrated fabric."""
        if self.fabric is None:
            return None
        if ranks == 1:
            return 0.0
        return self.fabric.predict_us(self.gradient_bytes, ranks) / 1e6


def fully_overlapped(compute: float, communication: float) -> float:
    """Return the time of an iteration if its communication starts together with its backward.

    The two times and the result have the same unit.

    Examples
    --------
    >>> fully_overlapped(3.0, 1.0)
    3.0
    >>> fully_overlapped(3.0, 5.0)
    6.0
    """
    return max(compute, compute * _FORWARD + communication)


def gradients(job: PlanInputs, last: ScalingRow) -> Iterator[PlanFigure]:
    """Yield the parameters, and the bytes that an iteration communicates."""
    size = job.value_bytes.gradient
    count = job.size.trainable
    total = job.gradient_bytes
    yield PlanFigure("parameters", job.size.parameters, "", "counted in the model, or given")
    yield PlanFigure("gradients", total, "B", f"{_number(count)} × {size} B")
    for ranks in dict.fromkeys((2, last.ranks)):
        if ranks > 1:
            yield PlanFigure(
                f"moved per iteration, {ranks} ranks",
                busbw_factor("allreduce", ranks) * total,
                "B",
                f"2 (n - 1) / n × {_bytes(total)}, sent by each rank, n = {ranks}",
            )
    yield PlanFigure("moved in the limit", 2 * total, "B", f"2 × {_bytes(total)}, many ranks")
    if job.gbps is not None:
        yield PlanFigure(
            "communication in the limit",
            job.limit_s,
            "s",
            f"{_bytes(2 * total)} × 8 / {job.gbps:g} Gbit/s",
        )


def compute(job: PlanInputs, tflops: float | None) -> Iterator[PlanFigure]:
    """Yield the compute of an iteration, and the batch at which it balances communication."""
    if job.compute_s is not None:
        formula = "given"
        if tflops is not None:
            formula = f"operations of an iteration / {tflops:g} TFLOP/s"
        yield PlanFigure("compute per iteration", job.compute_s, "s", formula)
    flop_per_sample = job.size.training_flop
    if not (flop_per_sample and job.size.forward_flop):
        return
    operations = flop_per_sample * job.batch
    yield PlanFigure(
        "operations per iteration",
        operations,
        "FLOP",
        f"3 × {format_quantity(job.size.forward_flop, 'FLOP')} × {job.batch} samples (a backward "
        "counts as two forwards)",
    )
    moved = 2 * job.gradient_bytes
    yield PlanFigure(
        "operations per byte moved", operations / moved, "", f"operations / {_bytes(moved)}"
    )
    if tflops is None or job.gbps is None:
        return
    balance = tflops * 1e12 / (job.gbps * 1e9 / 8)
    yield PlanFigure(
        "balance of the fabric",
        balance,
        "",
        f"{tflops:g} TFLOP/s / ({job.gbps:g} Gbit/s / 8): with fewer operations per byte, "
        "communication takes longer than compute",
    )
    yield PlanFigure(
        "batch at the balance",
        math.ceil(balance * moved / flop_per_sample),
        "",
        f"{balance:,.0f} × {_bytes(moved)} / operations per sample",
    )


def duration(job: PlanInputs, last: ScalingRow) -> Iterator[PlanFigure]:
    """Yield the iterations, and the communication of an epoch and of the training."""
    count = job.iterations(1)
    if count is None:
        return
    formula = "given"
    if job.samples is not None:
        formula = f"{_number(job.samples)} samples / batch of {job.batch}, rounded up, one rank"
    yield PlanFigure("iterations per epoch", count, "", formula)
    if job.gbps is not None and job.samples is None:
        yield from _communication(job, "in the limit", job.limit_s, count)
    if last.communication_s and last.iterations:
        name = f"{last.ranks} ranks"
        yield from _communication(job, name, last.communication_s, last.iterations)
    if last.epoch_s is not None:
        yield PlanFigure(
            f"training, {last.ranks} ranks",
            last.epoch_s * job.epochs,
            "s",
            f"{format_quantity(last.epoch_s, 's')} × {job.epochs} epochs, without overlap, "
            f"{'calibrated' if job.fabric else 'nominal'}",
        )


def _communication(
    job: PlanInputs, name: str, iteration_s: float, count: int
) -> Iterator[PlanFigure]:
    """Yield the communication of an epoch and of all epochs.

    Each of the `count` iterations of an epoch communicates for `iteration_s`.
    """
    time_text = format_quantity(iteration_s, "s")
    epoch_formula = f"{time_text} × {_number(count)} iterations, nominal"
    total_formula = f"{time_text} × {_number(count)} × {job.epochs} epochs, nominal"
    yield PlanFigure(f"communication per epoch, {name}", iteration_s * count, "s", epoch_formula)
    total_s = iteration_s * count * job.epochs
    yield PlanFigure(f"communication in total, {name}", total_s, "s", total_formula)


def memory(job: PlanInputs, precision: str, optimizer: str) -> Iterator[PlanFigure]:
    """Yield the parts of a rank's memory, and at the end their sum."""
    value, gradient, state, copy = job.value_bytes
    count = job.size.parameters
    trainable = job.size.trainable
    optimizer_bytes = job.states * state + copy
    parts = [
        PlanFigure("memory of parameters", count * value, "B", f"{_number(count)} × {value} B"),
        PlanFigure(
            "memory of gradients", trainable * gradient, "B", f"{_number(trainable)} × {gradient} B"
        ),
        PlanFigure(
            "memory of the optimizer",
            trainable * optimizer_bytes,
            "B",
            f"{_number(trainable)} × {optimizer_bytes} B ({optimizer}, {precision})",
        ),
    ]
    if job.size.activation_bytes is not None:
        sample_bytes = job.size.activation_bytes
        parts.append(
            PlanFigure(
                "memory of activations",
                sample_bytes * job.batch,
                "B",
                f"{_bytes(sample_bytes)} per sample, measured, × {job.batch}",
            )
        )
    yield from parts
    left_out = "" if job.size.activation_bytes is not None else "; activations are not known"
    yield PlanFigure(
        "memory", sum(part.value for part in parts), "B", f"sum of the above{left_out}"
    )


def roofline(
    job: PlanInputs, tflops: float | None, memory_gb_per_s: float | Unknown, board: str = ""
) -> Roofline | Unknown:
    """Return the roofline of a plan, or Unknown with the input that is missing.

    If `memory_gb_per_s` is the nominal bandwidth of a board, `board` is the board's name.
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
    value, gradient, state, copy = job.value_bytes
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
