"""Prometheus: what the kernels' clusters spend, on the server's own ``/metrics``.

Kernels post their figures on a `Noticeboard`; each scrape reads those that are
up. Labels are bounded: the newest `MOST_CLUSTERS` clusters, `MOST_RANKS` ranks of
each, the phases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jupyter_core.paths import jupyter_runtime_dir
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from workbench.errors import printable
from workbench.resources.noticeboard import FOLDER, Noticeboard

VERSION = 1
"""Of the notices."""
MOST_CLUSTERS = 16
MOST_RANKS = 1024
MOST_PHASES = 16
MOST_LETTERS = 100
"""Of a label's value."""

_PREFIX = "gradient_workbench_"
_LABELS = ("cluster", "rank", "vm")
_GIGA = 1e9


class _Family(NamedTuple):
    """A metric, and where in a rank's part of a notice its value stands."""

    name: str
    text: str
    place: tuple[str, ...]
    scale: float = 1


_COUNTERS = (
    _Family("iterations", "Iterations of training.", ("iterations",)),
    _Family(
        "communication_seconds",
        "Time with collectives under way, queueing included.",
        ("seconds", "communication"),
    ),
    _Family("bytes", "Bytes given to collectives.", ("bytes",)),
    _Family("dropped_records", "Records lost on their way to the kernel.", ("dropped",)),
)
_GAUGES = (
    _Family("iteration", "Number of the latest iteration.", ("latest", "iteration")),
    _Family(
        "iteration_seconds", "Mean duration of the latest iterations.", ("latest", "iteration_s")
    ),
    _Family(
        "exposed_ratio",
        "Share of the latest iterations in which training stood still for gradients.",
        ("latest", "exposed_share"),
    ),
    _Family(
        "algorithm_bandwidth_bits_per_second",
        "All bytes over all communication time of the latest iterations.",
        ("latest", "algbw_gbps"),
        _GIGA,
    ),
    _Family(
        "bus_bandwidth_bits_per_second",
        "The same times 2(n-1)/n for n ranks.",
        ("latest", "busbw_gbps"),
        _GIGA,
    ),
)


class TimingsCollector(Collector):
    """Reads the notices whenever it is scraped.

    Parameters
    ----------
    board
        Where the kernels post; in the user's runtime folder by default.
    """

    def __init__(self, board: Noticeboard | None = None) -> None:
        self._board = board

    def describe(self) -> Iterable[Metric]:
        """Give the names beforehand: none, so that registering reads nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Give the metrics of all clusters whose kernels live."""
        # looked up each time: the folder follows the environment
        board = self._board or Noticeboard(Path(jupyter_runtime_dir()) / FOLDER)
        ranks = [(labels, rank) for labels, rank in _ranks(board.read())]
        for family in _COUNTERS:
            yield _filled(CounterMetricFamily, family, ranks)
        phases = CounterMetricFamily(
            f"{_PREFIX}phase_seconds", "Time spent in a phase.", labels=(*_LABELS, "phase")
        )
        for labels, rank in ranks:
            for name, value in _phases(rank):
                phases.add_metric((*labels, name), value)
        yield phases
        for family in _GAUGES:
            yield _filled(GaugeMetricFamily, family, ranks)


def _filled(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    family: _Family,
    ranks: list[tuple[tuple[str, ...], dict[str, Any]]],
) -> Metric:
    metric = kind(f"{_PREFIX}{family.name}", family.text, labels=_LABELS)
    for labels, rank in ranks:
        value = _number(rank, family.place)
        if value is not None:  # not known: no sample, rather than zero
            metric.add_metric(labels, value * family.scale)
    return metric


def _ranks(notices: list[dict[str, Any]]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Give the labels and figures of each rank; what is no notice of ours is skipped."""
    ours = [one for one in notices if one.get("version") == VERSION and _number(one, ("time_s",))]
    newest = sorted(ours, key=lambda one: float(one["time_s"]), reverse=True)
    # of two clusters of one name, only the newer: a sample must not come twice
    clusters = {_label(one.get("cluster")): one for one in reversed(newest[:MOST_CLUSTERS])}
    for name, notice in clusters.items():
        seen: set[int] = set()
        for rank in _list(notice.get("ranks"))[:MOST_RANKS]:
            number = rank.get("rank") if isinstance(rank, dict) else None
            if isinstance(number, int) and number not in seen:
                seen.add(number)
                yield (name, str(number), _label(rank.get("vm"))), rank


def _phases(rank: dict[str, Any]) -> list[tuple[str, float]]:
    seconds = rank.get("seconds")
    names = list(seconds)[:MOST_PHASES] if isinstance(seconds, dict) else []
    found = [(name, _number(rank, ("seconds", name))) for name in names if name != "communication"]
    return [(_label(name), value) for name, value in found if value is not None]


def _number(content: Any, place: tuple[str, ...]) -> float | None:
    for name in place:
        content = content.get(name) if isinstance(content, dict) else None
    known = isinstance(content, int | float) and math.isfinite(content)
    return content if known else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _label(value: Any) -> str:
    return printable(str(value or "")[:MOST_LETTERS])


_registered: set[int] = set()


def register(registry: CollectorRegistry = REGISTRY) -> None:
    """Serve the metrics from `registry`; once a process, however many servers it makes."""
    if id(registry) not in _registered:
        _registered.add(id(registry))
        registry.register(TimingsCollector())
