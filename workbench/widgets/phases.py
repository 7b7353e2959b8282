"""The phases of an iteration, with the same colours everywhere.

Okabe and Ito's palette, legible on light and dark; `labextension/src/live/phases.ts` has the
same table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PhaseStyle:
    """How one phase is shown: its column, label and colour."""

    column: str
    label: str
    color: str

    @property
    def edge(self) -> str:
        """Return the colour of its bars' edges, at 65 % of the brightness."""
        channels = [int(self.color[at : at + 2], 16) for at in (1, 3, 5)]
        return "#" + "".join(f"{round(channel * 0.65):02x}" for channel in channels)


DATA = PhaseStyle("data_us", "data", "#56B4E9")
COPY = PhaseStyle("copy_us", "copy", "#F0E442")
FORWARD = PhaseStyle("forward_us", "forward", "#009E73")
BACKWARD = PhaseStyle("backward_us", "backward", "#0072B2")
EXPOSED = PhaseStyle("exposed_us", "exposed", "#D55E00")
OPTIMIZER = PhaseStyle("optimizer_us", "optimizer", "#CC79A7")
OTHER = PhaseStyle("other_us", "other", "#999999")

OVERLAPPED = PhaseStyle("overlapped_us", "overlapped", "#E69F00")
"""Communication hidden behind compute: drawn next to the stack, not in it."""

IN_TIME = (DATA, COPY, FORWARD, BACKWARD, EXPOSED, OPTIMIZER, OTHER)
"""In the order of an iteration; their sum is its duration."""

IN_STACK = (OTHER, DATA, COPY, OPTIMIZER, FORWARD, BACKWARD, EXPOSED)
"""From the bottom of a stack to its top: exposed communication on top."""
