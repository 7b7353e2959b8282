"""A plan: figures with their formulas, one row for each number of VMs, and how they are shown."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.fabric.quantities import format_quantity
from workbench.resources import Unknown
from workbench.resources.gpus.profiles import BoardShare

if TYPE_CHECKING:
    import pandas as pd

SPARE = 0.1
"""Share of a GPU's memory that is left to the CUDA context, the allocator and NCCL."""
PARAMETER_USES = 4
"""Read in the forward, in the backward and by the optimizer, which writes them."""
GRADIENT_USES = 2
"""Written by the backward, read by the optimizer."""
STATE_USES = 2
"""Read and written by the optimizer."""
ACTIVATION_USES = 2
"""Written by the forward, read by the backward."""
NO_ROOFLINE = Unknown("it was not computed. Make the plan again")


@dataclass(frozen=True)
class Figure:
    """One figure of a plan.

    Attributes
    ----------
    name
        What it is.
    value
        Its value.
    unit
        ``"B"``, ``"s"``, ``"FLOP"``, or empty for a number.
    formula
        How it was computed, with the numbers.
    """

    name: str
    value: float
    unit: str
    formula: str

    def __str__(self) -> str:
        return format_quantity(self.value, self.unit)


@dataclass(frozen=True)
class Roofline:
    """What limits the compute of an iteration: a GPU's operations or its memory.

    The attainable rate is the lesser of the GPU's rate of operations and of intensity times memory
    bandwidth (S. Williams, A. Waterman and D. Patterson, "Roofline", 2009). The bytes are an
    estimate: each value moves once for each use. What caches keep makes them fewer, and tensors
    that no backward needs make them more.

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
    board
        The board of which that is the nominal bandwidth; a MIG slice has a part of it. Empty if
        the bandwidth was given.
    """

    operations: float
    memory_bytes: float
    tflops: float
    memory_gb_per_s: float
    board: str = ""

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
        whole = f" (of the whole board {self.board})" if self.board else ""
        rate = f"{self.memory_gb_per_s:g} GB/s{whole}"
        least = "operations / attainable rate, without communication"
        return (
            Figure(
                "memory traffic per iteration",
                self.memory_bytes,
                "B",
                f"estimate: {PARAMETER_USES} × parameters + {GRADIENT_USES} × gradients + "
                f"{STATE_USES} × optimizer + {ACTIVATION_USES} × activations",
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


@dataclass(frozen=True)
class ScalingRow:
    """The prediction for one number of VMs.

    Times without overlap assume that all communication follows the backward; those with full
    overlap that it starts as soon as the backward does. An iteration takes between the two.
    A value that cannot be computed is None.

    Attributes
    ----------
    vms, ranks
        Number of VMs and of all ranks.
    iterations
        Iterations per epoch.
    communication_s
        Allreduce of all gradients at the nominal rate, in seconds.
    calibrated_s
        The same on the calibrated fabric.
    overlapped_s, sequential_s
        Time of an iteration with full overlap and without any, in seconds, on the calibrated
        fabric if there is one, else at the nominal rate.
    efficiency
        Throughput divided by that of as many ranks without communication, without overlap.
    epoch_s
        Time of an epoch without overlap, in seconds.
    """

    vms: int
    ranks: int
    iterations: int | None
    communication_s: float | None
    calibrated_s: float | None
    overlapped_s: float | None
    sequential_s: float | None
    efficiency: float | None
    epoch_s: float | None


@dataclass(frozen=True)
class Plan:
    """What a training is expected to need.

    Attributes
    ----------
    figures
        Figures with their formulas.
    scaling
        One row for each number of VMs.
    shares
        The smallest shares of the GPU that hold the training; empty if none does, None
        without a GPU.
    request
        What to ask for on vSphere, so that the GPUs of a VM exchange data fast; may be empty.
    caveat
        Why the calibration may be wrong; empty without one.
    roofline
        What limits the compute of an iteration; or what is missing for that.
    """

    figures: tuple[Figure, ...]
    scaling: tuple[ScalingRow, ...]
    shares: tuple[BoardShare, ...] | None
    request: str = ""
    caveat: str = ""
    roofline: Roofline | Unknown = NO_ROOFLINE

    def __getitem__(self, name: str) -> Figure:
        """Return the figure of a name."""
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise KeyError(f"{name!r}: there are {', '.join(one.name for one in self.figures)}")

    def to_frame(self) -> pd.DataFrame:
        """Return the scaling, one row for each number of VMs; columns as in `ScalingRow`."""
        import pandas as pd

        return pd.DataFrame(self.scaling)

    def __repr__(self) -> str:
        table = [(one.name, str(one), one.formula) for one in self.figures]
        columns = self._columns()
        scaling = zip(*([head, *cells] for head, cells in columns.items()), strict=True)
        lines = [*_aligned(table, "<><"), *self._notes()]
        return "\n".join([*lines, "", *_aligned(list(scaling), ">" * len(columns))])

    def _repr_html_(self) -> str:
        rows = ((one.name, str(one), one.formula) for one in self.figures)
        figures = _table(("figure", "value", "formula"), rows, "left")
        columns = self._columns()
        scaling = _table(columns, zip(*columns.values(), strict=True))
        notes = "".join(f"<p>{html.escape(line)}</p>" for line in self._notes())
        return f"{figures}{notes}{scaling}"

    def _columns(self) -> dict[str, list[str]]:
        """Return the columns of the scaling in which something is known, by their heads."""
        found = {}
        for head, (field, unit) in _COLUMNS.items():
            values = [getattr(row, field) for row in self.scaling]
            if values[-1] is not None:
                found[head] = [_shown(value, unit) for value in values]
        return found

    def _notes(self) -> list[str]:
        """Return what to ask for, and which arguments would tell more."""
        notes = (
            [] if self.shares is None else [f"smallest share of the GPU: {_shares(self.shares)}"]
        )
        notes += [self.caveat] if self.caveat else []
        notes += [f"for each VM, ask for {self.request}"] if self.request else []
        if isinstance(self.roofline, Unknown):
            notes.append(f"roofline unknown: {self.roofline.reason}.")
        return notes + [
            f"not known: {what}. Give {argument}."
            for field, (what, argument) in _MISSING.items()
            if getattr(self.scaling[-1], field) is None
        ]


_COLUMNS = {
    "VMs": ("vms", ""),
    "ranks": ("ranks", ""),
    "iterations/epoch": ("iterations", ""),
    "communication": ("communication_s", "s"),
    "calibrated": ("calibrated_s", "s"),
    "iteration, full overlap": ("overlapped_s", "s"),
    "no overlap": ("sequential_s", "s"),
    "efficiency": ("efficiency", "%"),
    "epoch": ("epoch_s", "s"),
}
_MISSING = {
    "communication_s": ("the time of communication", "gbps, the rate of each VM's link"),
    "sequential_s": (
        "the time of an iteration",
        "compute_ms, or with the model itself tflops and an example batch",
    ),
    "iterations": ("the time of an epoch", "samples or iterations"),
}


def _shares(shares: Sequence[BoardShare] | None) -> str:
    if not shares:
        return "none is large enough; use a larger GPU or a smaller batch"
    return f"{' or '.join(one.name for one in shares)}, with {SPARE:.0%} of it to spare"


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    return f"{value:.0%}" if unit == "%" else format_quantity(value, unit)


def _aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _table(head: Iterable[str], rows: Iterable[Sequence[str]], align: str = "right") -> str:
    cell = f'td style="text-align: {align}"'
    cells = "".join(f"<{cell.replace('td', 'th')}>{html.escape(text)}</th>" for text in head)
    body = "".join(
        "<tr>" + "".join(f"<{cell}>{html.escape(text)}</td>" for text in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
