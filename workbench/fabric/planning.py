"""What a training will cost before it runs: bytes, time, memory; each figure with its formula."""

from __future__ import annotations

from typing import Any

from workbench.errors import UsageError
from workbench.fabric import plan_figures
from workbench.fabric.fit import FittedFabric
from workbench.fabric.model_size import ModelSize, measure_model
from workbench.fabric.nominal import board_memory_gb_per_s
from workbench.fabric.plan_figures import PlanInputs
from workbench.fabric.plan_record import SPARE, Plan, Roofline
from workbench.fabric.quantities import check_positive, parse_count
from workbench.ranks import checked_int
from workbench.resources import Unknown
from workbench.resources.gpus.profiles import BoardShare, smallest_shares
from workbench.resources.vsphere import gpu_request

# Bytes per parameter of its value, its gradient, one value of the optimizer's state, and
# the copy in full precision that "mixed" keeps (S. Rajbhandari et al., "ZeRO", 2020, 3.1).
_BYTES = {"float32": (4, 4, 4, 0), "bfloat16": (2, 2, 2, 0), "mixed": (2, 2, 4, 4)}
_STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Values that an optimizer keeps per parameter."""


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
    """Return what a data-parallel training will need, before it runs.

    Parameters
    ----------
    model
        A `torch.nn.Module`, a `ModelSize`, or a number of parameters such as ``"340M"``.
    batch
        Samples per rank and iteration.
    example
        Input of one batch of any size, to measure the model's activations and operations
        (see `measure_model`).
    samples
        Number of samples in the data set, such as ``"1.28M"``.
    iterations
        Iterations per epoch, instead of `samples`; then the same for every number of ranks.
    epochs
        Number of epochs.
    gbps
        Rate of each VM's link in one direction, in 10^9 bits per second.
    latency_us
        Time of an empty message, in microseconds.
    fabric
        Result of `Cluster.calibrate`, used next to the nominal rate.
    vms
        Largest number of VMs.
    ranks_per_vm
        Ranks of each VM.
    local_gbps
        Rate between ranks of one VM in one direction. The slowest hop of a ring limits it.
    compute_ms
        Time of an iteration on one rank without communication, with this batch.
    tflops
        Rate of one rank in 10^12 operations per second, to compute that time from the
        model's operations instead; with it, the roofline is in the plan.
    memory_gb_per_s
        Bandwidth of a rank's GPU memory for the roofline; by default the nominal one of the
        whole board `gpu`. A MIG slice has a part of it, such as an eighth.
    precision
        ``"float32"``, ``"bfloat16"``, or ``"mixed"`` (half precision, with a copy of the
        parameters in full precision).
    optimizer
        ``"sgd"``, ``"momentum"``, ``"adam"`` or ``"adamw"``.
    gpu
        Board, named as in vGPU profiles (``"A100"``, ``"H100XM"``), to choose the smallest
        share of it, and what to ask for on vSphere if a VM has several.

    Raises
    ------
    UsageError
        An argument is not possible: not positive, unknown, or two that exclude each other.
    """
    _check(locals())
    size, each = _size(model, example), checked_int(ranks_per_vm, "ranks_per_vm", 1)
    job = PlanInputs(
        size=size,
        batch=checked_int(batch, "batch", 1),
        epochs=checked_int(epochs, "epochs", 1),
        samples=None if samples is None else parse_count(samples, "samples"),
        fixed=None if iterations is None else parse_count(iterations, "iterations"),
        gbps=gbps,
        latency_us=latency_us,
        fabric=fabric,
        ranks_per_vm=each,
        local_gbps=local_gbps,
        compute_s=_compute_s(compute_ms, tflops, size, batch),
        bytes_each=_BYTES[precision],
        states=_STATES[optimizer],
    )
    rows = tuple(map(job.row, range(1, checked_int(vms, "vms", 1) + 1)))
    memory = tuple(plan_figures.memory(job, precision, optimizer))
    roof = _roofline(job, tflops, memory_gb_per_s, gpu)
    figures = (
        *plan_figures.gradients(job, rows[-1]),
        *plan_figures.compute(job, tflops),
        *(() if isinstance(roof, Unknown) else roof.figures()),
        *plan_figures.duration(job, rows[-1]),
        *memory,
    )
    shares = _shares(gpu, memory[-1].value)
    request = gpu_request(gpu, each) if gpu and each > 1 else ""
    return Plan(figures, rows, shares, request, fabric.caveat if fabric else "", roof)


def _check(given: dict[str, Any]) -> None:
    """Raise an error for an argument that is not possible."""
    for name in ("gbps", "local_gbps", "compute_ms", "tflops", "memory_gb_per_s"):
        if given[name] is not None:
            check_positive(given[name], name)
    if given["latency_us"] != 0:
        check_positive(given["latency_us"], "latency_us")
    for first, second in (("samples", "iterations"), ("compute_ms", "tflops")):
        if given[first] is not None and given[second] is not None:
            raise UsageError(f"{first} and {second}: one follows from the other. Give one of them.")
    for name, known in (("precision", _BYTES), ("optimizer", _STATES)):
        if given[name] not in known:
            raise UsageError(f"{name}={given[name]!r}: not known. Choose from {', '.join(known)}.")


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
    job: PlanInputs, tflops: float | None, given: float | None, gpu: str | None
) -> Roofline | Unknown:
    """Return the roofline with the `given` memory bandwidth, or that of the whole board."""
    if given is not None:
        return plan_figures.roofline(job, tflops, given)
    if gpu is None:
        return plan_figures.roofline(job, tflops, Unknown("no GPU was given"))
    return plan_figures.roofline(job, tflops, board_memory_gb_per_s(gpu), gpu)


def _shares(gpu: str | None, needed_bytes: float) -> tuple[BoardShare, ...] | None:
    """Return the smallest shares of a GPU with room to spare; None if none was given."""
    return None if gpu is None else tuple(smallest_shares(gpu, needed_bytes / 1e9 / (1 - SPARE)))


def _compute_s(
    compute_ms: float | None, tflops: float | None, size: ModelSize, batch: int
) -> float | None:
    if tflops is None:
        return None if compute_ms is None else compute_ms / 1e3
    if not size.training_flop:
        raise UsageError(
            "tflops: the model's operations are not known, or none was counted. Give the model "
            "itself and an example batch, or the measured compute_ms."
        )
    return size.training_flop * batch / (tflops * 1e12)
