"""Prediction of the bytes, the time and the memory of a training before it runs."""

from __future__ import annotations

from typing import Any

from workbench.errors import UsageError
from workbench.fabric import plan_figures
from workbench.fabric.fit import FittedFabric
from workbench.fabric.model_size import ModelSize, measure_model
from workbench.fabric.nominal import board_memory_gb_per_s
from workbench.fabric.plan_figures import PlanInputs, ValueBytes
from workbench.fabric.plan_record import SPARE, Plan, PlanFigure, Roofline, ScalingRow
from workbench.fabric.quantities import check_positive, parse_count
from workbench.ranks import checked_int
from workbench.resources import Unknown
from workbench.resources.gpus.profiles import BoardShare, smallest_shares
from workbench.resources.vsphere import gpu_request

_VALUE_BYTES = {
    "float32": ValueBytes(value=4, gradient=4, state=4, copy=0),
    "bfloat16": ValueBytes(value=2, gradient=2, state=2, copy=0),
    "mixed": ValueBytes(value=2, gradient=2, state=4, copy=4),
}
"""Bytes per parameter by precision (S. Rajbhandari et al., "ZeRO", 2020, section 3.1)."""
_STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Number of values that an optimizer keeps per parameter."""


def plan(
    model: Any,
    *,
    batch: int = 1,
    example: Any = None,
    samples: float | str | None = None,
    iterations: float | str | None = None,
    epochs: int = 1,
    gbps: float | None = None,
    latency_us: float = 0.0,
    fabric: FittedFabric | None = None,
    vms: int = 4,
    ranks_per_vm: int = 1,
    local_gbps: float | None = None,
    compute_ms: float | None = None,
    tflops: float | None = None,
    memory_gb_per_s: float | None = None,
    precision: str = "float32",
    optimizer: str = "adam",
    gpu: str | None = None,
) -> Plan:
    """Predict the bytes, the time and the memory of a data-parallel training before it runs.

    Parameters
    ----------
    model
        A `torch.nn.Module`, a `ModelSize`, or a number of parameters such as ``"340M"``.
    batch
        Samples per rank and iteration.
    example
        Input of one batch of any size. With it, the model's activations and operations are
        measured (see `measure_model`).
    samples
        Number of samples in the data set, such as ``"1.28M"``.
    iterations
        Iterations per epoch for any number of ranks, instead of `samples`.
    epochs
        Number of epochs.
    gbps
        Rate of each VM's link in one direction, in 10^9 bits per second.
    latency_us
        Time of an empty message, in microseconds.
    fabric
        Result of `Cluster.calibrate`, for predictions in addition to those at the nominal rate.
    vms
        Largest number of VMs.
    ranks_per_vm
        Number of ranks on each VM.
    local_gbps
        Rate between ranks of one VM in one direction, in Gbit/s. The slowest hop limits the ring.
    compute_ms
        Time of an iteration on one rank without communication, with this batch.
    tflops
        Rate of one rank in 10^12 operations per second, instead of `compute_ms`. The time is
        then computed from the model's operations, and the plan has a roofline.
    memory_gb_per_s
        Bandwidth of a rank's GPU memory for the roofline; by default the nominal bandwidth of
        the whole board `gpu`. A MIG slice has a part of it, such as an eighth.
    precision
        ``"float32"``, ``"bfloat16"``, or ``"mixed"`` (half precision, with a copy of the
        parameters in full precision).
    optimizer
        ``"sgd"``, ``"momentum"``, ``"adam"`` or ``"adamw"``.
    gpu
        Board, named as in vGPU profiles (``"A100"``, ``"H100XM"``). The plan then has its
        smallest sufficient share and, for several ranks per VM, the GPUs to request on vSphere.

    Raises
    ------
    UsageError
        An argument is not positive or unknown, or two arguments exclude each other.

    Examples
    --------
    >>> training = plan("340M", gbps=25, vms=2, compute_ms=300)
    >>> print(training["gradients"], "=", training["gradients"].formula)
    1.36 GB = 340,000,000 × 4 B
    >>> [round(row.efficiency, 2) for row in training.scaling]
    [1.0, 0.41]
    """
    _check(locals())
    size = _size(model, example)
    ranks_per_vm = checked_int(ranks_per_vm, "ranks_per_vm", 1)
    job = PlanInputs(
        size=size,
        batch=checked_int(batch, "batch", 1),
        epochs=checked_int(epochs, "epochs", 1),
        samples=None if samples is None else parse_count(samples, "samples"),
        fixed_iterations=None if iterations is None else parse_count(iterations, "iterations"),
        gbps=gbps,
        latency_us=latency_us,
        fabric=fabric,
        ranks_per_vm=ranks_per_vm,
        local_gbps=local_gbps,
        compute_s=_compute_s(compute_ms, tflops, size, batch),
        value_bytes=_VALUE_BYTES[precision],
        states=_STATES[optimizer],
    )
    rows = tuple(map(job.row, range(1, checked_int(vms, "vms", 1) + 1)))
    memory = tuple(plan_figures.memory(job, precision, optimizer))
    roofline = _roofline(job, tflops, memory_gb_per_s, gpu)
    return _assemble(job, rows, memory, roofline, tflops, gpu)


def _assemble(
    job: PlanInputs,
    rows: tuple[ScalingRow, ...],
    memory: tuple[PlanFigure, ...],
    roofline: Roofline | Unknown,
    tflops: float | None,
    gpu: str | None,
) -> Plan:
    """Return the plan with all figures in their order, the shares and the request of the GPU."""
    figures = (
        *plan_figures.gradients(job, rows[-1]),
        *plan_figures.compute(job, tflops),
        *(() if isinstance(roofline, Unknown) else roofline.figures()),
        *plan_figures.duration(job, rows[-1]),
        *memory,
    )
    shares = _shares(gpu, memory[-1].value)
    request = gpu_request(gpu, job.ranks_per_vm) if gpu and job.ranks_per_vm > 1 else ""
    caveat = job.fabric.caveat if job.fabric else ""
    return Plan(figures, rows, shares, request, caveat, roofline)


def _check(arguments: dict[str, Any]) -> None:
    """Raise `UsageError` for an argument of `plan` that is not possible."""
    for name in ("gbps", "local_gbps", "compute_ms", "tflops", "memory_gb_per_s"):
        if arguments[name] is not None:
            check_positive(arguments[name], name)
    if arguments["latency_us"] != 0:
        check_positive(arguments["latency_us"], "latency_us")
    for first, second in (("samples", "iterations"), ("compute_ms", "tflops")):
        if arguments[first] is not None and arguments[second] is not None:
            raise UsageError(f"{first} and {second}: one follows from the other. Give one of them.")
    for name, choices in (("precision", _VALUE_BYTES), ("optimizer", _STATES)):
        value = arguments[name]
        if value not in choices:
            raise UsageError(f"{name}={value!r}: not known. Choose from {', '.join(choices)}.")


def _size(model: Any, example: Any) -> ModelSize:
    if callable(getattr(model, "parameters", None)):
        model = measure_model(model, example)
    elif example is not None:
        raise UsageError(
            "example: a number of parameters cannot be run on it. Give the model itself."
        )
    if isinstance(model, ModelSize):
        check_positive(model.trainable, "trainable parameters of the model")
        return model
    count = parse_count(model, "parameters")
    return ModelSize(count, count)


def _roofline(
    job: PlanInputs, tflops: float | None, memory_gb_per_s: float | None, gpu: str | None
) -> Roofline | Unknown:
    """Return the roofline with this memory bandwidth; by default, with the whole board's."""
    if memory_gb_per_s is not None:
        return plan_figures.roofline(job, tflops, memory_gb_per_s)
    if gpu is None:
        return plan_figures.roofline(job, tflops, Unknown("no GPU was given"))
    return plan_figures.roofline(job, tflops, board_memory_gb_per_s(gpu), gpu)


def _shares(gpu: str | None, needed_bytes: float) -> tuple[BoardShare, ...] | None:
    """Return the smallest shares of a GPU with enough memory to spare; None without a GPU."""
    return None if gpu is None else tuple(smallest_shares(gpu, needed_bytes / 1e9 / (1 - SPARE)))


def _compute_s(
    compute_ms: float | None, tflops: float | None, size: ModelSize, batch: int
) -> float | None:
    """Return the seconds of compute in an iteration of one rank; None if unknown."""
    if tflops is None:
        return None if compute_ms is None else compute_ms / 1e3
    if not size.training_flop:
        raise UsageError(
            "tflops: the model's operations are not known, or none was counted. Give the model "
            "itself and an example batch, or the measured compute_ms."
        )
    return size.training_flop * batch / (tflops * 1e12)
