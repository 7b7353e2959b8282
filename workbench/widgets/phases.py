"""The phases of an iteration, with the same colours everywhere, from `schema.figures`."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.schema.figures import FIGURES, PHASE_FIGURES


@dataclass(frozen=True)
class PhaseStyle:
    """The column, label and colour of a phase."""

    column: str
    label: str
    color: str

    @property
    def edge(self) -> str:
        """Return the colour of the edges of the phase's bars: `color` at 65 % brightness.

        Examples
        --------
        >>> PhaseStyle("forward_us", "forward", "#6496c8").edge
        '#416282'
        """
        channels = [int(self.color[start : start + 2], 16) for start in (1, 3, 5)]
        return "#" + "".join(f"{round(channel * 0.65):02x}" for channel in channels)


def _style(name: str) -> PhaseStyle:
    figure = FIGURES[name]
    return PhaseStyle(figure.name, figure.label, figure.color)


DATA, COPY, FORWARD, BACKWARD, EXPOSED, OPTIMIZER, OTHER = (
    _style(figure.name) for figure in PHASE_FIGURES
)

OVERLAPPED = _style("overlapped_us")
"""Communication hidden behind compute: drawn next to the stack, not in it."""

IN_TIME = (DATA, COPY, FORWARD, BACKWARD, EXPOSED, OPTIMIZER, OTHER)
"""The phases in the order of an iteration; the sum of their durations is the iteration's."""

IN_STACK = (OTHER, DATA, COPY, OPTIMIZER, FORWARD, BACKWARD, EXPOSED)
"""The phases from the bottom of a stack to its top, which is exposed communication."""
