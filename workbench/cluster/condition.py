"""Whether a cluster can run a cell, and what to do where it cannot."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from workbench.cluster import registry
from workbench.cluster.ranks import grouped, phrase, ranks_text
from workbench.errors import ClusterStopped

if TYPE_CHECKING:
    from workbench.cluster.running import Running

_UP = frozenset({"ready", "running"})
_GOING = frozenset({"stopping", "stopped"})


class Condition:
    """The state of one cluster.

    Parameters
    ----------
    name
        The cluster's.

    Attributes
    ----------
    state, message
        As `Cluster` tells them.
    running
        Its processes, from the start on; None before.
    lock
        To be held where one state is to follow another.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.state = "stopped"
        self.message = ""
        self.running: Running | None = None
        self.lock = threading.RLock()

    def set(self, state: str, message: str = "") -> None:
        """Go into a state, and tell who listens."""
        self.state, self.message = state, message
        registry.changed()

    def lost(self) -> dict[int, str]:
        """Return why ranks can no longer answer, by rank."""
        if self.running is None:
            return {}
        engines = self.running.engines
        if self.state in _GOING:
            return {info.rank: "the cluster was stopped" for info in engines.ranks}
        return engines.lost()

    @property
    def lacks_only_ring(self) -> bool:
        """Whether all ranks are there, with their variables, and could not form a ring."""
        return (
            self.state == "failed"
            and self.running is not None
            and self.running.engines.ring_broken
            and self.running.engines.wanted is None
            and not self.lost()
        )

    @property
    def wanted(self) -> int | None:
        """How many ranks a change that ended early was to leave; None where none did."""
        if self.state != "failed" or self.running is None:
            return None
        return self.running.engines.wanted

    @property
    def renumbered(self) -> bool:
        """Whether ranks are missing, or have other numbers, because that change ended early."""
        return self.running is not None and self.running.engines.renumbered

    def whole(self, *, ring: bool = True) -> Running:
        """Return the processes, or raise `ClusterStopped` where they cannot run a cell.

        Parameters
        ----------
        ring
            False where they may lack the ring, which the caller then forms.
        """
        if self.state in _UP and self.running is not None and not self.lost():
            return self.running
        if not ring and self.lacks_only_ring and self.running is not None:
            return self.running
        if self.state == "starting":
            raise ClusterStopped(f"cluster {self._name}: still starting. Wait until it is ready.")
        if self.state in {*_UP, "failed"}:
            raise ClusterStopped(f"cluster {self._name} cannot run a cell: {self.trouble()}")
        why = f" ({self.message})" if self.message else ""
        raise ClusterStopped(
            f"cluster {self._name}: {self.state}{why}. Start one with %cluster start."
        )

    def trouble(self) -> str:
        """Return what is wrong, and what to do."""
        lost = self.lost()
        if self.wanted is not None:
            return (
                f"{self.message.rstrip('.')}. Rebuild the ring with %cluster resize -n "
                f"{self.wanted}, which also starts what is missing, or start a new cluster after "
                "%cluster stop."
            )
        told = "; ".join(_trouble_of(ranks, why) for why, ranks in grouped(lost))
        return f"{(told or self.message).rstrip('.')}. {self._cure(tuple(lost))}"

    def _cure(self, lost: tuple[int, ...]) -> str:
        if not lost:
            return (
                "Rebuild the ring with %cluster restart, which keeps all variables, replace ranks "
                "with %cluster restart --ranks N, or stop it with %cluster stop."
            )
        assert self.running is not None
        engines = self.running.engines
        if engines.controller_ended:
            return "Stop it with %cluster stop, and start another with %cluster start."
        if set(lost) <= engines.given_up:
            return (
                "The cluster is ready again when that cell ends, with all variables; "
                "%cluster restart replaces it instead."
            )
        if len(lost) == len(engines.ranks):
            return "Replace all ranks with %cluster restart; their variables are lost."
        return (
            f"Replace what is lost with %cluster restart --ranks {ranks_text(lost)}, or go on "
            "without it with %cluster resize."
        )


def _trouble_of(ranks: list[int], why: str) -> str:
    from workbench.cluster.engines import STILL_RUNS

    if why == STILL_RUNS:
        cell = STILL_RUNS.removeprefix("it still runs ")
        return phrase(ranks, f"still runs {cell}", f"still run {cell}")
    return f"{phrase(ranks)}: {why}"
