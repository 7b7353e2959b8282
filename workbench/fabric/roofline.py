"""The roofline of an iteration: whether a GPU's operations or its memory limit its compute.

The attainable rate is the lesser of the GPU's rate of operations and of intensity times memory
bandwidth (S. Williams, A. Waterman and D. Patterson, "Roofline", 2009). The bytes are an
estimate: each value moves once for each use. What caches keep makes them fewer, and tensors that
no backward needs make them more.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.fabric.plan_figures import PlanInputs
from workbench.fabric.plan_record import Figure
from workbench.fabric.quantities import format_quantity
from workbench.resources import Unknown

_PARAMETER_USES = 4
"""Read in the forward, in the backward and by the optimizer, which writes them."""
_GRADIENT_USES = 2
"""Written by the backward, read by the optimizer."""
_STATE_USES = 2
"""Read and written by the optimizer."""
_ACTIVATION_USES = 2
"""Written by the forward, read by the backward."""


@dataclass(frozen=True)
class Roofline:
    """What limits the compute of an iteration.

    Attributes
    ----------
    operations
        Floating-point operations of an iteration on one rank.
    memory_bytes
        Bytes that move between the GPU and its memory in an iteration, an estimate.
    tflops
        Rate of operations of the rank, in 10^12 per second.
    memory_gb_per_s
        Bandwidth of its memory, in 10^9 bytes per second.
    """

    operations: float
    memory_bytes: float
    tflops: float
    memory_gb_per_s: float

    @property
    def intensity(self) -> float:
        """Operations per byte of memory."""
        return self.operations / self.memory_bytes

    @property
    def ridge(self) -> float:
        """The intensity from which on the operations are the limit."""
        return self.tflops * 1e3 / self.memory_gb_per_s

    @property
    def bound(self) -> str:
        """``"compute"`` or ``"memory"``."""
        return "memory" if self.intensity < self.ridge else "compute"

    @property
    def attainable_tflops(self) -> float:
        """The highest rate of operations, in 10^12 per second."""
        return self.at(self.intensity)

    @property
    def least_s(self) -> float:
        """The shortest time of the iteration's compute at that rate, in seconds."""
        return self.operations / (self.attainable_tflops * 1e12)

    def at(self, intensity: float) -> float:
        """Return the attainable rate at another intensity, in 10^12 operations per second."""
        return min(self.tflops, intensity * self.memory_gb_per_s / 1e3)

    def figures(self) -> tuple[Figure, ...]:
        """Return its figures, each with its formula."""
        moved, tflops = format_quantity(self.memory_bytes, "B"), f"{self.tflops:g} TFLOP/s"
        rate = f"{self.memory_gb_per_s:g} GB/s"
        least = "operations / attainable rate, without communication"
        return (
            Figure(
                "memory traffic per iteration",
                self.memory_bytes,
                "B",
                f"estimate: {_PARAMETER_USES} × parameters + {_GRADIENT_USES} × gradients + "
                f"{_STATE_USES} × optimizer + {_ACTIVATION_USES} × activations",
            ),
            Figure("operations per byte of memory", self.intensity, "", f"operations / {moved}"),
            Figure(
                "attainable operations per second",
                self.attainable_tflops * 1e12,
                "FLOP",
                f"the lesser of {tflops} and {self.intensity:.3g} × {rate}: {self.bound} is the "
                f"limit, as the ridge is at {self.ridge:.3g} operations per byte",
            ),
            Figure("least compute per iteration", self.least_s, "s", least),
        )


def roofline(
    job: PlanInputs, tflops: float | None, memory_gb_per_s: float | Unknown
) -> Roofline | Unknown:
    """Return the roofline of a plan; unknown if one of its inputs is."""
    size = job.size
    if not size.training_flop or size.activation_bytes is None:
        return Unknown("the model's operations and activations. Give the model and an example")
    if tflops is None:
        return Unknown("the rate of operations of one rank. Give tflops")
    if isinstance(memory_gb_per_s, Unknown):
        return Unknown(f"the memory bandwidth: {memory_gb_per_s.reason}. Give memory_gb_per_s")
    value, gradient, state, copy = job.bytes_each
    moved = (
        _PARAMETER_USES * size.parameters * value
        + _GRADIENT_USES * size.trainable * gradient
        + _STATE_USES * size.trainable * (job.states * state + copy)
        + _ACTIVATION_USES * size.activation_bytes * job.batch
    )
    return Roofline(size.training_flop * job.batch, moved, tflops, memory_gb_per_s)
