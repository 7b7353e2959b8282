"""Figures for study, as ``%timings`` names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError
from workbench.resources import Unknown
from workbench.widgets.distributions import ranks_figure
from workbench.widgets.nominal import nominal_gbps
from workbench.widgets.sizes import sizes_figure
from workbench.widgets.waterfall import waterfall_figure

if TYPE_CHECKING:
    from workbench.cluster import Cluster

VERBS = ("waterfall", "ranks", "collectives")


def study_view(cluster: Cluster, verb: str, words: list[str]) -> Any:
    """Return the figure that a ``%timings`` verb asks for.

    Parameters
    ----------
    cluster
        Whose timings to draw.
    verb
        One of `VERBS`.
    words
        What followed it: for ``waterfall`` an iteration's number, or nothing.

    Raises
    ------
    UsageError
        The words mean nothing there, or there is nothing to draw.
    """
    if verb == "waterfall":
        return waterfall_figure(cluster.timings, _iteration(words))
    if words:
        raise UsageError(f"%timings {verb} {' '.join(words)} was asked for: {verb} takes no more")
    if verb == "ranks":
        return ranks_figure(cluster.timings)
    nominal = nominal_gbps(cluster)
    return sizes_figure(
        cluster.timings, cluster.fabric, None if isinstance(nominal, Unknown) else nominal
    )


def _iteration(words: list[str]) -> int | None:
    if not words:
        return None
    if len(words) == 1 and words[0].isdecimal():
        return int(words[0])
    raise UsageError(
        f"%timings waterfall {' '.join(words)} was asked for: it takes the number of one iteration"
    )
