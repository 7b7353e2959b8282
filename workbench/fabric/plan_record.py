"""The result of planning: figures with formulas, and one row for each number of VMs."""

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
"""Parameters are read by the forward, the backward and the optimizer, which also writes them."""
GRADIENT_USES = 2
"""Gradients are written by the backward and read by the optimizer."""
STATE_USES = 2
"""The optimizer reads and writes its state."""
ACTIVATION_USES = 2
"""Activations are written by the forward and read by the backward."""
NO_ROOFLINE = Unknown("it was not computed. Make the plan again")


@dataclass(frozen=True)
class PlanFigure:
    """One figure of a plan.

    Attributes
    ----------
    name
        Name of the figure, such as ``"gradients"``.
    value
        Value in `unit`.
    unit
        ``"B"``, ``"s"``, ``"FLOP"``, or empty for a number.
    formula
        Formula with the numbers from which the value was computed.

    Examples
    --------
    >>> print(PlanFigure("gradients", 1.36e9, "B", "340,000,000 × 4 B"))
    1.36 GB
    """

    name: str
    value: float
    unit: str
    formula: str

    def __str__(self) -> str:
        return format_quantity(self.value, self.unit)


@dataclass(frozen=True)
class Roofline:
    """The limit of the compute of an iteration: a GPU's rate of operations or its memory.

    The attainable rate is the minimum of the GPU's rate of operations and the product of intensity
    and memory bandwidth (S. Williams, A. Waterman and D. Patterson, "Roofline", 2009). The bytes
    are an estimate: each value moves once for each use. Caches reduce the bytes. Tensors that no
    backward needs increase them.

    Attributes
    ----------
    operations
        Floating-point operations of an iteration on one rank.
    memory_bytes
        Estimate of the bytes that move between the GPU and its memory in an iteration.
    tflops
        Rate of operations of the rank, in 10^12 per second.
    memory_gb_per_s
        Bandwidth of the rank's GPU memory, in 10^9 bytes per second.
    board
        The board that has `memory_gb_per_s` as its nominal bandwidth; a MIG slice has a part of
        this bandwidth. Empty if the bandwidth is an argument of the user.

    Examples
    --------
    >>> roofline = Roofline(operations=1e12, memory_bytes=1e10, tflops=100, memory_gb_per_s=2000)
    >>> roofline.intensity, roofline.ridge, roofline.bound
    (100.0, 50.0, 'compute')
    >>> roofline.at(10)
    20.0
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
        """The lowest intensity at which the rate of operations is the limit."""
        return self.tflops * 1e3 / self.memory_gb_per_s

    @property
    def bound(self) -> str:
        """The limit: ``"compute"`` or ``"memory"``."""
        return "memory" if self.intensity < self.ridge else "compute"

    @property
    def attainable_tflops(self) -> float:
        """The highest rate of operations, in 10^12 per second."""
        return self.at(self.intensity)

    @property
    def least_s(self) -> float:
        """The shortest time of the iteration's compute, at the attainable rate, in seconds."""
        return self.operations / (self.attainable_tflops * 1e12)

    def at(self, intensity: float) -> float:
        """Return the attainable rate at another intensity, in 10^12 operations per second."""
        return min(self.tflops, intensity * self.memory_gb_per_s / 1e3)

    def figures(self) -> tuple[PlanFigure, ...]:
        """Return the roofline's figures, each with its formula."""
        moved = format_quantity(self.memory_bytes, "B")
        tflops = f"{self.tflops:g} TFLOP/s"
        board = f" (of the whole board {self.board})" if self.board else ""
        rate = f"{self.memory_gb_per_s:g} GB/s{board}"
        least_formula = "operations / attainable rate, without communication"
        return (
            PlanFigure(
                "memory traffic per iteration",
                self.memory_bytes,
                "B",
                f"estimate: {PARAMETER_USES} × parameters + {GRADIENT_USES} × gradients + "
                f"{STATE_USES} × optimizer + {ACTIVATION_USES} × activations",
            ),
            PlanFigure(
                "operations per byte of memory", self.intensity, "", f"operations / {moved}"
            ),
            PlanFigure(
                "attainable operations per second",
                self.attainable_tflops * 1e12,
                "FLOP",
                f"the lesser of {tflops} and {self.intensity:.3g} × {rate}: {self.bound} is the "
                f"limit, as the ridge is at {self.ridge:.3g} operations per byte",
            ),
            PlanFigure("least compute per iteration", self.least_s, "s", least_formula),
        )


@dataclass(frozen=True)
class ScalingRow:
    """The prediction for one number of VMs.

    Times without overlap assume that all communication follows the backward. Times with full
    overlap assume that communication starts together with the backward. The duration of an
    iteration lies between the two. A value that cannot be computed is None.

    Attributes
    ----------
    vms, ranks
        Number of VMs, and of ranks on all VMs.
    iterations
        Iterations per epoch.
    communication_s
        Time of an allreduce of all gradients at the nominal rate, in seconds.
    calibrated_s
        Time of the same allreduce on the calibrated fabric, in seconds.
    overlapped_s, sequential_s
        Time of an iteration with full overlap and without overlap, in seconds: on the calibrated
        fabric if there is one, otherwise at the nominal rate.
    efficiency
        Throughput without overlap, divided by the throughput of the same number of ranks without
        communication.
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
    """The expected bytes, times and memory of a training.

    Attributes
    ----------
    figures
        Figures with their formulas.
    scaling
        One row for each number of VMs.
    shares
        The smallest shares of the GPU that can hold the training; empty if every share is too
        small, None if no GPU was named.
    request
        The GPUs to request on vSphere for each VM, so that they exchange data fast; may be empty.
    caveat
        The reason why the calibration may be wrong; empty without one.
    roofline
        The limit of the compute of an iteration, or the arguments that are missing for it.
    """

    figures: tuple[PlanFigure, ...]
    scaling: tuple[ScalingRow, ...]
    shares: tuple[BoardShare, ...] | None
    request: str = ""
    caveat: str = ""
    roofline: Roofline | Unknown = NO_ROOFLINE

    def __getitem__(self, name: str) -> PlanFigure:
        """Return the figure with this name.

        Raises
        ------
        KeyError
            There is no such figure; the message lists the names.
        """
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise KeyError(f"{name!r}: there are {', '.join(figure.name for figure in self.figures)}")

    def to_frame(self) -> pd.DataFrame:
        """Return the scaling, one row for each number of VMs; columns as in `ScalingRow`."""
        import pandas as pd

        return pd.DataFrame(self.scaling)

    def __repr__(self) -> str:
        table = [(figure.name, str(figure), figure.formula) for figure in self.figures]
        columns = self._columns()
        scaling = zip(*([header, *cells] for header, cells in columns.items()), strict=True)
        lines = [*_aligned(table, "<><"), *self._notes()]
        return "\n".join([*lines, "", *_aligned(list(scaling), ">" * len(columns))])

    def _repr_html_(self) -> str:
        rows = ((figure.name, str(figure), figure.formula) for figure in self.figures)
        figures = _table(("figure", "value", "formula"), rows, "left")
        columns = self._columns()
        scaling = _table(columns, zip(*columns.values(), strict=True))
        notes = "".join(f"<p>{html.escape(line)}</p>" for line in self._notes())
        return f"{figures}{notes}{scaling}"

    def _columns(self) -> dict[str, list[str]]:
        """Return the columns of the scaling that have values, by their headers."""
        columns = {}
        for header, (field, unit) in _COLUMNS.items():
            values = [getattr(row, field) for row in self.scaling]
            if values[-1] is not None:
                columns[header] = [_format_cell(value, unit) for value in values]
        return columns

    def _notes(self) -> list[str]:
        """Return sentences about the GPUs to request, and about arguments that add columns."""
        notes = (
            [] if self.shares is None else [f"smallest share of the GPU: {_shares(self.shares)}"]
        )
        notes += [self.caveat] if self.caveat else []
        notes += [f"for each VM, ask for {self.request}"] if self.request else []
        if isinstance(self.roofline, Unknown):
            notes.append(f"roofline unknown: {self.roofline.reason}.")
        return notes + [
            f"not known: {meaning}. Give {argument}."
            for field, (meaning, argument) in _MISSING.items()
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
"""Fields of `ScalingRow` and their units, by the header of the column."""
_MISSING = {
    "communication_s": ("the time of communication", "gbps, the rate of each VM's link"),
    "sequential_s": (
        "the time of an iteration",
        "compute_ms, or with the model itself tflops and an example batch",
    ),
    "iterations": ("the time of an epoch", "samples or iterations"),
}
"""Fields of `ScalingRow` that may be unknown: their meaning, and the argument that is missing."""


def _shares(shares: Sequence[BoardShare] | None) -> str:
    if not shares:
        return "none is large enough; use a larger GPU or a smaller batch"
    return f"{' or '.join(share.name for share in shares)}, with {SPARE:.0%} of it to spare"


def _format_cell(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    return f"{value:.0%}" if unit == "%" else format_quantity(value, unit)


def _aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return rows as lines with aligned columns: ``<`` in `sides` means left, ``>`` right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _table(header: Iterable[str], rows: Iterable[Sequence[str]], align: str = "right") -> str:
    cell = f'td style="text-align: {align}"'
    cells = "".join(f"<{cell.replace('td', 'th')}>{html.escape(text)}</th>" for text in header)
    body = "".join(
        "<tr>" + "".join(f"<{cell}>{html.escape(text)}</td>" for text in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
