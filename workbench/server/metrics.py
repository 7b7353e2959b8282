"""Prometheus metrics of the running clusters, on the Jupyter server's ``/metrics``.

Kernels write their figures to a `ProcessRegistry`, and each scrape reads it. The number
of labels is limited to the newest `MOST_CLUSTERS` clusters, `MOST_RANKS` ranks of each,
and `MOST_PHASES` phases.
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
from workbench.resources.process_registry import FOLDER, ProcessRegistry

VERSION = 1
"""Version of the registry's entries."""
MOST_CLUSTERS = 16
MOST_RANKS = 1024
MOST_PHASES = 16
MOST_CHARACTERS = 100
"""Longest value of a label, in characters."""

_PREFIX = "gradient_workbench_"
_LABELS = ("cluster", "rank", "vm")
_GIGA = 1e9


class _RankMetric(NamedTuple):
    """A metric, and the path of its value in a rank's figures."""

    name: str
    text: str
    path: tuple[str, ...]
    scale: float = 1


_COUNTERS = (
    _RankMetric("iterations", "Iterations of training.", ("iterations",)),
    _RankMetric(
        "communication_seconds",
        "Time with collectives under way, queueing included.",
        ("seconds", "communication"),
    ),
    _RankMetric("bytes", "Bytes given to collectives.", ("bytes",)),
    _RankMetric("dropped_records", "Records lost on their way to the kernel.", ("dropped",)),
)
_GAUGES = (
    _RankMetric("iteration", "Number of the latest iteration.", ("latest", "iteration")),
    _RankMetric(
        "iteration_seconds", "Mean duration of the latest iterations.", ("latest", "iteration_s")
    ),
    _RankMetric(
        "exposed_ratio",
        "Share of the latest iterations in which training waited for gradients.",
        ("latest", "exposed_share"),
    ),
    _RankMetric(
        "algorithm_bandwidth_bits_per_second",
        "All bytes over all communication time of the latest iterations.",
        ("latest", "algbw_gbps"),
        _GIGA,
    ),
    _RankMetric(
        "bus_bandwidth_bits_per_second",
        "The same times 2(n-1)/n for n ranks.",
        ("latest", "busbw_gbps"),
        _GIGA,
    ),
)


class TimingsCollector(Collector):
    """Reads the registry whenever it is scraped.

    Parameters
    ----------
    registry
        Where the kernels register; in the user's runtime folder by default.
    """

    def __init__(self, registry: ProcessRegistry | None = None) -> None:
        self._registry = registry

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that registering the collector reads nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all clusters whose kernel is running."""
        # not cached: the folder depends on environment variables
        registry = self._registry or ProcessRegistry(Path(jupyter_runtime_dir()) / FOLDER)
        ranks = [(labels, rank) for labels, rank in _ranks(registry.read())]
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
    family: _RankMetric,
    ranks: list[tuple[tuple[str, ...], dict[str, Any]]],
) -> Metric:
    metric = kind(f"{_PREFIX}{family.name}", family.text, labels=_LABELS)
    for labels, rank in ranks:
        value = _number(rank, family.path)
        if value is not None:  # an unknown value has no sample, rather than zero
            metric.add_metric(labels, value * family.scale)
    return metric


def _ranks(entries: list[dict[str, Any]]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the labels and figures of each rank, and skip invalid entries."""
    valid = [one for one in entries if one.get("version") == VERSION and _number(one, ("time_s",))]
    newest = sorted(valid, key=lambda one: float(one["time_s"]), reverse=True)
    # if two clusters have the same name, only the newer one: samples must be unique
    clusters = {_label(one.get("cluster")): one for one in reversed(newest[:MOST_CLUSTERS])}
    for name, entry in clusters.items():
        seen: set[int] = set()
        for rank in _list(entry.get("ranks"))[:MOST_RANKS]:
            number = rank.get("rank") if isinstance(rank, dict) else None
            if isinstance(number, int) and number not in seen:
                seen.add(number)
                yield (name, str(number), _label(rank.get("vm"))), rank


def _phases(rank: dict[str, Any]) -> list[tuple[str, float]]:
    seconds = rank.get("seconds")
    names = list(seconds)[:MOST_PHASES] if isinstance(seconds, dict) else []
    found = [(name, _number(rank, ("seconds", name))) for name in names if name != "communication"]
    return [(_label(name), value) for name, value in found if value is not None]


def _number(content: Any, path: tuple[str, ...]) -> float | None:
    for name in path:
        content = content.get(name) if isinstance(content, dict) else None
    known = isinstance(content, int | float) and math.isfinite(content)
    return content if known else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _label(value: Any) -> str:
    return printable(str(value or "")[:MOST_CHARACTERS])


_registered: set[int] = set()


def register(registry: CollectorRegistry = REGISTRY) -> None:
    """Add the metrics to `registry`, once per process."""
    if id(registry) not in _registered:
        _registered.add(id(registry))
        registry.register(TimingsCollector())
