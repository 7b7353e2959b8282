"""The phases of an iteration and their colours, the same everywhere.

Okabe and Ito's palette, legible on light and dark; the same table is in
`labextension/src/live/phases.ts`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """One phase: its column, its name for people, its colour."""

    column: str
    label: str
    color: str

    @property
    def edge(self) -> str:
        """The colour at 65 % of its brightness: the edge of its bars."""
        channels = [int(self.color[at : at + 2], 16) for at in (1, 3, 5)]
        return "#" + "".join(f"{round(channel * 0.65):02x}" for channel in channels)


DATA = Phase("data_us", "data", "#56B4E9")
COPY = Phase("copy_us", "copy", "#F0E442")
FORWARD = Phase("forward_us", "forward", "#009E73")
BACKWARD = Phase("backward_us", "backward", "#0072B2")
EXPOSED = Phase("exposed_us", "exposed", "#D55E00")
OPTIMIZER = Phase("optimizer_us", "optimizer", "#CC79A7")
OTHER = Phase("other_us", "other", "#999999")

OVERLAPPED = Phase("overlapped_us", "overlapped", "#E69F00")
"""Communication that compute hides: beside the stack, never part of it."""

IN_TIME = (DATA, COPY, FORWARD, BACKWARD, EXPOSED, OPTIMIZER, OTHER)
"""In the order in which an iteration goes through them; they add up to it."""

IN_STACK = (OTHER, DATA, COPY, OPTIMIZER, FORWARD, BACKWARD, EXPOSED)
"""From the bottom of a stack to its top: exposed communication on top."""
